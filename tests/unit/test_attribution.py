"""Whose memory it was: made events with a known answer."""

import random

import pytest

from amp_sweep.probes.attribution import (
    ACTIVATIONS,
    GRADIENTS,
    INPUT,
    OPTIMIZER,
    PARAMETERS,
    UNATTRIBUTED,
    WORKSPACE,
    Event,
    Mark,
    Operation,
    Trace,
    breakdown,
)


def take(address: int, size: int) -> Event:
    return Event(True, address, size)


def give(address: int, size: int) -> Event:
    return Event(False, address, size)


def a_step() -> Trace:
    """Weights of 100, optimizer state of 200, a library's 50, something unknown of 7.

    The batch takes 30. The forward pass takes 40 (kept), 5 (dropped) and, inside an operation,
    a scratch block of 60. The backward pass takes a gradient of 100, drops what was kept, and
    takes a block of 10 for a moment.
    """
    return Trace(
        there=[(1000, 100), (2000, 200), (3000, 50), (4000, 7)],
        events=[
            take(5000, 30),  # 0: the batch
            take(6000, 40),  # 1: an activation
            take(6100, 5),  # 2: a temporary of the forward pass
            give(6100, 5),  # 3
            take(7000, 60),  # 4: scratch of an operation
            take(6100, 20),  # 5: its result, kept
            give(7000, 59),  # 6: what was asked for; the block was larger
            take(8000, 100),  # 7: a gradient
            take(9000, 10),  # 8: the gradient of an activation
            give(6000, 40),  # 9
            give(9000, 10),  # 10
            give(4000, 7),  # 11
            give(3000, 50),  # 12: the library's, after the end
            give(6100, 20),  # 13: like the results of the step
        ],
        marks=[
            Mark(0, 1000, PARAMETERS),
            Mark(0, 2004, OPTIMIZER),  # a view into the block
            Mark(11, 8000, GRADIENTS),
        ],
        operations=[Operation(4, 7, frozenset({6100}))],
        input_end=1,
        forward_end=7,
        backward_end=12,
    )


def test_the_breakdown_of_a_made_step() -> None:
    found = breakdown(a_step())
    # In the forward pass: 357 + 30 + 40 + 60 + 20 = 507. In the backward pass: 357 + 30 + 40 +
    # 20 + 100 + 10 = 557, which is the peak.
    assert (found.peak, found.moment) == (557, 9)
    assert found.kinds == {
        PARAMETERS: 100,
        GRADIENTS: 100,
        OPTIMIZER: 200,
        ACTIVATIONS: 40 + 20 + 10,
        INPUT: 30,
        WORKSPACE: 50,
        UNATTRIBUTED: 7,
    }
    assert found.saved == 60  # the gradient of an activation was not kept by the forward pass
    assert sum(found.kinds.values()) == found.peak


def test_an_operations_own_blocks_are_workspace_at_a_peak_inside_it() -> None:
    trace = a_step()
    trace.events[7] = take(8000, 1)  # so that the peak is in the forward pass
    found = breakdown(trace)
    assert (found.peak, found.moment) == (507, 6)
    assert found.kinds[WORKSPACE] == 50 + 60
    assert found.kinds[ACTIVATIONS] == 60
    trace.operations.clear()  # then it is the forward pass's, which gave it back before its end
    found = breakdown(trace)
    assert (found.kinds[ACTIVATIONS], found.saved) == (120, 60)


def test_what_happens_after_the_backward_pass_is_no_peak() -> None:
    trace = a_step()
    trace.events.append(take(9999, 10**6))
    assert breakdown(trace).peak == 557


def test_an_address_that_is_used_again_is_another_block() -> None:
    trace = Trace(
        there=[(10, 8)],
        events=[give(10, 8), take(10, 8), take(20, 4)],
        marks=[Mark(0, 10, PARAMETERS), Mark(3, 20, GRADIENTS)],
        input_end=0,
        forward_end=2,
        backward_end=3,
    )
    found = breakdown(trace)
    assert found.kinds[PARAMETERS] == 0
    assert (found.kinds[ACTIVATIONS], found.kinds[GRADIENTS]) == (8, 4)


def test_marks_count_at_their_moment_and_only_the_first() -> None:
    trace = Trace(
        events=[take(10, 8), give(10, 8), take(10, 16)],
        # The second was meant for the block of 8, which is gone when it comes.
        marks=[Mark(1, 10, INPUT), Mark(3, 10, GRADIENTS), Mark(3, 10, OPTIMIZER)],
        forward_end=3,
        backward_end=3,
    )
    assert breakdown(trace).kinds[GRADIENTS] == 16


def test_a_mark_outside_every_block_changes_nothing() -> None:
    trace = Trace(there=[(10, 8)], marks=[Mark(0, 5, INPUT), Mark(0, 18, INPUT)])
    assert breakdown(trace).kinds[UNATTRIBUTED] == 8


def test_data_that_lie_on_the_device_are_told_from_the_batch() -> None:
    trace = Trace(
        there=[(10, 80)],
        events=[take(200, 5)],
        marks=[Mark(0, 10, INPUT)],
        input_end=1,
        forward_end=1,
        backward_end=1,
    )
    found = breakdown(trace)
    assert (found.kinds[INPUT], found.resident) == (85, 80)


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_is_the_largest_running_sum_and_the_kinds_add_up_to_it(seed: int) -> None:
    draw = random.Random(seed)
    live: dict[int, int] = {address * 100: draw.randint(1, 99) for address in range(5)}
    trace = Trace(there=list(live.items()))
    sums = [sum(live.values())]
    for step in range(200):
        if live and draw.random() < 0.45:
            address = draw.choice(sorted(live))
            trace.events.append(give(address, live.pop(address)))
        else:
            address = 1000 + step * 100
            live[address] = draw.randint(1, 99)
            trace.events.append(take(address, live[address]))
        if draw.random() < 0.3:
            trace.marks.append(Mark(step + 1, draw.choice(sorted(live or {0: 0})), GRADIENTS))
        sums.append(sum(live.values()))
    trace.input_end, trace.forward_end, trace.backward_end = 20, 100, 150
    found = breakdown(trace)
    assert found.peak == max(sums[:151]) == sum(found.kinds.values())
    assert sums[found.moment] == found.peak
