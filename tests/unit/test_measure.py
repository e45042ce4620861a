"""Times of steps: what is counted, what is warm-up, and what the figures are made of."""

import math
import time

import numpy as np
import pytest
import torch

from amp_sweep.measure import WARMUP_STEPS, StepClock, StepTimes, step_metrics, throughput

CPU = torch.device("cpu")


def times(step: list[float], wait: float = 0.25, work: float = 0.125) -> StepTimes:
    """Steps of so many ms, of which the shares `wait` and `work` are the input's."""
    steps = np.array(step, dtype=float)
    return StepTimes(steps, steps * wait, steps * work)


def run_steps(clock: StepClock, pauses: list[tuple[float, float, float]]) -> None:
    clock.start_epoch()
    for wait, work, step in pauses:
        time.sleep(wait)
        clock.batch_there()
        time.sleep(work)
        clock.input_ready()
        time.sleep(step)
        clock.step_done()


def test_the_clock_tells_waiting_from_input_work_from_the_step() -> None:
    clock = StepClock(CPU)
    pauses = [(0.02, 0.01, 0.03), (0.01, 0.03, 0.02), (0.03, 0.02, 0.01)]
    started = time.perf_counter()
    run_steps(clock, pauses)
    elapsed_ms = (time.perf_counter() - started) * 1e3
    found = clock.epoch_times()
    assert len(found.step_ms) == len(found.wait_ms) == len(found.input_ms) == 3
    # A sleep lasts at least as long as asked; all of it together no longer than it took.
    for index, (wait, work, step) in enumerate(pauses):
        assert found.wait_ms[index] >= wait * 1e3 - 0.1
        assert found.input_ms[index] >= work * 1e3 - 0.1
        rest = found.step_ms[index] - found.wait_ms[index] - found.input_ms[index]
        assert rest >= step * 1e3 - 0.1
    assert found.step_ms.sum() <= elapsed_ms


class FakeEvent:
    """A CUDA event on a timeline on which each record takes a millisecond."""

    made = now = 0

    def __init__(self, **_options: object) -> None:
        type(self).made += 1
        self.at = 0

    def record(self, _stream: object) -> None:
        type(self).now += 1
        self.at = self.now

    def elapsed_time(self, other: "FakeEvent") -> float:
        return float(other.at - self.at)


@pytest.fixture
def timeline(monkeypatch: pytest.MonkeyPatch) -> type[FakeEvent]:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    FakeEvent.made = FakeEvent.now = 0
    return FakeEvent


def test_where_images_lie_on_the_device_a_step_costs_one_event_and_its_input_is_sampled(
    timeline: type[FakeEvent],
) -> None:
    every = StepClock.INPUT_EVERY
    clock = StepClock(torch.device("cuda", 0), resident=True)
    for epoch in range(2):  # the events of the first epoch serve the second
        run_steps(clock, [(0, 0, 0)] * (2 * every + 1))
        found = clock.epoch_times()
        assert timeline.made == 1 + 2 * every + 1 + 2
        timed = [every - 1 - epoch, 2 * every - 1 - epoch]
        assert np.flatnonzero(~np.isnan(found.input_ms)).tolist() == timed
        assert found.input_ms[timed].tolist() == [1, 1]
        assert found.wait_ms.tolist() == [0] * (2 * every + 1)
        expected = np.ones(2 * every + 1)
        expected[timed] = 2
        assert found.step_ms.tolist() == expected.tolist()


def test_parts_shorter_than_the_sampling_have_their_input_timed_too(
    timeline: type[FakeEvent],
) -> None:
    clock = StepClock(torch.device("cuda", 0), resident=True)
    parts = []
    for _ in range(8):
        run_steps(clock, [(0, 0, 0)] * 5)
        parts.append(clock.epoch_times())
    timed = ~np.isnan(StepTimes.joined(parts).input_ms)
    assert np.flatnonzero(timed).tolist() == [7, 15, 23, 31, 39]


def test_where_images_are_fetched_every_wait_and_every_input_is_timed(
    timeline: type[FakeEvent],
) -> None:
    clock = StepClock(torch.device("cuda", 0))
    run_steps(clock, [(0, 0, 0)] * 5)
    found = clock.epoch_times()
    assert timeline.now == 1 + 3 * 5
    assert (found.step_ms.tolist(), found.wait_ms.tolist()) == ([3] * 5, [1] * 5)
    assert found.input_ms.tolist() == [1] * 5


def test_a_step_that_is_one_graph_has_no_times_of_its_parts() -> None:
    clock = StepClock(CPU)
    clock.start_epoch()
    for _ in range(3):
        clock.step_done()
    found = clock.epoch_times()
    assert len(found.step_ms) == 3 and found.wait_ms.tolist() == [0] * 3
    assert np.isnan(found.input_ms).all()
    assert step_metrics([found, found])["input_work_frac"] is None


