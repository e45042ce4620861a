"""Records that were edited by hand or damaged: a line that names them, and the others are told."""

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CommandLine


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, make_command_line: Callable[[Path], CommandLine]
) -> CommandLine:
    command = make_command_line(tmp_path_factory.mktemp("trained"))
    run = command.train("parallel=none", "model.width=0.1", "epochs=1", "measure.probes=false")
    assert run.code == 0, run.text
    return command


MISSING = object()

# Where, what stands there then, and what must be said about it.
DAMAGE: list[tuple[tuple[Any, ...], Any, str]] = [
    (("config", "model", "width"), "x", "config.model.width has type str"),
    (("config", "model", "outputs"), [], "config.model.outputs has type list"),
    (("config", "model", "name"), -5, "config.model.name has type int"),
    (("config", "model", "dropout"), -5, "model.dropout=-5: must be at least 0"),
    (("config", "data", "image_size"), True, "config.data.image_size has type bool"),
    (("config", "data", "pipeline"), "x", "data.pipeline=x"),
    (("config", "data", "batch_size"), -5, "data.batch_size=-5: must be at least 1"),
    (("config", "data", "batch_size"), None, "config.data.batch_size has type NoneType"),
    (("config", "precision", "dtype"), {}, "config.precision.dtype has type dict"),
    (("config", "precision"), "x", "must be a mapping"),
    (("config",), MISSING, "no field 'config'"),
    (("effective", "threads"), "x", "effective.threads is 'x'"),
    (("effective", "threads"), -5, "effective.threads is -5"),
    (("epochs", 0, "test_accuracy"), MISSING, "the test_accuracy of epoch 1 is None"),
    (("epochs", 0, "test_accuracy"), [], "the test_accuracy of epoch 1 is []"),
    (("fingerprint",), "x", "belongs to another configuration"),
]


def damaged(source: Path, target: Path, at: tuple[Any, ...], value: Any) -> Path:
    """A copy of a run whose record has `value` at one place."""
    shutil.copytree(source, target)
    found = json.loads((target / "record.json").read_text())
    place = found
    for name in at[:-1]:
        place = place[name]
    if value is MISSING:
        del place[at[-1]]
    else:
        place[at[-1]] = value
    (target / "record.json").write_text(json.dumps(found))
    return target


def test_evaluate_names_each_damaged_run_and_evaluates_the_others(
    trained: CommandLine, tmp_path: Path
) -> None:
    whole = trained.run_dir("none")
    runs = [
        damaged(whole, tmp_path / f"damaged{number:02}", at, value)
        for number, (at, value, _) in enumerate(DAMAGE)
    ]
    without = damaged(whole, tmp_path / "without", ("epochs",), [])
    last = shutil.copytree(whole, tmp_path / "last")
    run = trained("amp_sweep.evaluate", *map(str, (whole, *runs, without, last)))
    assert run.code == 1
    assert "Traceback" not in run.text
    lines = run.err.splitlines()
    assert len(lines) == len(DAMAGE)
    for folder, (_, _, said), line in zip(runs, DAMAGE, lines, strict=True):
        assert str(folder) in line and said in line, (said, line)
    assert [line.rpartition(", ")[2] for line in run.out.splitlines()] == [
        *("as recorded", "none recorded", "as recorded")
    ]


def test_explain_names_each_damaged_run_and_tells_the_others(
    trained: CommandLine, tmp_path: Path
) -> None:
    whole = trained.run_dir("none")
    bad = damaged(whole, tmp_path / "bad", ("metrics", "step_ms_p50"), "x")
    worse = damaged(whole, tmp_path / "worse", ("metrics",), [])
    named = shutil.copytree(whole, tmp_path / b"\xff".decode("utf-8", "surrogateescape"))
    run = trained("amp_sweep.explain", *map(str, (bad, worse, tmp_path / ("x" * 300), named)))
    assert run.code == 1
    assert "Traceback" not in run.text
    first, second, third = run.err.splitlines()
    assert first == f"error: {bad}/record.json: damaged: Time"
    assert second == f"error: {worse}/record.json: field 'metrics' has type list"
    assert "name too long" in third
    assert run.out.count("none x fp32, seed 0: completed") == 2


def test_status_names_each_damaged_run_and_shows_the_others(
    trained: CommandLine, tmp_path: Path
) -> None:
    whole = trained.run_dir("none")
    sweep = tmp_path / "[red]sweep"
    sweep.mkdir()
    shutil.copytree(whole, sweep / "whole")
    damaged(whole, sweep / "bad", ("metrics",), [])
    damaged(whole, sweep / "cell", ("cell", "precision"), "\ud800\x1b[31m")
    job = damaged(whole, sweep / "job", ("status",), "pending")
    (job / "job.json").write_text('{"job_id": []}')
    lock = damaged(whole, sweep / "lock", ("status",), "running")
    owner = '{"host": "%s", "boot_id": "%s", "pid": Infinity, "started": 0}'
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (lock / "lock").write_text(owner % (socket.gethostname(), boot))
    run = trained("amp_sweep.status", str(sweep), str(tmp_path / ("x" * 300)))
    assert run.code == 1
    assert "Traceback" not in run.text and "\x1b" not in run.text
    assert f"{sweep}/bad/record.json: field 'metrics' has type list" in run.err
    # Nobody can be the process that the lock names.
    assert f"{sweep}/lock: damaged: " in run.err or "1 interrupted" in run.out
    assert "name too long" in run.err
    assert "[red]sweep" in run.out.replace("\n", "")
    assert "2 completed" in run.out and "1 pending" in run.out
