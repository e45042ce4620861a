"""File names of a run: each under its directory, none twice."""

from pathlib import Path

from amp_sweep.paths import RunPaths


def test_a_run_directory_has_the_files_that_the_contract_names() -> None:
    paths = RunPaths(Path("/runs/x"))
    assert {
        name: getattr(paths, name).relative_to("/runs/x").as_posix()
        for name in ("record", "config", "overrides", "epochs", "checkpoints", "tensorboard")
    } == {
        "record": "record.json",
        "config": "config.yaml",
        "overrides": "overrides.yaml",
        "epochs": "epochs.csv",
        "checkpoints": "checkpoints",
        "tensorboard": "tensorboard",
    }
    assert paths.log(0).name == "train.log"
    assert [paths.log(rank).name for rank in (1, 12)] == ["rank1.log", "rank12.log"]


def test_no_two_files_of_a_run_share_a_path() -> None:
    paths = RunPaths(Path("/runs/x"))
    names = [name for name, value in vars(RunPaths).items() if isinstance(value, property)]
    found = [getattr(paths, name) for name in names]
    found += [paths.log(rank) for rank in range(3)] + [paths.ending(rank) for rank in range(3)]
    found += [paths.epoch_weights(epoch) for epoch in (1, 10, 100, 1000)]
    assert len(names) > 10
    assert len(set(found)) == len(found)
    assert all(path.is_relative_to("/runs/x") and path != paths.root for path in found)


def test_weights_of_epochs_sort_in_their_order() -> None:
    paths = RunPaths(Path("/runs/x"))
    names = [paths.epoch_weights(epoch).name for epoch in range(1, 130)]
    assert sorted(names) == names
