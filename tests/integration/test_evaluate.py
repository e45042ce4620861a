"""Stored weights evaluated again: by another decoder, and where it fails."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amp_sweep import data, evaluate
from amp_sweep.hardware import detect
from amp_sweep.screen import Screen
from tests.conftest import CommandLine
from tests.integration.images import make_folder


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, make_command_line: Callable[[Path], CommandLine]
) -> CommandLine:
    """A run on a folder of JPEG files, whose record has it that a device decoded them."""
    command = make_command_line(tmp_path_factory.mktemp("trained"))
    make_folder(command.folder / "images", train=32, test=12)
    run = command.train(
        *("parallel=none", "model.width=0.1", "epochs=1", "measure.probes=false"),
        *("data=imagefolder", f"data.root={command.folder / 'images'}", "data.pipeline=loader"),
        *("data.image_size=64", "data.batch_size=16", "precision=fp32"),
    )
    assert run.code == 0, run.text
    path = command.run_dir("none") / "record.json"
    found = json.loads(path.read_text())
    assert found["config"]["data"]["decode"] == "host"
    found["config"]["data"]["decode"] = "device"
    path.write_text(json.dumps(found))
    return command


@pytest.fixture
def in_this_process(trained: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run; to be evaluated here, on the CPU, without a trace in this process."""
    monkeypatch.setenv("AMP_SWEEP_CACHE", trained.environment["AMP_SWEEP_CACHE"])
    monkeypatch.setattr(evaluate, "detect", lambda _: detect("cpu"))
    # Switches of the whole process, which other tests rely on.
    monkeypatch.setattr(evaluate.torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(evaluate.precision, "set_tf32", lambda _: None)
    return trained.run_dir("none")


def test_without_cuda_the_devices_decoder_is_not_asked(
    in_this_process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    real = evaluate.data.open_split

    def noted(*arguments: Any) -> data.Split:
        opened.append(real(*arguments))
        return opened[0]

    monkeypatch.setattr(evaluate.data, "open_split", noted)
    found = evaluate.evaluate_run(in_this_process, "final", Screen(1))
    assert [split.placement for split in opened] == ["workers"]
    assert found.other_decoder and found.images == 12


def test_without_cuda_the_host_decodes_the_files_of_a_run_and_it_is_told(
    trained: CommandLine,
) -> None:
    run = trained("amp_sweep.evaluate", str(trained.run_dir("none")))
    assert run.code == 0, run.text
    said = ", as recorded; JPEG files decoded by the host, in training by a CUDA device"
    assert run.out.rstrip().endswith(said)
    path = trained.run_dir("none") / "record.json"
    text = path.read_text()
    path.write_text(text.replace('"decode": "device"', '"decode": "host"'))
    run = trained("amp_sweep.evaluate", str(trained.run_dir("none")))
    path.write_text(text)
    assert run.out.rstrip().endswith(", as recorded")


def test_a_sweep_stands_for_its_runs_and_its_tables_are_none(trained: CommandLine) -> None:
    alone = trained("amp_sweep.evaluate", str(trained.run_dir("none")))
    sweep = trained.folder / "outputs" / "matrix"
    tables = sweep / "tables"
    tables.mkdir(exist_ok=True)
    pending = json.loads((trained.run_dir("none") / "record.json").read_text())
    pending["status"] = "pending"
    folder = sweep / "none-pending"
    folder.mkdir()
    (folder / "record.json").write_text(json.dumps(pending))
    run = trained("amp_sweep.evaluate", str(sweep))
    shutil.rmtree(folder)
    assert run.code == 0, run.text
    assert alone.out in run.out and "not there (the run is pending)" in run.out
    run = trained("amp_sweep.evaluate", str(sweep), *map(str, sorted(sweep.iterdir())))
    assert (run.code, run.out) == (0, alone.out)  # once


def test_what_holds_no_run_is_a_line_each(
    trained: CommandLine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "tables").mkdir()
    given = [str(tmp_path / name) for name in ("loop", "tables", 300 * "x")]
    assert evaluate.main(given) == 1
    said = " ".join(capsys.readouterr().err.split("\n"))
    assert [said.count(f"error: {path}") for path in given] == [1, 1, 1], said
    tables = trained.folder / "outputs" / "matrix" / "tables"
    tables.mkdir(exist_ok=True)
    assert evaluate.main([str(tables)]) == 1
    assert capsys.readouterr().err == f"error: {tables} holds tables and no run\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("wrong\nmore"), "data.batch_size=-5: must be at least 1"),
        (RuntimeError("wrong"), "data.batch_size=-5: must be at least 1"),
        (ZeroDivisionError("wrong"), "data.batch_size=-5: must be at least 1"),
        (AttributeError("wrong\nmore"), "AttributeError: wrong"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_what_ends_an_evaluation_is_a_line_and_its_traceback_is_there_to_debug(
    trained: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    error: BaseException,
    said: str,
) -> None:
    found = json.loads((trained.run_dir("none") / "record.json").read_text())
    found["config"]["data"]["batch_size"] = -5
    (tmp_path / "record.json").write_text(json.dumps(found))

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(evaluate, "_evaluate", fails)
    with (
        caplog.at_level(logging.DEBUG, logger="amp_sweep.evaluate"),
        pytest.raises(evaluate.EvaluationError, match="cannot be evaluated") as caught,
    ):
        evaluate.evaluate_run(tmp_path, "final", Screen(1))
    assert str(caught.value) == f"{tmp_path}: cannot be evaluated: {said}"
    (entry,) = caplog.records
    assert entry.exc_info is not None
    assert entry.exc_info[1] is error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError(""), r"does not fit the network \(RuntimeError\)"),
        (RuntimeError("wrong"), r"does not fit the network \(wrong\)"),
        (
            RuntimeError("Error(s) in loading:\n\tsize mismatch for a\n\tand for b"),
            r"does not fit the network \(Error\(s\) in loading: size mismatch for a\)",
        ),
        (evaluate.torch.OutOfMemoryError("too large"), "evaluated: OutOfMemoryError: too large"),
    ],
)
def test_weights_that_do_not_fit_the_network_are_told_from_too_little_memory(
    in_this_process: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(evaluate.checkpoint, "load", fails)
    with pytest.raises(evaluate.EvaluationError, match=said):
        evaluate.evaluate_run(in_this_process, "final", Screen(1))
