"""What all tests share: a cache and a working directory of their own, and the command line."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from amp_sweep import record
from amp_sweep.record import Record

REPOSITORY = Path(__file__).parents[1]


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
        "CUDA_VISIBLE_DEVICES": "",  # the same on every machine
        "PYTHONPATH": str(REPOSITORY),
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
