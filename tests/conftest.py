"""What all tests share: a cache and a working directory of their own, and the command line."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from amp_sweep import record
from amp_sweep.record import Record

if TYPE_CHECKING:
    import torch

REPOSITORY = Path(__file__).parents[1]
FAULTS = Path(__file__).with_name("faults.py")


# Threads that wait shall sleep, as two workers and their commands share the processors: before
# PyTorch is imported, which reads it once.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The longest first, so that no worker is left alone with them at the end.
LONGEST = ("tests/slurm/", "tests/integration/test_faults.py")


def pytest_configure() -> None:
    """Commands under test get Ctrl-C, though a shell's background (`make test &`) ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        names = [name for name in LONGEST if item.nodeid.startswith(name)]
        return LONGEST.index(names[0]) if names else len(LONGEST)

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several workers, one of them gets all tests of a file, one all those on SLURM."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "tests/slurm/" if file.startswith("tests/slurm/") else file

    return ByFile(config, log)


def wait_for(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Return when `condition` holds; fail when it has not after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def python_path(first: Path) -> str:
    """PYTHONPATH for a child: `first`, then what ours names, as packages may lie there."""
    return os.pathsep.join(filter(None, (str(first), os.environ.get("PYTHONPATH"))))


@dataclass(frozen=True)
class Run:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


@dataclass(frozen=True)
class CommandLine:
    """Runs our commands in `folder`, as a person would."""

    folder: Path
    environment: dict[str, str]

    def __call__(self, module: str, *arguments: str, timeout: float = 240) -> Run:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Run(done.returncode, done.stdout, done.stderr)

    def with_environment(self, **variables: str) -> "CommandLine":
        return replace(self, environment={**self.environment, **variables})

    def with_devices(self) -> "CommandLine":
        """The same, on the CUDA devices that the tests themselves see."""
        name = "CUDA_VISIBLE_DEVICES"
        environment = {key: value for key, value in self.environment.items() if key != name}
        if name in os.environ:
            environment[name] = os.environ[name]
        return replace(self, environment=environment)

    def with_faults(self) -> "CommandLine":
        """The same, where `model.name=faults:Net` is a network that fails as it is told."""
        shutil.copy(FAULTS, self.folder / FAULTS.name)
        return self

    def train(self, *overrides: str, timeout: float = 240) -> Run:
        return self("amp_sweep.train", *overrides, timeout=timeout)

    def popen(self, *overrides: str, prefix: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
        """A training command in a process group of its own, still running."""
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", "amp_sweep.train", *overrides],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def records(self, name: str = "matrix") -> dict[str, Record]:
        """Records of a sweep by `parallel-precision-sSEED`."""
        found = (record.read(path) for path in record.find(self.folder / "outputs" / name))
        return {f"{r.cell['parallel']}-{r.cell['precision']}-s{r.cell['seed']}": r for r in found}

    def only_record(self, name: str = "matrix") -> Record:
        """The record of a sweep of one cell."""
        (found,) = self.records(name).values()
        return found

    def final_weights(self, name: str = "matrix", start: str = "") -> "dict[str, torch.Tensor]":
        """What a sweep's only cell, or the one whose directory begins with `start`, has learnt."""
        import torch  # late: many tests need none

        (path,) = self.folder.glob(f"outputs/{name}/{start}*/checkpoints/final.pt")
        state: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["weights"]
        return state

    def run_dir(self, start: str, name: str = "matrix") -> Path:
        """The only run directory of a sweep whose name begins with `start`."""
        (found,) = (self.folder / "outputs" / name).glob(f"{start}-*")
        return found


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data cache for all tests of a session."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def make_command_line(cache: Path) -> Callable[[Path], CommandLine]:
    environment = {
        **os.environ,
        "AMP_SWEEP_CACHE": str(cache),
        "CUDA_VISIBLE_DEVICES": "",  # the same on every machine; see `with_devices`
        "PYTHONPATH": python_path(REPOSITORY),
        "COLUMNS": "160",
    }
    environment.pop("RANK", None)
    return lambda folder: CommandLine(folder, environment)


@pytest.fixture
def command(
    tmp_path: Path, make_command_line: Callable[[Path], CommandLine]
) -> Iterator[CommandLine]:
    """The command line in an empty folder."""
    yield make_command_line(tmp_path)
