"""Commands whose standard streams are closed, as some daemons start them, or that nobody reads."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from amp_sweep import record
from tests.conftest import REPOSITORY, CommandLine

SMALL = ("data=synthetic", "data.train_images=64", "data.test_images=16", "epochs=1",
         "model.width=0.0625", "measure.probes=false")  # fmt: skip
CLOSED = 'exec "$@" >&-'

NUMBERS = """
import subprocess, sys
from pathlib import Path
from amp_sweep import streams

streams.open_missing()
print("lost", file=sys.stderr)
with open("told", "w") as told:
    code = subprocess.run([sys.executable, "-c", "print(end=chr(10), flush=True)"]).returncode
    print(*(stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)), code, file=told)
    assert told.fileno() > 2
"""


@pytest.mark.parametrize(
    "how", [CLOSED, 'exec "$@" 2>&-', 'exec "$@" <&-', 'exec "$@" <&- >&- 2>&-']
)
def test_each_closed_stream_gets_its_own_number(tmp_path: Path, how: str) -> None:
    subprocess.run(
        ["sh", "-c", how, "sh", sys.executable, "-c", NUMBERS],
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY)},
    )
    assert (tmp_path / "told").read_text() == "0 1 2 0\n"


def without_output(command: CommandLine, module: str, *arguments: str) -> tuple[int, str]:
    """The exit code of a command with its output closed, and what came on standard error."""
    done = subprocess.run(
        ["sh", "-c", CLOSED, "sh", sys.executable, "-m", module, *arguments],
        cwd=command.folder,
        env=command.environment,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("option", ["--help", "--cfg=job"])
def test_settings_that_nobody_reads_to_their_end_are_told_in_silence(
    command: CommandLine, option: str
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "amp_sweep.train", option],
        cwd=command.folder,
        env=command.environment,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


@pytest.mark.slow
def test_every_command_does_its_work_in_silence(command: CommandLine) -> None:
    assert without_output(command, "amp_sweep.train", *SMALL, "plan=true") == (0, "")
    assert without_output(command, "amp_sweep.train", *SMALL) == (0, "")
    assert command.only_record().status == record.COMPLETED
    table = command.folder / "outputs/matrix/tables/comparison.md"
    assert table.is_file()
    table.unlink()
    for module in ("amp_sweep.evaluate", "amp_sweep.status", "amp_sweep.explain", "analysis"):
        assert without_output(command, module, "outputs/matrix") == (0, ""), module
    assert table.is_file()
