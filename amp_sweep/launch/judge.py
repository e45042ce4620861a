"""How the ranks of one cell ended, in a word and in an error."""

import signal
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from amp_sweep import record

# How the note begins.
CUT_SHORT = "the probes after the training were cut short"


@dataclass
class Watched:
    """What the watcher saw of the ranks of one cell."""

    endings: dict[int, dict[str, Any]] = field(default_factory=dict)
    exitcodes: dict[int, int | None] = field(default_factory=dict)
    stopped: bool = False  # we asked the ranks to save and stop
    stalled: bool = False  # no progress: we killed them
    paused_s: float = 0.0  # in which nothing moved while the ranks were to train
    oom_kills: int = 0  # by the kernel, on this machine, while the cell ran
    agent_error: str | None = None
    agent_lost: bool = False  # the process that starts the ranks was killed: they went with it


class Verdict(NamedTuple):
    """What became of a cell: its status, its error, and a note where the probes were cut short."""

    status: str
    error: Any = None
    note: str | None = None


def how_it_died(code: int | None) -> str:
    """A process's exit code in words."""
    if code is None:
        return "ended without a word"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"was killed by {name}"
    return f"ended without a word, with exit code {code}"


def _error(kind: str, message: str, rank: int | None = None, code: int | None = None) -> Any:
    return {"type": kind, "message": message, "traceback": None, "rank": rank, "exitcode": code}


# What may end the ranks when the training is over, and then ends no more than the probes.
HARMLESS_AFTERWARDS = frozenset({record.FAILED, record.OOM, record.TIMEOUT, record.INTERRUPTED})


def judge(seen: Watched, ranks: int) -> Verdict:
    """What became of the cell, from what each rank said and how it ended.

    A rank says `trained` only after all have agreed that the training is over and stored: then it
    stands, whatever ended the ranks afterwards.
    """
    status, error = _ended(seen, ranks)
    trained = any(ending.get("trained") for ending in seen.endings.values())
    if not trained or status not in HARMLESS_AFTERWARDS:
        return Verdict(status, error)
    what = _in_words(error)
    if seen.endings.get(0, {}).get("probed"):  # it is rank 0 that writes them
        return Verdict(record.COMPLETED, note=f"when everything was measured and written, {what}")
    note = f"{CUT_SHORT}: {what}; figures that need them are missing"
    return Verdict(record.COMPLETED, note=note)


def _in_words(error: Any) -> str:
    """What ended the ranks, in a line."""
    if error is None:
        return "the run was interrupted"
    lines = str(error["message"]).strip().splitlines() or [""]
    if error["traceback"] is None:  # a sentence of ours
        return lines[0]
    return f"rank {error['rank']} ended with {error['type']}: {lines[0]}"


def _ended(seen: Watched, ranks: int) -> tuple[str, Any]:
    """The status of the cell, and its error, as if the training had not been over."""
    kinds = {rank: seen.endings.get(rank, {}).get("kind") for rank in range(ranks)}
    if all(kind == record.COMPLETED for kind in kinds.values()):
        return record.COMPLETED, None
    if seen.stopped:
        return record.INTERRUPTED, None
    if seen.stalled:
        message = "no progress within launch.stall_timeout_s; the ranks were ended"
        return record.TIMEOUT, _error("Stalled", message)
    if seen.agent_lost:
        return record.FAILED, _error("LaunchError", str(seen.agent_error))
    if not seen.endings:
        return record.FAILED, _error("LaunchError", f"the ranks did not start: {seen.agent_error}")
    said = [ending for ending in seen.endings.values() if "error" in ending]
    own = [ending for ending in said if not _is_echo(ending)]
    silent = [rank for rank, kind in kinds.items() if kind in (None, record.RUNNING)]
    # A rank that is gone without a word died first: its neighbours lived to tell of it.
    if silent and not own:
        rank = min(silent, key=lambda rank: kinds[rank] is None)
        code = seen.exitcodes.get(rank)
        if code == -signal.SIGKILL and seen.oom_kills:
            return record.OOM, _error(
                "OutOfHostMemory", f"the kernel killed rank {rank} for want of memory", rank, code
            )
        return record.FAILED, _error("RankDied", f"rank {rank} {how_it_died(code)}", rank, code)
    if said:
        first = min(own or said, key=lambda ending: float(ending["time"]))
        error = {"rank": first["rank"], **first["error"]}
        error["exitcode"] = seen.exitcodes.get(first["rank"])
        return first["kind"], error
    return record.INTERRUPTED, None  # all saved and stopped: somebody else told them to


# What a rank says when another one has gone.
ECHOES = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "NCCL communicator was aborted",
    "remote process exited",
)


def _is_echo(ending: dict[str, Any]) -> bool:
    message = f"{ending['error'].get('type')}: {ending['error'].get('message')}"
    return any(echo in message for echo in ECHOES)
