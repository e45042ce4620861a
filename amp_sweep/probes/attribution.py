"""Whose memory it was at the peak: a pure replay of what an allocator did. No torch here.

The allocator's own trace says which blocks were alive at any moment, and how large they were. It
does not say what for: that is told by marks (an address that belonged to something at a known
moment) and, where there is none, by the phase in which the block was taken.

A moment is counted in events: at moment n the first n events have happened.
"""

import bisect
from dataclasses import dataclass, field

PARAMETERS = "parameters"
GRADIENTS = "gradients"
OPTIMIZER = "optimizer"
ACTIVATIONS = "activations"
INPUT = "input"
WORKSPACE = "workspace"
UNATTRIBUTED = "unattributed"

KINDS = (PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, INPUT, WORKSPACE, UNATTRIBUTED)


@dataclass(frozen=True)
class Event:
    """A block of `size` bytes at `address` was taken, or given back."""

    taken: bool
    address: int
    size: int


@dataclass(frozen=True)
class Mark:
    """At this moment the block around `address` was of this kind."""

    moment: int
    address: int
    kind: str


@dataclass(frozen=True)
class Operation:
    """What ran between two moments, and the addresses of the tensors that it handed out."""

    begin: int
    end: int
    results: frozenset[int]


@dataclass
class Trace:
    """One step on one device, as its allocator and the step itself told it."""

    there: list[tuple[int, int]] = field(default_factory=list)  # (address, bytes) before the step
    events: list[Event] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    input_end: int = 0  # the moment at which the batch was ready
    forward_end: int = 0
    backward_end: int = 0  # after it, libraries were told to give their workspaces back


@dataclass(frozen=True)
class Breakdown:
    """Bytes per kind at the instant of the peak; `kinds` adds up to `peak`."""

    peak: int
    moment: int
    kinds: dict[str, int]
    saved: int  # of the activations: kept by the forward pass for the backward pass
    resident: int  # of the input: there before the step, as data kept on the device are


@dataclass
class _Block:
    address: int
    size: int
    begin: int  # -1: there before the step
    end: int | None = None
    kind: str | None = None


def _replay(trace: Trace) -> tuple[list[_Block], int, int]:
    """All blocks with their lives and the kinds that marks give them; the peak and its moment."""
    blocks = [_Block(address, size, -1) for address, size in trace.there]
    live = {block.address: block for block in blocks}
    addresses = sorted(live)
    marks = sorted(trace.marks, key=lambda mark: mark.moment)
    settled = 0
    total = peak = sum(block.size for block in blocks)
    peak_moment = 0
    for moment in range(len(trace.events) + 1):
        if moment:
            event = trace.events[moment - 1]
            if event.taken:
                block = live[event.address] = _Block(event.address, event.size, moment - 1)
                blocks.append(block)
                bisect.insort(addresses, event.address)
                total += event.size
                if total > peak and moment <= trace.backward_end:
                    peak, peak_moment = total, moment
            elif event.address in live:
                block = live.pop(event.address)
                addresses.pop(bisect.bisect_left(addresses, event.address))
                block.end = moment
                total -= block.size
        while settled < len(marks) and marks[settled].moment <= moment:
            mark = marks[settled]
            settled += 1
            place = bisect.bisect_right(addresses, mark.address) - 1
            block = live[addresses[place]] if place >= 0 else _Block(0, 0, 0)
            inside = block.address <= mark.address < block.address + block.size
            if inside and block.kind is None:
                block.kind = mark.kind
    return blocks, peak, peak_moment


def _scratch(trace: Trace) -> set[int]:
    """Indices of the events by which operations took blocks that they did not hand out."""
    found = set()
    for operation in trace.operations:
        for index in range(operation.begin, min(operation.end, len(trace.events))):
            event = trace.events[index]
            if event.taken and event.address not in operation.results:
                found.add(index)
    return found


def breakdown(trace: Trace) -> Breakdown:
    """Whose blocks were alive when most bytes were taken.

    The first mark of a block counts; a mark may lie inside a block, as a view does. A block
    without one is a workspace where an operation took it for itself, or a library gave it back
    when it was told to; input or activations by the phase that took it; else unattributed.
    Gradients of activations count as activations: both grow with the batch.
    """
    blocks, peak, moment = _replay(trace)
    scratch = _scratch(trace)
    kinds = dict.fromkeys(KINDS, 0)
    saved = resident = 0
    for block in blocks:
        if block.begin >= moment or (block.end is not None and block.end <= moment):
            continue
        kind = block.kind or _unmarked(block, trace, scratch)
        kinds[kind] += block.size
        in_forward = trace.input_end <= block.begin < trace.forward_end
        if kind == ACTIVATIONS and in_forward:
            kept = block.end is None or block.end > trace.forward_end
            saved += block.size if kept else 0
        if kind == INPUT and block.begin < 0:
            resident += block.size
    return Breakdown(peak, moment, kinds, saved, resident)


def _unmarked(block: _Block, trace: Trace, scratch: set[int]) -> str:
    released = block.end is not None and block.end > trace.backward_end
    if block.begin in scratch or (block.begin < 0 and released):
        return WORKSPACE
    if block.begin < 0:
        return UNATTRIBUTED
    return INPUT if block.begin < trace.input_end else ACTIVATIONS
