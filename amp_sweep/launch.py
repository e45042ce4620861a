"""Start and supervise the ranks of one cell, and turn any ending into a status.

PyTorch's elastic agent starts the ranks, from a forkserver that has imported everything, so
that a cell begins in fractions of a second in fresh processes. The agent runs in a thread: this
one watches progress, endings and interrupts, and alone decides when ranks must go. This process
never touches CUDA and never joins a process group.
"""

import contextlib
import datetime
import json
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import yaml

from amp_sweep import config, record
from amp_sweep.config import RunConfig
from amp_sweep.hardware import Hardware
from amp_sweep.lock import Lock
from amp_sweep.parallel import Plan
from amp_sweep.paths import RunPaths
from amp_sweep.record import Record
from amp_sweep.worker import Preparation, RankJob, prepare, run_rank

LOOPBACK = "127.0.0.1"
POLL_S = 0.05
# After the first rank has ended badly, or all were told to stop, the others get this long.
GRACE_S = 5.0

Report = Callable[[dict[str, Any]], None]


class Interrupts:
    """Counts Ctrl-C (and SIGTERM, SIGHUP) while the `with` block lasts; restores handlers after."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._count) for number in self.NUMBERS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _count(self, _number: int, _frame: object) -> None:
        self.count += 1


# ------------------------------------------------------------------ processes


def _prepare_process(cells: list[RunConfig], devices: set[str], answers: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def progress(what: str, done: int, total: int) -> None:
        answers.send((what, done, total))

    answers.send(prepare(cells, devices, progress))


def prepare_here(
    cells: list[RunConfig], devices: set[str], progress: Callable[[str, int, int], None]
) -> Preparation:
    """`worker.prepare` in a fresh process. Raises RuntimeError if that process dies."""
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_prepare_process, args=(cells, devices, sender), daemon=False)
    process.start()
    sender.close()
    try:
        while True:
            try:
                answer = receiver.recv()
            except EOFError:
                process.join()
                raise RuntimeError(
                    f"the preparing process ended with exit code {process.exitcode}; see above"
                ) from None
            if isinstance(answer, Preparation):
                return answer
            progress(*answer)
    finally:
        process.join(GRACE_S)
        if process.is_alive():
            process.kill()


# ------------------------------------------------------------------ the agent


def _register_loopback() -> None:
    """Make our one-machine rendezvous known to the elastic launcher.

    Its own stores listen on all interfaces; this one listens on the loopback only, on a port
    that the system chose.
    """
    from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
    from torch.distributed.elastic.rendezvous import (
        RendezvousHandler,
        RendezvousInfo,
        RendezvousParameters,
        RendezvousStoreInfo,
        rendezvous_handler_registry,
    )

    class Loopback(RendezvousHandler):
        def __init__(self, parameters: RendezvousParameters) -> None:
            self._run_id = parameters.run_id
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((LOOPBACK, 0))
            listener.listen(128)
            self._port = listener.getsockname()[1]
            self._store: Store = TCPStore(
                LOOPBACK,
                self._port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
                timeout=datetime.timedelta(seconds=60),
            )

        def get_backend(self) -> str:
            return "amp_sweep_loopback"

        @property
        def use_agent_store(self) -> bool:
            return True

        def next_rendezvous(self) -> RendezvousInfo:
            return RendezvousInfo(
                PrefixStore(self._run_id, self._store),
                rank=0,
                world_size=1,
                bootstrap_store_info=RendezvousStoreInfo(LOOPBACK, self._port),
            )

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None:
            pass

        def num_nodes_waiting(self) -> int:
            return 0

        def get_run_id(self) -> str:
            return self._run_id

        def shutdown(self) -> bool:
            return True

    with contextlib.suppress(ValueError):  # registered before
        rendezvous_handler_registry.register("amp_sweep_loopback", Loopback)


@contextlib.contextmanager
def _quiet_agent() -> Iterator[Path]:
    """Keep the agent's long messages off the terminal, its changes out of our environment."""
    before = dict(os.environ)
    logger = logging.getLogger("torch.distributed")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    with tempfile.TemporaryDirectory(prefix="amp_sweep_agent_") as folder:
        try:
            yield Path(folder)
        finally:
            logger.setLevel(level)
            for key in set(os.environ) - set(before):
                del os.environ[key]
            os.environ.update(before)