def test_each_epoch_is_timed_anew() -> None:
    clock = StepClock(CPU)
    run_steps(clock, [(0, 0, 0)] * 5)
    first = clock.epoch_times()
    run_steps(clock, [(0, 0, 0)] * 2)
    assert (len(first.step_ms), len(clock.epoch_times().step_ms)) == (5, 2)


def test_an_epoch_without_a_step_has_no_times() -> None:
    clock = StepClock(CPU)
    clock.start_epoch()
    found = clock.epoch_times()
    assert [len(a) for a in (found.step_ms, found.wait_ms, found.input_ms)] == [0, 0, 0]


def test_a_clock_that_is_off_keeps_nothing() -> None:
    clock = StepClock(CPU, enabled=False)
    run_steps(clock, [(0, 0, 0)] * 3)
    assert len(clock.epoch_times().step_ms) == 0


def test_parts_of_an_epoch_are_joined_in_order() -> None:
    joined = StepTimes.joined([times([1, 2]), times([]), times([3], wait=0.5)])
    assert joined.step_ms.tolist() == [1, 2, 3]
    assert joined.wait_ms.tolist() == [0.25, 0.5, 1.5]
    assert joined.input_ms.tolist() == [0.125, 0.25, 0.375]
    assert [len(a) for a in vars(StepTimes.joined([])).values()] == [0, 0, 0]


def test_the_figures_are_those_of_all_epochs_but_the_first() -> None:
    noise = np.random.default_rng(0)
    epochs = [list(noise.uniform(5, 50, 37)) for _ in range(4)]
    # The first epoch is ten times as slow and waits all the time: it must not be seen.
    slow = times([10 * value for value in epochs[0]], wait=1.0)
    found = step_metrics([slow, *(times(epoch) for epoch in epochs[1:])])
    counted = np.concatenate(epochs[1:])
    for name, share in (("step_ms_p50", 50), ("step_ms_p95", 95), ("step_ms_p99", 99)):
        assert found[name] == pytest.approx(np.percentile(counted, share))
    assert found["data_wait_frac"] == pytest.approx(0.25)
    assert found["input_work_frac"] == pytest.approx(0.125)
    assert all(type(value) is float for value in found.values())


def test_the_share_of_the_input_is_that_of_the_steps_in_which_it_was_timed() -> None:
    timed = StepTimes(np.array([10.0, 90.0]), np.zeros(2), np.array([1.0, math.nan]))
    assert step_metrics([timed, timed])["input_work_frac"] == pytest.approx(0.1)


def test_shares_are_of_the_time_and_not_means_of_shares() -> None:
    found = step_metrics([times([1]), times([1], wait=1.0), times([99], wait=0.0)])
    assert found["data_wait_frac"] == pytest.approx(1 / 100)


def test_one_epoch_is_counted_without_its_first_steps() -> None:
    steady = [7.0, 8.0, 9.0]
    found = step_metrics([times([1000.0] * WARMUP_STEPS + steady)])
    assert found["step_ms_p50"] == 8.0
    assert found["step_ms_p99"] == pytest.approx(np.percentile(steady, 99))
    assert (found["data_wait_frac"], found["input_work_frac"]) == (0.25, 0.125)


@pytest.mark.parametrize(
    "epochs",
    [
        [],
        [times([1.0] * WARMUP_STEPS)],
        [times([])],
        [times([]), times([])],
    ],
)
def test_where_nothing_is_left_every_figure_is_none(epochs: list[StepTimes]) -> None:
    found = step_metrics(epochs)
    assert set(found) == {
        *("step_ms_p50", "step_ms_p95", "step_ms_p99", "data_wait_frac", "input_work_frac")
    }
    assert set(found.values()) == {None}


def test_throughput_of_several_epochs_leaves_the_first_out() -> None:
    # 100 s for the first epoch, then 640 images in 2 s and in 3 s.
    assert throughput(640, [100.0, 2.0, 3.0], times([]), 64) == pytest.approx(2 * 640 / 5)


def test_throughput_of_one_epoch_leaves_its_first_steps_out() -> None:
    only = times([1000.0] * WARMUP_STEPS + [4.0, 6.0])
    assert throughput(640, [100.0], only, 64) == pytest.approx(2 * 64 / 0.010)
    # Steps of an earlier segment are not asked for: what there is counts.
    assert throughput(640, [], only, 64) == pytest.approx(2 * 64 / 0.010)


@pytest.mark.parametrize("steps", [0, 1, WARMUP_STEPS])
def test_throughput_is_none_where_only_the_warm_up_was_timed(steps: int) -> None:
    assert throughput(640, [100.0], times([5.0] * steps), 64) is None


def test_a_sum_of_many_epochs_loses_nothing() -> None:
    seconds = [1e8] + [0.1] * 1_000
    found = throughput(10, seconds, times([]), 1)
    assert found is not None and math.isclose(found, 10 * 1000 / 100.0, rel_tol=1e-12)
