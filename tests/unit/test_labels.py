"""What tells the cells of a sweep apart beside parallelism, precision and seed."""

from typing import Any

from amp_sweep import config, labels
from amp_sweep.cells import Cell, order, tell_apart
from amp_sweep.config import RunConfig
from tests.unit.conftest import Make


def cell(settings: RunConfig, *overrides: str) -> Cell:
    return Cell(settings, overrides)


def labels_of(*cells: Cell) -> list[str]:
    return [one.label for one in tell_apart(cells)]


def test_a_label_names_a_setting_in_which_the_cells_differ(make: Make) -> None:
    found = labels_of(
        cell(make(optimizer__lr=0.001), "optimizer.lr=1e-3", "epochs=10"),
        cell(make(optimizer__lr=0.01, seed=1), "optimizer.lr=1e-2", "epochs=10", "seed=1"),
    )
    assert found == [
        "none x fp32, optimizer.lr=0.001, seed 0",
        "none x fp32, optimizer.lr=0.01, seed 1",
    ]


def test_a_matrix_repeated_over_seeds_has_the_labels_it_always_had(make: Make) -> None:
    cells = [
        cell(make(parallel__name=name, seed=seed), f"parallel={name}", f"seed={seed}", "epochs=3")
        for name in ("none", "ddp")
        for seed in (0, 1)
    ]
    assert labels_of(*cells) == [
        "none x fp32, seed 0",
        "none x fp32, seed 1",
        "ddp x fp32, seed 0",
        "ddp x fp32, seed 1",
    ]
    assert tell_apart(order(cells)) == order(cells)
    assert tell_apart([]) == []


def test_a_cell_that_does_not_set_it_is_named_by_the_value_that_it_has(make: Make) -> None:
    found = labels_of(
        cell(make(), "parallel=none"), cell(make(model__name="net:Net"), "model.name=x")
    )
    assert found == [
        "none x fp32, model.name=alexnet, seed 0",
        "none x fp32, model.name=net:Net, seed 0",
    ]


def test_a_group_is_named_by_the_word_that_was_typed(make: Make) -> None:
    quarter, whole = make(model__width=0.25), make(model__width=1.0)
    assert labels_of(cell(quarter, "model=alexnet_quarter"), cell(whole, "model=alexnet")) == [
        "none x fp32, model=alexnet_quarter, seed 0",
        "none x fp32, model=alexnet, seed 0",
    ]


def test_a_group_of_another_name_than_what_it_holds_is_named_beside_its_namesake(
    make: Make,
) -> None:
    none, ddp = make(), make(parallel__name="ddp")
    gloo = make(parallel__name="ddp", parallel__backend="gloo")
    alone = [cell(none, "parallel=none"), cell(gloo, "parallel=ddp_article")]
    assert labels_of(*alone) == ["none x fp32, seed 0", "ddp x fp32, seed 0"]
    assert labels_of(*alone, cell(ddp, "parallel=ddp")) == [
        "none x fp32, seed 0",
        "ddp x fp32, parallel=ddp_article, seed 0",
        "ddp x fp32, parallel=ddp, seed 0",
    ]


def test_what_changes_no_result_and_what_means_the_same_is_not_named(make: Make) -> None:
    plain, ddp = make(), make(parallel__name="ddp")
    found = labels_of(
        cell(plain, "parallel=none", "measure.probes=false", "parallel.sync_batch_norm=true"),
        cell(ddp, "parallel=ddp", "track=none", "optimizer.lr=1e-3"),
    )
    assert found == ["none x fp32, seed 0", "ddp x fp32, seed 0"]


def test_cells_that_were_typed_alike_are_told_apart_by_their_configs(make: Make) -> None:
    # As when a group's file was edited between two commands.
    found = labels_of(
        cell(make(data__batch_size=32), "data=mine"),
        cell(make(data__batch_size=64), "data=mine"),
    )
    assert found == [
        "none x fp32, data.batch_size=32, seed 0",
        "none x fp32, data.batch_size=64, seed 0",
    ]


def test_records_of_others_are_told_apart_whatever_they_hold(make: Make) -> None:
    strange: list[tuple[list[Any], dict[str, Any]]] = [
        ([None, 3, "a=[b]"], {"data": [], "optimizer": None, "seed": [0]}),
        (["optimizer.lr=1"], {}),
        ([], config.to_dict(make())),
    ]
    assert len(set(labels.told_apart(strange))) == 3
