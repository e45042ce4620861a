"""Ctrl-C at any moment: a line for a person, exit code 130, and nothing left behind."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import tomllib

import psutil
import pytest

from amp_sweep import config, record
from amp_sweep.paths import RunPaths
from amp_sweep.record import Record
from tests.conftest import REPOSITORY, CommandLine, wait_for
from tests.processes import group_members, wait_for_end_of_group
from tests.unit.conftest import make_config

FAULTY = ("model.name=faults:Net", "data.image_size=16", "data.batch_size=48", "epochs=3",
          "measure.probes=false")  # fmt: skip


def is_running(group: int, command: str) -> bool:
    """Whether a process of the group has `command` in its command line."""
    found = []
    for member in group_members(group):
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(member.cmdline()))
    return any(command in line for line in found)


# From the imports of the launcher through those of the server to the look at the machine.
@pytest.mark.parametrize("delay_s", [0.3, 0.8, 1.5, 2.2, 3.0])
@pytest.mark.parametrize("multirun", [(), ("-m",)], ids=["one cell", "sweep"])
def test_ctrl_c_before_the_first_cell_leaves_one_line_and_nothing_else(
    command: CommandLine, delay_s: float, multirun: tuple[str, ...]
) -> None:
    # On a fast machine, too, no cell has begun by then.
    (command.folder / "slow.py").write_text("import time\ntime.sleep(60)\n")
    process = command.popen(*multirun, "parallel=ddp", "model.name=slow:Net", "epochs=1")
    time.sleep(delay_s)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert re.fullmatch("interrupted( before any cell started)?\n", out)
    wait_for_end_of_group(process.pid)
    assert not (command.folder / "outputs").exists()


def test_ctrl_c_while_the_network_is_looked_at_does_not_wait_for_it(command: CommandLine) -> None:
    text = "import pathlib, time\npathlib.Path('reached').touch()\ntime.sleep(60)\n"
    (command.folder / "slow.py").write_text(text)
    process = command.popen("model.name=slow:Net", "epochs=1")
    wait_for(lambda: (command.folder / "reached").exists())
    started = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert time.monotonic() - started < 5
    assert process.returncode == 130
    assert out.endswith("interrupted before any cell started\n") and "Traceback" not in out
    wait_for_end_of_group(process.pid)


def test_a_ctrl_c_while_the_closing_table_is_made_ends_quietly(command: CommandLine) -> None:
    process = command.with_faults().with_environment(SLOW="0.05").popen(*FAULTY)
    wait_for(lambda: list(command.folder.glob("outputs/*/*/progress.json")))
    os.killpg(process.pid, signal.SIGINT)
    wait_for(lambda: is_running(process.pid, "-m analysis"))
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in out
    assert out.endswith("interrupted; the same command goes on from here\n")
    assert command.only_record().status == record.INTERRUPTED
    wait_for_end_of_group(process.pid)


def start(command: CommandLine, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *arguments, str(command.folder)],
        cwd=command.folder,
        env=command.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def assert_ends_quietly(process: "subprocess.Popen[str]") -> None:
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "interrupted\n")


def scripts() -> dict[str, str]:
    """The console scripts: name -> `module:function`."""
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    found: dict[str, str] = tomllib.loads(text)["project"]["scripts"]
    return found


# The first package of another's that a command imports, and that takes long.
HEAVY = {
    "train": "hydra",
    "evaluate": "torch",
    "status": "rich",
    "explain": "rich",
    "report": "pandas",
}
SLEEPS = "import pathlib, time\npathlib.Path('reached').touch()\ntime.sleep(60)\n"


def test_every_console_script_is_known_here() -> None:
    assert set(scripts()) == {f"amp-sweep-{name}" for name in HEAVY}


@pytest.mark.parametrize("name", HEAVY)
@pytest.mark.parametrize("how", ["python -m", "console script"])
def test_ctrl_c_in_the_imports_of_a_command_ends_quietly(
    command: CommandLine, name: str, how: str
) -> None:
    (command.folder / f"{HEAVY[name]}.py").write_text(SLEEPS)  # found first
    if how == "python -m":
        process = start(command, "-m", "analysis" if name == "report" else f"amp_sweep.{name}")
    else:
        module, _, function = scripts()[f"amp-sweep-{name}"].partition(":")
        text = f"import sys; from {module} import {function}; sys.exit({function}())"
        process = start(command, "-c", text)  # as pip writes it
    wait_for(lambda: (command.folder / "reached").exists())
    assert_ends_quietly(process)


@pytest.mark.parametrize("module", ["evaluate", "status"])
def test_ctrl_c_in_the_work_of_a_command_ends_quietly(command: CommandLine, module: str) -> None:
    (command.folder / "slow.py").write_text(SLEEPS)
    paths = RunPaths(command.folder)
    settings = config.to_dict(make_config(data__name="slow:Data"))
    record.write(paths.record, Record("m", "0", record.PENDING, {}, [], settings))
    paths.checkpoints.mkdir()
    paths.final_weights.touch()
    paths.job.write_text('{"job_id": "12"}')
    asked = command.folder / "bin" / "squeue"
    asked.parent.mkdir()
    asked.write_text("#!/bin/sh\ntouch reached\nexec sleep 60\n")
    asked.chmod(0o755)
    search = f"{asked.parent}:{os.environ['PATH']}"
    process = start(command.with_environment(PATH=search), "-m", f"amp_sweep.{module}")
    wait_for(lambda: (command.folder / "reached").exists())
    assert_ends_quietly(process)


def test_evaluate_says_what_to_do_about_an_interrupted_run(command: CommandLine) -> None:
    process = command.with_faults().with_environment(SLOW="0.02").popen(*FAULTY)
    wait_for(lambda: list(command.folder.glob("outputs/*/*/checkpoints/best.pt")))
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert out.endswith("interrupted; the same command goes on from here\n")
    folder = str(command.run_dir("none"))
    missing = command("amp_sweep.evaluate", folder)
    assert missing.code == 1
    assert missing.err.endswith(
        "final.pt: not there (the run is interrupted): the same training command goes on; "
        "--which best for the best weights so far\n"
    )
    assert command("amp_sweep.evaluate", "--which", "best", folder).code == 0
