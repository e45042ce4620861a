"""What a SLURM job needs, what SLURM says, and what a job checks, without a cluster."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from amp_sweep import config, job, slurm, source, submit
from amp_sweep.cells import Cell
from amp_sweep.config import DataConfig, ModelConfig, ParallelConfig, PrecisionConfig, RunConfig


def cell(parallel: str, devices: int | str = "auto", device: str = "auto", **data: Any) -> Cell:
    settings = RunConfig(
        device=device,
        model=ModelConfig(name="alexnet"),
        data=DataConfig(name="digits", **data),
        parallel=ParallelConfig(name=parallel, devices=devices),
        precision=PrecisionConfig(name="fp32"),
    )
    return Cell(settings, ())


NONE, DDP = cell("none"), cell("ddp")


@pytest.mark.parametrize(
    ("cells", "params", "offered", "expected"),
    [
        ([NONE, DDP], {}, 0, {"gpus_per_node": None, "cpus_per_task": 2}),
        ([NONE], {}, 8, {"gpus_per_node": 1, "cpus_per_task": 1}),
        ([NONE, DDP], {}, 8, {"gpus_per_node": 8, "cpus_per_task": 8}),
        ([NONE, DDP], {}, 6, {"gpus_per_node": 4, "cpus_per_task": 4}),  # 64 divides by 4
        ([cell("ddp", 2)], {}, 8, {"gpus_per_node": 2, "cpus_per_task": 2}),
        ([cell("ddp", 2, workers=3)], {}, 8, {"gpus_per_node": 2, "cpus_per_task": 8}),
        ([cell("ddp", 2, device="cpu")], {}, 8, {"gpus_per_node": None, "cpus_per_task": 2}),
        ([DDP], {"gpus_per_node": 4}, 8, {"cpus_per_task": 4}),
        ([DDP], {"gpus_per_node": 4, "cpus_per_task": 32}, 8, {}),
        ([cell("ddp", 4)], {"nodes": 2}, 8, {"gpus_per_node": 2, "cpus_per_task": 2}),
        ([cell("ddp", 16)], {"nodes": 2}, 8, {"gpus_per_node": 8, "cpus_per_task": 8}),
    ],
)
def test_a_job_asks_for_what_its_largest_cell_uses(
    monkeypatch: pytest.MonkeyPatch,
    cells: list[Cell],
    params: dict[str, Any],
    offered: int,
    expected: dict[str, Any],
) -> None:
    monkeypatch.setattr(slurm, "gpus_per_node", lambda _partition: offered)
    assert submit.needs(params, cells) == expected


@pytest.mark.parametrize(
    ("printed", "gpus"),
    [
        ("(null)\n", 0),
        ("gpu:2\n", 2),
        ("gpu:h200:8(S:0-1)\n", 8),
        ("shard:4,gpu:a100:4(S:0)\n(null)\n", 4),
        ("gpu:1\ngpu:4\n", 4),
        ("craynetwork:4\n", 0),
    ],
)
def test_gpus_are_read_from_sinfo_in_every_form(
    monkeypatch: pytest.MonkeyPatch, printed: str, gpus: int
) -> None:
    monkeypatch.setattr(slurm, "_ask", lambda *_: printed)
    assert slurm.gpus_per_node("debug") == gpus


def test_jobs_are_found_by_either_id_and_steps_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {
        "squeue": "12_3|15|RUNNING|n1|None\n",
        "sacct": "9|9|CANCELLED by 0|n2|None\n9.batch|9.batch|CANCELLED|n2|\n",
    }
    monkeypatch.setattr(slurm, "_ask", lambda *command: answers[command[0]])
    found, silence = slurm.ask(["12_3", "15", "9"])
    assert silence is None
    assert found["12_3"] == found["15"] and not found["15"].over
    assert found["9"].state == "CANCELLED" and found["9"].over


def test_what_could_not_be_asked_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_accounting(*command: str) -> str:
        if command[0] == "sacct":
            raise slurm.Unanswered("Slurm accounting storage is disabled")
        return ""

    monkeypatch.setattr(slurm, "_ask", no_accounting)
    assert slurm.ask(["7"]) == ({}, "Slurm accounting storage is disabled")
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(slurm.Unanswered, match="squeue"):
        slurm.ask(["7"])


def test_a_job_that_submits_hides_its_own_variables_and_gets_them_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("RANK", "1")
    before = dict(os.environ)
    with slurm.outside_of_any_job():
        assert not {"SLURM_JOB_ID", "SLURM_NTASKS", "CUDA_VISIBLE_DEVICES", "RANK"} & {*os.environ}
        assert os.environ["SLURM_CONF"] == "/etc/slurm.conf"
    assert dict(os.environ) == before
    monkeypatch.delenv("SLURM_JOB_ID")
    with slurm.outside_of_any_job():
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"  # a person's own


@pytest.mark.parametrize(
    ("tasks", "nodes", "asked", "setting"),
    [
        ("1", "1", 1, None),
        ("2", "2", 2, None),
        ("2", "1", 1, "hydra.launcher.tasks_per_node=1"),
        ("4", "2", 2, "hydra.launcher.tasks_per_node=1"),
        ("1", "2", 2, "hydra.launcher.tasks_per_node=1"),
        ("1", "1", 2, "hydra.launcher.nodes=2"),
    ],
)
def test_a_layout_other_than_one_task_a_node_names_the_setting_to_change(
    monkeypatch: pytest.MonkeyPatch, tasks: str, nodes: str, asked: int, setting: str | None
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", tasks)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", nodes)
    problem = job.layout_problem(asked)
    assert (problem is None) == (setting is None)
    assert setting is None or (problem and setting in problem)


def test_a_node_that_does_not_see_the_run_directory_says_so(tmp_path: Path) -> None:
    settings = config.to_dict(NONE.config)
    here = job.CellJob(settings, (), str(tmp_path), str(tmp_path / "gone"), {})
    with pytest.raises(SystemExit, match=r"cannot see .*gone.*shared file system"):
        here()


def test_edited_and_missing_code_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "own_net_of_this_test.py"
    file.write_text("a = 1\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    before = source.hashes(["own_net_of_this_test:a"])
    assert str(file) in before and str(Path(source.__file__)) in before
    assert source.changed(before) == []
    file.write_text("a = 2\n")
    assert source.changed(before) == [str(file)]
    file.unlink()
    assert source.changed(before) == [str(file)]


def test_a_snapshot_holds_our_package_and_ones_own_module_and_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "own_net_of_this_test.py").write_text("a = 1\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    copy = source.snapshot(["own_net_of_this_test:a"], tmp_path / "code")
    assert (copy / "amp_sweep" / "worker" / "train.py").is_file()
    assert (copy / "own_net_of_this_test.py").read_text() == "a = 1\n"
    assert source.snapshot(["own_net_of_this_test:a"], tmp_path / "code") == copy
    (folder / "own_net_of_this_test.py").write_text("a = 2\n")
    assert source.snapshot(["own_net_of_this_test:a"], tmp_path / "code") != copy
