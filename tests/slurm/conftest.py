"""A real SLURM cluster for the tests of a session: four nodes on this machine, fake GPUs."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch

from amp_sweep import record
from tests.conftest import CommandLine, Run, wait_for

SCRIPT = Path(__file__).with_name("cluster.sh")
NEEDED = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "unshare")
SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

# AlexNet is slow where ten jobs share two cores: a small network of the tests' own.
PROBED = (
    "device=cpu",
    "model.name=faults:Net",
    "data.image_size=16",
    "data.batch_size=48",
    "track=none",
)
TINY = (*PROBED, "measure.probes=false")
# What is left is the start of Python and PyTorch.
TINIEST = ("epochs=1", "data.train_images=96", "data.test_images=48", *TINY)
SLURM = ("-m", "hydra/launcher=slurm")
# The digits give 29 steps of 48 images an epoch.
SLOW_CELL = ("parallel=ddp", "epochs=3", *TINY)


@dataclass(frozen=True)
class Cluster:
    """A running cluster, and what it says."""

    environment: dict[str, str]

    def __call__(self, *command: str) -> str:
        """What a command of SLURM prints. Raises CalledProcessError when it fails."""
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    def states(self, job: str) -> list[str]:
        """The states of a job or of the members of an array."""
        return self("squeue", "-h", "-r", "-t", "all", "-j", job, "-o", "%T").split()

    def script(self, *arguments: str) -> None:
        # Its daemons keep the output open, so it must not be a pipe.
        done = subprocess.run(
            [str(SCRIPT), *arguments],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, arguments


def why_not() -> str | None:
    if os.geteuid() != 0:
        return "starting a SLURM cluster needs root"
    missing = [name for name in NEEDED if shutil.which(name, path=SYSTEM_PATH) is None]
    if missing:
        return f"no {', '.join(missing)}: apt-get install slurm-wlm munge"
    if subprocess.run(["unshare", "-mu", "true"], capture_output=True, check=False).returncode:
        return "this machine does not allow namespaces (unshare)"
    return None


def free_ports(count: int) -> int:
    """The first of `count` ports in a row that nobody listens on."""
    for first in range(26817, 60000, 50):
        try:
            for port in range(first, first + count):
                with socket.socket() as listener:
                    listener.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise RuntimeError("no free ports")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    root = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: sockets have short names
    root.chmod(0o755)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SUBMITIT_"))},
        "PATH": SYSTEM_PATH,
        "SLURM_CONF": str(root / "slurm.conf"),
        "SLURM_TEST_ROOT": str(root),
        "SLURM_TEST_PORT": str(free_ports(5)),
    }
    here = Cluster(environment)
    here.script("up")
    try:
        yield here
    finally:
        here.script("down")
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def make_submitting(
    cluster: Cluster, make_command_line: Callable[[Path], CommandLine]
) -> Callable[[Path], CommandLine]:
    def make(folder: Path) -> CommandLine:
        plain = make_command_line(folder).with_faults()
        names = ("PATH", "SLURM_CONF")
        more = {name: cluster.environment[name] for name in names}
        kept = {k: v for k, v in plain.environment.items() if not k.startswith("SLURM_")}
        return CommandLine(folder, {**kept, **more})

    return make


@pytest.fixture
def submitting(tmp_path: Path, make_submitting: Callable[[Path], CommandLine]) -> CommandLine:
    """The command line in an empty folder, on a machine with SLURM."""
    return make_submitting(tmp_path)


def job_id(command: CommandLine) -> str:
    return str(command.only_record().environment["slurm_job_ids"][-1])


def is_training(command: CommandLine) -> bool:
    found = list(command.records().values())
    under_way = bool(list(command.folder.glob("outputs/*/*/progress.json")))
    return bool(found) and found[0].status == record.RUNNING and under_way


def epochs_done(command: CommandLine) -> int:
    found = list(command.records().values())
    return len(found[0].epochs) if found else 0


@pytest.fixture(scope="session")
def uninterrupted(
    tmp_path_factory: pytest.TempPathFactory, make_submitting: Callable[[Path], CommandLine]
) -> CommandLine:
    """SLOW_CELL, trained here without interruption and without SLURM."""
    command = make_submitting(tmp_path_factory.mktemp("whole"))
    # The cores that a job is given decide over threads, and so over the last bits.
    run = command.with_environment(SLURM_CPUS_PER_TASK="2").train(*SLOW_CELL)
    assert run.code == 0, run.text
    return command


def assert_same_weights(command: CommandLine, uninterrupted: CommandLine) -> None:
    whole, resumed = uninterrupted.final_weights(), command.final_weights()
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)


def detached(command: CommandLine, *overrides: str, slow: str = "0.1") -> str:
    """Submit without waiting; what was printed."""
    run = command.with_environment(SLOW=slow).train(*SLURM, "launch.wait=false", *overrides)
    assert run.code == 0, run.text
    return run.out


def processes_of(job: str, name: str = "python") -> list[int]:
    """Processes of a job by name: they have its id in their environment, or in their title."""
    found = []
    for process in psutil.process_iter():
        try:
            in_title = f"[{job}." in " ".join(process.cmdline())
            its_own = process.environ().get("SLURM_JOB_ID") == job or in_title
            if its_own and name in process.name():
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def preempt(cluster: Cluster, command: CommandLine) -> str:
    """Push a cell out of its node by an urgent job, and wait for its end; the cell's job."""
    detached(command, *SLOW_CELL, "hydra.launcher.partition=spare", "hydra.launcher.timeout_min=60")
    wait_for(lambda: epochs_done(command) >= 1, 120)
    job = job_id(command)
    urgent = ("srun", "-p", "urgent", "--exclusive", "sleep", "1")
    assert subprocess.run(urgent, env=cluster.environment, timeout=60, check=False).returncode == 0
    wait_for(lambda: command.only_record().status == record.COMPLETED, 120)
    return job