class Agent(threading.Thread):
    """The elastic agent of one cell, in a thread, so that it installs no signal handlers."""

    def __init__(self, job: RankJob, log_dir: Path) -> None:
        super().__init__(name="elastic agent", daemon=True)
        self._job = job
        self._log_dir = log_dir
        self.error: BaseException | None = None

    def run(self) -> None:
        """Start the ranks and wait for them."""
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        launch_config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=self._job.local_world_size,
            run_id=uuid.uuid4().hex,
            rdzv_backend="amp_sweep_loopback",
            rdzv_endpoint=f"{LOOPBACK}:0",
            local_addr=LOOPBACK,
            max_restarts=0,
            monitor_interval=POLL_S,
            start_method="forkserver",
            logs_specs=DefaultLogsSpecs(log_dir=str(self._log_dir)),
        )
        try:
            elastic_launch(launch_config, run_rank)(self._job)
        except BaseException as error:  # judged by `_judge`, with all that the ranks said
            self.error = error


# ------------------------------------------------------------------ one cell


@dataclass
class Watched:
    """What the watcher saw of the ranks of one cell."""

    endings: dict[int, dict[str, Any]] = field(default_factory=dict)
    exitcodes: dict[int, int | None] = field(default_factory=dict)
    stopped: bool = False  # we asked the ranks to save and stop
    stalled: bool = False  # no progress: we killed them


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _watch(
    agent: Agent,
    paths: RunPaths,
    ranks: int,
    stall_s: float,
    interrupts: Interrupts,
    report: Report,
) -> Watched:
    """Wait for the agent; pass progress on; end the ranks when one fails, stalls, or on Ctrl-C."""
    seen = Watched()
    processes: dict[int, BaseProcess] = {}
    last_sign, last_values = time.monotonic(), None
    deadline: float | None = None
    killed = False
    agent.start()
    while agent.is_alive():
        agent.join(POLL_S)
        for rank in range(ranks):
            ending = _read_json(paths.ending(rank))
            if ending is not None:
                seen.endings[rank] = ending
        pids = {rank: int(ending["pid"]) for rank, ending in seen.endings.items()}
        if len(pids) == ranks and not processes:
            # Held from now on for their exit codes: the agent reports only the first it notices.
            children = {child.pid: child for child in multiprocessing.active_children()}
            processes = {rank: children[pid] for rank, pid in pids.items() if pid in children}
        values = _read_json(paths.progress)
        if values is not None and values != last_values:
            last_sign, last_values = time.monotonic(), values
            report(values)

        ended = [r for r, e in seen.endings.items() if e["kind"] != record.RUNNING]
        vanished = [r for r, pid in pids.items() if r not in ended and not _runs(pid)]
        failed = [r for r in ended if "error" in seen.endings[r]] + vanished
        now = time.monotonic()
        if interrupts.count and not seen.stopped and pids:
            seen.stopped = True
            _signal(list(pids.values()), signal.SIGUSR1)
            deadline = now + GRACE_S
        if failed and deadline is None:
            deadline = now + GRACE_S
        if now - last_sign > stall_s and not killed:
            seen.stalled = True
        overdue = deadline is not None and now > deadline
        if (overdue or seen.stalled or interrupts.count > 1) and not killed:
            killed = True
            _signal(list(pids.values()), signal.SIGKILL)
    for rank in range(ranks):
        ending = _read_json(paths.ending(rank))
        if ending is not None:
            seen.endings[rank] = ending
        seen.exitcodes[rank] = processes[rank].exitcode if rank in processes else None
    return seen


def _how_it_died(code: int | None) -> str:
    if code is None:
        return "ended without a word"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"was killed by {name}"
    return f"ended without a word, with exit code {code}"


def _judge(seen: Watched, ranks: int, agent_error: BaseException | None) -> tuple[str, Any]:
    """The status of the cell, and its error, from what each rank said and how it ended."""
    kinds = {rank: seen.endings.get(rank, {}).get("kind") for rank in range(ranks)}
    if all(kind == record.COMPLETED for kind in kinds.values()):
        return record.COMPLETED, None
    said = [ending for ending in seen.endings.values() if "error" in ending]
    # A rank that is gone without a word died first: its neighbours lived to tell of it.
    silent = [rank for rank, kind in kinds.items() if kind in (None, record.RUNNING)]
    if seen.stopped:
        return record.INTERRUPTED, None
    if seen.stalled:
        message = "no progress within launch.stall_timeout_s; the ranks were ended"
        return record.TIMEOUT, {"type": "Stalled", "message": message, "traceback": None,
                                "rank": None, "exitcode": None}  # fmt: skip
    own = [ending for ending in said if not _is_echo(ending)]
    if silent and not own:
        rank = silent[0]
        code = seen.exitcodes.get(rank)
        message = f"rank {rank} {_how_it_died(code)}"
        if not seen.endings and agent_error is not None:
            message = f"the ranks did not start: {agent_error}"
        return record.FAILED, {"type": "RankDied", "message": message, "traceback": None,
                               "rank": rank, "exitcode": code}  # fmt: skip
    if said:
        first = min(own or said, key=lambda ending: float(ending["time"]))
        error = {**first["error"], "rank": first["rank"],
                 "exitcode": seen.exitcodes.get(first["rank"])}  # fmt: skip
        return first["kind"], error
    if all(kind in (record.COMPLETED, record.INTERRUPTED) for kind in kinds.values()):
        return record.INTERRUPTED, None
    message = str(agent_error) if agent_error else "the ranks ended without a result"
    return record.FAILED, {"type": "LaunchError", "message": message, "traceback": None,
                           "rank": None, "exitcode": None}  # fmt: skip


