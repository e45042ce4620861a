"""A real SLURM cluster for the tests of a session: three nodes on this machine, fake GPUs."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import CommandLine

SCRIPT = Path(__file__).with_name("cluster.sh")
NETS = Path(__file__).with_name("nets.py")
NEEDED = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "unshare")
SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

# AlexNet is slow where ten jobs share two cores: a small network of the tests' own.
TINY = (
    "device=cpu",
    "model.name=nets:Net",
    "data.image_size=16",
    "data.batch_size=48",
    "track=none",
)


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
        "SLURM_TEST_PORT": str(free_ports(4)),
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
        plain = make_command_line(folder)
        shutil.copy(NETS, folder / "nets.py")
        names = ("PATH", "SLURM_CONF")
        more = {name: cluster.environment[name] for name in names}
        kept = {k: v for k, v in plain.environment.items() if not k.startswith("SLURM_")}
        return CommandLine(folder, {**kept, **more})

    return make


@pytest.fixture
def submitting(tmp_path: Path, make_submitting: Callable[[Path], CommandLine]) -> CommandLine:
    """The command line in an empty folder, on a machine with SLURM."""
    return make_submitting(tmp_path)


def with_environment(command: CommandLine, **variables: str) -> CommandLine:
    return CommandLine(command.folder, {**command.environment, **variables})


def wait_for(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
