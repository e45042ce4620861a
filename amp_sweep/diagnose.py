"""From a run's figures to what limits it, in a word and a sentence. No torch here.

The shares are of the mean training step: `input` is the device's wait for its batch, `compute`
matrix products and convolutions, `memory` all other work on the device, `communication` what ddp
does not hide, and `gaps` the rest, in which the device has nothing to do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SHARES = ("input", "gaps", "compute", "memory", "communication")

WORDS = {
    "input": "input-bound",
    "gaps": "launch-bound",
    "compute": "compute-bound",
    "memory": "memory-bound",
    "communication": "communication-bound",
}
MIXED = "mixed"
UNDETERMINED = "undetermined"

# A share from here on names the word by itself.
DOMINANT = 0.5
# Below that the largest share names it, if it is at least so large, and so many times the next.
LARGEST = 0.35
LEAD = 1.5
# Work on the device that was seen to take more of the step than there is: measured under other
# conditions than the training (another clock, other programs), so that nothing follows.
BEYOND = 1.3


@dataclass(frozen=True)
class Diagnosis:
    """The word and its evidence in one sentence."""

    word: str
    evidence: str


def shares(
    step_s: float,
    wait_frac: float,
    *,
    compute_s: float,
    memory_s: float,
    communication_s: float,
) -> dict[str, float] | None:
    """Shares of a step of `step_s` seconds, which add up to 1; None where they cannot be.

    Work seen to take up to `BEYOND` times the time that the wait leaves is scaled to fit it.
    """
    if step_s <= 0:
        return None
    work = {"compute": compute_s, "memory": memory_s, "communication": communication_s}
    found = {name: seconds / step_s for name, seconds in work.items()}
    total, room = sum(found.values()), 1.0 - wait_frac
    if total > room:
        if total > BEYOND * room + 0.1:
            return None
        found = {name: share * room / total for name, share in found.items()}
    gaps = max(0.0, room - sum(found.values()))
    return {"input": wait_frac, "gaps": gaps, **found}


def diagnose(
    found: Mapping[str, float | None],
    *,
    placement: str = "",
    device_type: str = "",
    parallel: str = "",
    in_graph: bool = False,
    backend: str = "",
    replicas: int = 1,
    mfu: float | None = None,
    autocast: bool = False,
    reason: str = "",
) -> Diagnosis:
    """What limits a run with these shares; `undetermined` where they do not tell.

    A wait for the input of at least `DOMINANT` needs no other figure.
    """
    wait = found.get("input")
    if wait is not None and wait >= DOMINANT:
        return Diagnosis(WORDS["input"], _input(wait, placement))
    known = {name: share for name in SHARES if (share := found.get(name)) is not None}
    if len(known) < len(SHARES):
        missing = ", ".join(name for name in SHARES if name not in known)
        why = f": {reason}" if reason else ""
        return Diagnosis(UNDETERMINED, f"no figure for the share of {missing}{why}")
    ranked = sorted(known, key=lambda name: known[name], reverse=True)
    first, second = ranked[:2]
    largest, following = known[first], known[second]
    clear = largest >= DOMINANT or (largest >= LARGEST and largest >= LEAD * following)
    if not clear:
        told = ", ".join(f"{name} {known[name]:.0%}" for name in ranked if known[name] >= 0.05)
        return Diagnosis(MIXED, f"nothing dominates the time: {told}")
    return Diagnosis(
        WORDS[first],
        {
            "input": lambda: _input(largest, placement),
            "gaps": lambda: _gaps(largest, device_type, parallel, replicas, in_graph),
            "compute": lambda: _compute(largest, mfu, not autocast and device_type == "cuda"),
            "memory": lambda: _memory(largest),
            "communication": lambda: _communication(largest, backend, replicas),
        }[first](),
    )


# What to try, by where the images lie or who fetches them.
FASTER_INPUT = {
    "pil": "data.pipeline=resident",
    "workers": "data.pipeline=resident or more data.workers",
    "host": "data.placement=device",
    "decoder": "data.pipeline=resident, more data.workers or data.decode=host",
}


def _input(share: float, placement: str) -> str:
    advice = FASTER_INPUT.get(placement, "a faster input")
    return f"waits {share:.0%} of the time for its input: AMP cannot help; try {advice}"


def _gaps(share: float, device_type: str, parallel: str, replicas: int, in_graph: bool) -> str:
    if device_type == "cpu":
        return (
            f"{share:.0%} of the time passes between operations, in Python and PyTorch itself: "
            "number formats change little; try a larger data.batch_size"
        )
    if parallel == "dp" and replicas > 1:
        why = "while DataParallel copies the weights and starts its threads at every step"
        advice = "parallel=ddp"
    else:
        why = "between kernels, which are launched more slowly than they run"
        advice = "a larger data.batch_size" + ("" if in_graph else " or memory=fast")
    return (
        f"the device is idle {share:.0%} of the time {why}: number formats change little; "
        f"try {advice}"
    )


def _compute(share: float, mfu: float | None, lower_helps: bool) -> str:
    # On a CPU a lower precision helps only where it multiplies natively, and then not always.
    of = f", at {mfu:.0%} of this device's measured ceiling over the whole step" if mfu else ""
    advice = "; a lower precision helps most here" if lower_helps else ""
    return f"spends {share:.0%} of the time in matrix products and convolutions{of}{advice}"


def _memory(share: float) -> str:
    return (
        f"spends {share:.0%} of the time moving data (element-wise work, copies, the optimizer): "
        "faster matrix products change little; a larger data.batch_size shares out the optimizer's "
        "part"
    )


def _communication(share: float, backend: str, replicas: int) -> str:
    by = f" by {backend}" if backend else ""
    return (
        f"waits {share:.0%} of the time for gradients exchanged{by} between {replicas} devices: "
        "try a larger data.batch_size or fewer devices"
    )


def figures(record_effective: Mapping[str, Any]) -> dict[str, Any]:
    """What `diagnose` wants to know, by the names of a record's `effective`."""
    return {
        "placement": record_effective.get("data_placement") or "",
        "device_type": record_effective.get("device_type") or "",
        "parallel": record_effective.get("parallel") or "",
        "in_graph": bool(record_effective.get("cuda_graph")),
        "backend": record_effective.get("backend") or "",
        "replicas": record_effective.get("replicas") or 1,
        "autocast": record_effective.get("autocast_dtype") is not None,
    }