# What a rank says when another one has gone.
ECHOES = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "NCCL communicator was aborted",
    "remote process exited",
)


def _is_echo(ending: dict[str, Any]) -> bool:
    message = f"{ending['error'].get('type')}: {ending['error'].get('message')}"
    return any(echo in message for echo in ECHOES)


def _clear(paths: RunPaths, ranks: int) -> None:
    for rank in range(ranks):
        paths.ending(rank).unlink(missing_ok=True)
    paths.progress.unlink(missing_ok=True)


def _start_over(paths: RunPaths) -> None:
    """Remove what an earlier run of this cell left, so that nothing is mixed with it."""
    for folder in (paths.checkpoints, paths.tensorboard):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (paths.epochs, paths.steps, *paths.root.glob("*.log")):
        file.unlink(missing_ok=True)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def run_cell(
    settings: RunConfig,
    overrides: list[str],
    root: Path,
    plan: Plan,
    prepared: str,
    here: Preparation,
    interrupts: Interrupts,
    report: Report,
) -> Record:
    """Train one cell in fresh processes, in the run directory `root`; its final record.

    Raises lock.LockHeld when another process has it, and OSError when nothing can be written.
    """
    paths = RunPaths(root)
    root.mkdir(parents=True, exist_ok=True)
    with Lock(paths.lock):
        begun = time.time()
        earlier = _usable(paths)
        resume = (
            earlier is not None and earlier.status in record.RESUMED_AGAIN and not settings.force
        )
        current = record_for(settings, overrides)
        if resume and earlier is not None:
            current.segments, current.notes = earlier.segments, earlier.notes
            current.epochs = earlier.epochs
        else:
            _start_over(paths)
        current.status = record.RUNNING
        hardware = here.hardware[settings.device]
        current.environment = dict(here.environments[settings.device])
        current.segments.append(
            {
                "started_at": _now(),
                "ended_at": None,
                "from_epoch": None,
                "to_epoch": None,
                "device": hardware.device_names[0],
                "torch": current.environment["torch"],
            }
        )
        config.save(settings, paths.config)
        record.write_atomic(paths.overrides, yaml.safe_dump(list(overrides)))
        _clear(paths, plan.world_size)
        record.write(paths.record, current)

        job = RankJob(
            run_dir=str(root),
            prepared=prepared,
            plan=plan,
            launched_at=begun,
            local_world_size=plan.world_size,
            host=LOOPBACK,
            resume=resume,
        )
        _register_loopback()
        with _quiet_agent() as folder:
            agent = Agent(job, folder)
            stall_s = settings.launch.stall_timeout_s
            seen = _watch(agent, paths, plan.world_size, stall_s, interrupts, report)
        status, error = _judge(seen, plan.world_size, agent.error)
        return _conclude(paths, status, error, plan.world_size, hardware, time.time() - begun)


def _usable(paths: RunPaths) -> Record | None:
    try:
        return record.read_if_there(paths.record)
    except record.RecordError:
        return None  # a half-written record is not a completed one


def _conclude(
    paths: RunPaths, status: str, error: Any, ranks: int, hardware: Hardware, seconds: float
) -> Record:
    """Write the ending into the record, which rank 0 has kept until now, and tidy up."""
    final = record.read(paths.record)
    final.status, final.error = status, error
    final.effective["native_bf16"] = hardware.native_bf16
    segment = final.segments[-1]
    segment["ended_at"] = _now()
    segment["wall_s"] = seconds
    segment["to_epoch"] = len(final.epochs)
    final.metrics["wall_time_s"] = sum(s.get("wall_s") or 0.0 for s in final.segments)
    record.write(paths.record, final)
    _clear(paths, ranks)
    if status == record.COMPLETED:
        paths.last_checkpoint.unlink(missing_ok=True)
        paths.previous_checkpoint.unlink(missing_ok=True)
    return final


def record_for(settings: RunConfig, overrides: list[str]) -> Record:
    """A new record of a cell that was asked for."""
    return Record(
        name=settings.name,
        fingerprint=config.fingerprint(settings),
        status=record.PENDING,
        cell={
            "model": settings.model.name,
            "data": settings.data.name,
            "parallel": settings.parallel.name,
            "precision": settings.precision.name,
            "seed": settings.seed,
        },
        overrides=list(overrides),
        config=config.to_dict(settings),
    )
