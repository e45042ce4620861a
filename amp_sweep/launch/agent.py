"""PyTorch's elastic agent for one cell: a process of its own, on the loopback where it can be."""

import contextlib
import datetime
import logging
import multiprocessing
import os
import signal
import socket
import threading
import uuid
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from amp_sweep import forkserver
from amp_sweep.launch.judge import how_it_died
from amp_sweep.launch.nodes import ALONE, Node
from amp_sweep.messages import RankJob

BACKEND = "amp_sweep"
MONITOR_S = 0.05
JOIN_TIMEOUT_S = 60
# An agent that is told to end gets this long.
GRACE_S = 5.0
# PyTorch's messages repeat every rank's traceback.
MESSAGE_CHARS = 2000


def _register_rendezvous() -> None:
    """Make our rendezvous known to the elastic launcher.

    PyTorch's own store listens on all interfaces even for one machine, and numbers the nodes as
    they come; in this one the first node listens on a port that the system chose, on the loopback
    where it is alone, and the nodes keep their numbers.
    """
    from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
    from torch.distributed.elastic.rendezvous import (
        RendezvousHandler,
        RendezvousInfo,
        RendezvousParameters,
        RendezvousStoreInfo,
        rendezvous_handler_registry,
    )

    class Rendezvous(RendezvousHandler):
        def __init__(self, parameters: RendezvousParameters) -> None:
            self._run_id = parameters.run_id
            self._index = int(parameters.get("index"))
            self._count = int(parameters.get("count"))
            host, _, port = parameters.endpoint.rpartition(":")
            self._host, self._port = host, int(port)
            listening: dict[str, int] = {}
            if self._index == 0:
                listening["master_listen_fd"] = int(parameters.get("listener"))
            self._store: Store = TCPStore(
                self._host,
                self._port,
                is_master=self._index == 0,
                wait_for_workers=False,
                timeout=datetime.timedelta(seconds=JOIN_TIMEOUT_S),
                **listening,  # type: ignore[arg-type]
            )

        def get_backend(self) -> str:
            return BACKEND

        @property
        def use_agent_store(self) -> bool:
            return True

        def next_rendezvous(self) -> RendezvousInfo:
            return RendezvousInfo(
                PrefixStore(self._run_id, self._store),
                rank=self._index,
                world_size=self._count,
                bootstrap_store_info=RendezvousStoreInfo(self._host, self._port),
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
        rendezvous_handler_registry.register(BACKEND, Rendezvous)


def _elastic(
    job: RankJob, log_dir: Path, node: Node, run_id: str, port: int, listener: int
) -> None:
    """Start this node's ranks and wait for them. Raises what the launcher raises."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from amp_sweep.worker import run_rank

    launch_config = LaunchConfig(
        min_nodes=node.count,
        max_nodes=node.count,
        nproc_per_node=job.local_world_size,
        run_id=run_id,
        rdzv_backend=BACKEND,
        rdzv_endpoint=f"{job.host}:{port}",
        rdzv_configs={"index": node.index, "count": node.count, "listener": listener},
        local_addr=node.host,
        max_restarts=0,
        monitor_interval=MONITOR_S,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(log_dir)),
    )
    elastic_launch(launch_config, run_rank)(job, os.getpid())


def _agent_process(
    job: RankJob,
    log_dir: Path,
    node: Node,
    run_id: str,
    port: int,
    listener: socket.socket | None,
    launcher: Connection,
    launcher_pid: int,
    key: bytes | None,
) -> None:
    """Run the agent in a thread, where it installs no signal handlers; say how ranks ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's reaches the whole group
    forkserver.die_with(launcher_pid)
    forkserver.share(key)
    for name in ("torch.distributed", "torch.multiprocessing"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # long, and not for a person
    _register_rendezvous()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            handle = -1 if listener is None else listener.detach()
            _elastic(job, log_dir, node, run_id, port, handle)
        except BaseException as error:  # judged by `judge`, with all that the ranks said
            errors.append(error)

    thread = threading.Thread(target=run, name="elastic agent", daemon=True)
    thread.start()
    ranks: dict[int | None, BaseProcess] = {}
    while thread.is_alive() and not launcher.poll(MONITOR_S):
        # Held for their exit codes: the agent reports only the first that it notices.
        if len(ranks) < job.local_world_size:
            ranks |= {child.pid: child for child in multiprocessing.active_children()}
    codes = {pid: process.exitcode for pid, process in ranks.items()}
    launcher.send((codes, str(errors[0])[:MESSAGE_CHARS] if errors else None))


class Agent:
    """PyTorch's elastic agent of a node, in a process forked from the server that forks ranks.

    The first node's listens on `port` from its making on; the others' are given that port.
    """

    def __init__(
        self, job: RankJob, log_dir: Path, node: Node = ALONE, run_id: str = "", port: int = 0
    ) -> None:
        self.run_id = run_id or uuid.uuid4().hex
        self.port = port
        self.exitcodes: dict[int, int | None] = {}  # of this node's ranks, by process id
        self.error: str | None = None
        self.lost = False  # it ended without an answer
        self._listener: socket.socket | None = None
        if node.index == 0:
            self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((job.host if node.count == 1 else "", 0))
            self._listener.listen(128)
            self.port = self._listener.getsockname()[1]
        context = multiprocessing.get_context("forkserver")
        self._answers, self._theirs = context.Pipe()
        self._process = context.Process(
            name="elastic agent",
            target=_agent_process,
            args=(
                *(job, log_dir, node, self.run_id, self.port, self._listener, self._theirs),
                *(os.getpid(), forkserver.key()),
            ),
        )

    def start(self) -> None:
        """Start this node's ranks."""
        self._process.start()
        self._theirs.close()
        if self._listener is not None:
            self._listener.close()

    def runs(self, wait_s: float) -> bool:
        """Whether it still waits for ranks, after at most `wait_s` seconds."""
        if not self._answers.poll(wait_s):
            return True
        try:
            self.exitcodes, self.error = self._answers.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            self.lost = True
            self.error = f"the process that starts the ranks {how_it_died(self._process.exitcode)}"
        return False

    def end(self) -> None:
        """End it though it still waits; `exitcodes` has what is known."""
        with contextlib.suppress(BrokenPipeError):
            self._answers.send(None)
        self.runs(GRACE_S)

    def close(self) -> None:
        """Leave nothing of it."""
        if self._process.pid is not None:
            self._process.kill()
            self._process.join()
        self._process.close()
        self._answers.close()
        self._theirs.close()
        if self._listener is not None:
            self._listener.close()
