import pytest

from amp_sweep import config, legality, record, speedups
from amp_sweep.config import RunConfig
from tests.unit.conftest import Make

AUTO = {
    "memory__compile": "auto",
    "memory__cuda_graph": "auto",
    "memory__space_to_depth": "auto",
    "memory__master_weights": "auto",
    "memory__keep_threads": "auto",
}
HALF = {"precision__name": "scaler", "precision__autocast": True, "precision__scaler": True}


def choose(cell: RunConfig, device_type: str, **changes: bool) -> speedups.Speedups:
    can = {"images_on_device": True, "triton": device_type == "cuda"}
    return speedups.choose(cell, device_type, **(can | changes))


def impossible(cell: RunConfig, device_type: str) -> str | None:
    return legality.impossible_here(
        cell, device_type=device_type, visible_devices=2, native_bf16=True
    )


@pytest.mark.parametrize("parallel", ["none", "ddp"])
def test_auto_turns_everything_on_for_half_precision_on_gpus(make: Make, parallel: str) -> None:
    chosen = choose(make(**AUTO, **HALF, parallel__name=parallel), "cuda")
    assert chosen == speedups.Speedups("default", True, True, True)


def test_auto_leaves_float32_without_master_weights(make: Make) -> None:
    assert choose(make(**AUTO), "cuda").master_weights is False


@pytest.mark.parametrize("parallel", ["none", "dp", "ddp"])
def test_auto_turns_nothing_on_on_a_cpu(make: Make, parallel: str) -> None:
    cell = make(**AUTO, **HALF, parallel__name=parallel)
    assert choose(cell, "cpu") == speedups.Speedups()


def test_auto_keeps_the_threads_of_dp_which_can_do_nothing_else(make: Make) -> None:
    dp = make(**AUTO, **HALF, parallel__name="dp")
    assert choose(dp, "cuda") == speedups.Speedups(keep_threads=True)


def test_auto_captures_a_graph_and_compiles_only_where_that_was_measured_to_pay(make: Make) -> None:
    gloo = make(**AUTO, **HALF, parallel__name="ddp", parallel__backend="gloo")
    assert choose(gloo, "cuda") == speedups.Speedups("off", False, False, True)
    unused = make(**AUTO, **HALF, parallel__name="ddp", parallel__find_unused_parameters=True)
    assert choose(unused, "cuda") == speedups.Speedups("off", False, False, True)
    elsewhere = choose(make(**AUTO, **HALF), "cuda", images_on_device=False)
    assert elsewhere == speedups.Speedups(master_weights=True)


def test_auto_turns_nothing_on_that_needs_triton_where_it_does_not_compile(make: Make) -> None:
    assert choose(make(**AUTO, **HALF), "cuda", triton=False) == speedups.Speedups()


def test_auto_keeps_float32_gradients_where_their_norm_is_clipped(make: Make) -> None:
    clipped = make(**AUTO, **HALF, optimizer__clip_norm=1.0)
    assert choose(clipped, "cuda").master_weights is False


def test_what_is_asked_for_by_name_is_not_decided_here(make: Make) -> None:
    asked = make(memory__compile="max-autotune", memory__space_to_depth=True)
    chosen = choose(asked, "cpu")
    assert chosen == speedups.Speedups("max-autotune", False, True, False)


def test_what_a_mode_cannot_do_makes_the_cell_invalid_with_the_reason(make: Make) -> None:
    dp = {"parallel__name": "dp"}
    assert "DataParallel" in (impossible(make(**dp, memory__compile="default"), "cuda") or "")
    assert "DataParallel" in (impossible(make(**dp, memory__cuda_graph=True), "cuda") or "")
    half = make(**dp, **HALF, memory__master_weights=True)
    assert "DataParallel" in (impossible(half, "cuda") or "")
    assert "CUDA" in (impossible(make(memory__cuda_graph=True), "cpu") or "")
    for cell, device in (
        (make(memory__keep_threads=True), "cuda"),
        (make(**dp, memory__keep_threads=True), "cpu"),
    ):
        assert "DataParallel's threads" in (impossible(cell, device) or "")
    assert impossible(make(**dp, memory__keep_threads=True), "cuda") is None
    gloo = make(parallel__name="ddp", parallel__backend="gloo", memory__cuda_graph=True)
    assert "gloo" in (impossible(gloo, "cuda") or "")
    unused = {"parallel__find_unused_parameters": True, "memory__cuda_graph": True}
    reason = impossible(make(parallel__name="ddp", **unused), "cuda") or ""
    assert "find_unused_parameters" in reason and "graph" in reason
    assert impossible(make(**unused), "cuda") is None  # only ddp has it
    pil = make(data__pipeline="pil", memory__cuda_graph=True)
    assert "resident" in (impossible(pil, "cuda") or "")
    assert impossible(make(memory__cuda_graph=True, memory__compile="default"), "cuda") is None


def test_what_no_device_can_do_is_refused_before_a_sweep_starts(make: Make) -> None:
    assert "autocast" in legality.check(make(memory__master_weights=True))[0]
    sgd = make(**HALF, memory__master_weights=True, optimizer__name="sgd")
    assert "adamw" in legality.check(sgd)[0]
    clipped = make(**HALF, memory__master_weights=True, optimizer__clip_norm=1.0)
    assert "clip_norm" in legality.check(clipped)[0]
    assert "true, false or auto" in legality.check(make(memory__cuda_graph="maybe"))[0]
    assert "allowed are off" in legality.check(make(memory__compile="yes"))[0]


def test_runs_from_before_the_modes_keep_their_identity(make: Make) -> None:
    flat = record.flatten(config.to_dict(make()))
    older = {name: value for name, value in flat.items() if name not in record.ADDED_LATER}
    assert record.identity(flat) == record.identity(older)
    assert config.fingerprint(make()) != config.fingerprint(make(memory__space_to_depth=True))
