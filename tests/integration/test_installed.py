"""What is built runs without the repository."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, CommandLine, python_path

pytestmark = pytest.mark.slow

TWO_CELLS = ("parallel=none,ddp", "model.width=0.1", "data.train_images=64", "epochs=1")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(out)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_the_configuration_and_no_tests_or_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    conf = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "conf").rglob("*.yaml")}
    assert {f"amp_sweep/{name}" for name in conf} <= set(names)
    assert {f"analysis/assets/report.{kind}" for kind in ("html.jinja", "css", "js")} <= set(names)
    assert "hydra_plugins/amp_sweep/sweeper.py" in names
    assert "hydra_plugins/__init__.py" not in names  # a namespace that others share
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"amp_sweep", "analysis", "hydra_plugins"}


def test_the_installed_wheel_runs_a_sweep_from_an_empty_folder(
    wheel: Path, command: CommandLine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = tmp_path_factory.mktemp("site")
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(site),
    ]
    subprocess.run([*install, str(wheel)], check=True)
    installed = command.with_environment(PYTHONPATH=python_path(site))
    where = installed("amp_sweep.train", "--info", "searchpath")
    assert str(site / "amp_sweep" / "conf") in where.out, where.text
    run = installed.train("-m", *TWO_CELLS)
    assert run.code == 0, run.text
    assert "2 of 2 cells completed" in run.out
    assert str(REPOSITORY) not in run.text


def test_options_and_overrides_may_come_in_any_order(command: CommandLine) -> None:
    run = command.train("parallel=none,ddp", "-m", "plan=true", "epochs=1")
    assert run.code == 0, run.text
    # Before these, the data are prepared, unless another test has done that.
    assert sum(" run " in line for line in run.out.splitlines()) == 2


def test_tab_completion_can_be_installed(command: CommandLine) -> None:
    run = command.train("-sc", "install=bash")
    assert run.code == 0, run.text
    assert "complete" in run.out


def test_hydras_own_sweeper_and_launcher_give_the_same_records(command: CommandLine) -> None:
    run = command.train("-m", "hydra/sweeper=basic", *TWO_CELLS)
    assert run.code == 0, run.text
    records = command.records()
    assert {item.status for item in records.values()} == {"completed"}
    assert sorted(records) == ["ddp-fp32-s0", "none-fp32-s0"]
