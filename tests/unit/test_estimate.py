"""What to expect of a CPU without native bfloat16."""

import importlib
from collections.abc import Callable

import pytest

from amp_sweep.config import RunConfig
from amp_sweep.hardware import Hardware
from amp_sweep.worker.estimate import expectation, step_s

Make = Callable[..., RunConfig]


def test_the_total_is_steps_times_a_real_steps_time(make: Make) -> None:
    cell = make(model__width=0.1, data__batch_size=8)
    found = expectation([(cell, 10, 100), (cell, 10, 300)])
    one = step_s(cell, 10, autocast=False)
    # Timings of a busy machine: within a factor, not within a per cent.
    assert 400 * one / 20 < found.total_s < 400 * one * 20
    assert found.slowdown > 0


def test_only_autocast_on_a_cpu_without_native_bfloat16_is_estimated(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = importlib.import_module("amp_sweep.worker.prepare")
    fp32 = make(model__width=0.1, device="cpu")
    half = make(
        model__width=0.1, device="cpu", precision__name="autocast", precision__autocast=True
    )
    for native, cells, expected in (
        (False, [fp32, half], True),
        (False, [fp32], False),
        (True, [fp32, half], False),
        (None, [fp32, half], False),
    ):
        here = Hardware("cpu", ("a processor",), (native,), 2)
        monkeypatch.setattr(prepare, "detect", lambda _, here=here: here)
        done = prepare.prepare(cells, {"cpu"}, lambda *_: None)
        assert done.problems == []
        assert (done.expectation is not None) == expected