def stop_node(cluster: Cluster, command: CommandLine) -> Run:
    """Take the node away from under a cell, give it back, and wait; what the command printed."""
    overrides = ("hydra.launcher.partition=fragile", "checkpoint.every_steps=5")
    process = command.with_environment(SLOW="0.1").popen(*SLURM, *SLOW_CELL, *overrides)
    wait_for(lambda: epochs_done(command) >= 1, 120)
    job = job_id(command)
    cluster.script("stop-node", "n4")
    for pid in [*processes_of(job, "slurmstepd"), *processes_of(job)]:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: "down" in cluster("sinfo", "-h", "-n", "n4", "-o", "%T"), 40)
    cluster.script("start-node", "n4")
    out, _ = process.communicate(timeout=90)
    return Run(process.returncode, out, "")


# Of the array in the background, with two cells each. A cell costs some seconds of a core.
ARRAY_SEEDS = 25


class Background:
    """What runs beside the other tests: an array, short time limits, a node that is stopped, ..."""

    def __init__(self, cluster: Cluster, make: Callable[[Path], CommandLine], root: Path) -> None:
        self.folder = root / "array"
        self.folder.mkdir()
        self._log = self.folder / "submitting.log"
        with self._log.open("w") as log:
            # From inside a job, whose SLURM_* must not leak into those that it submits.
            self.array = subprocess.Popen(
                ["srun", "--quiet", "-n1", sys.executable, "-m", "amp_sweep.train", *SLURM,
                 f"seed=range({ARRAY_SEEDS})", "precision=fp32,autocast", *TINIEST,
                 "hydra.launcher.name=many", "hydra.launcher.array_parallelism=3"],
                cwd=self.folder, env=make(self.folder).environment, stdout=log, stderr=log,
            )  # fmt: skip
        self._most = 0
        self._cluster = cluster
        threading.Thread(target=self._count, daemon=True).start()
        self.requeued = self._limited(make, root / "requeued", requeues=10)
        self.without_requeue = self._limited(make, root / "without", requeues=0)
        self._threads = ThreadPoolExecutor(2)
        self.commands = {
            name: self._command(make, root / name) for name in ("preempted", "stopped")
        }
        self.preempted = self._threads.submit(preempt, cluster, self.commands["preempted"])
        self.stopped = self._threads.submit(stop_node, cluster, self.commands["stopped"])

    @staticmethod
    def _command(make: Callable[[Path], CommandLine], folder: Path) -> CommandLine:
        folder.mkdir()
        return make(folder)

    def _limited(
        self, make: Callable[[Path], CommandLine], folder: Path, requeues: int
    ) -> CommandLine:
        command = self._command(make, folder)
        limits = (
            "hydra.launcher.timeout_min=2",  # SLURM may warn a minute early
            "hydra.launcher.signal_delay_s=60",
            f"hydra.launcher.max_num_timeout={requeues}",
        )
        detached(command, *SLOW_CELL, *limits, slow="1")
        return command

    def _count(self) -> None:
        while self.array.poll() is None:
            running = self._cluster("squeue", "-h", "-n", "many", "-t", "RUNNING").splitlines()
            self._most = max(self._most, len(running))
            time.sleep(1.0)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def end_of_array(self) -> tuple[str, int]:
        """What the submitting command printed, and how many of its jobs ran at once."""
        self.array.wait(280)
        return self._log.read_text(), self._most


@pytest.fixture(scope="session", autouse=True)
def background(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Background | None]:
    """Started with the first test where the tests that wait for it are asked for."""
    if not any(item.path.name == "test_waiting.py" for item in request.session.items):
        yield None
        return
    cluster = request.getfixturevalue("cluster")
    make = request.getfixturevalue("make_submitting")
    running = Background(cluster, make, tmp_path_factory.mktemp("background"))
    yield running
    running.array.kill()
    running.close()
