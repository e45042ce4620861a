"""From what the ranks said and how they ended to a cell's status."""

import signal
from typing import Any

import pytest

from amp_sweep import record
from amp_sweep.launch.judge import Watched, judge

CUT_SHORT = "the probes after the training were cut short: "
MISSING = "; figures that need them are missing"


def ending(rank: int, kind: str = record.RUNNING, **more: Any) -> dict[str, Any]:
    return {"rank": rank, "pid": 100 + rank, "time": float(rank), "kind": kind, **more}


def raised(rank: int, kind: str, name: str, message: str, **more: Any) -> dict[str, Any]:
    error = {"type": name, "message": message, "traceback": "Traceback ..."}
    return ending(rank, kind, error=error, **more)


def of(*endings: dict[str, Any], **seen: Any) -> Watched:
    return Watched(endings={one["rank"]: one for one in endings}, **seen)


def deaths(**said: Any) -> dict[str, tuple[Watched, str, str]]:
    """Ways to end two ranks that have said `said`: what was seen, the status, and the words."""
    lost = "Connection closed by peer [127.0.0.1]"
    killed = {1: -signal.SIGKILL, 0: 1}
    echo = raised(0, record.FAILED, "RuntimeError", lost, **said)
    gone, here = ending(1, **said), ending(0, **said)
    agent = "the process that starts the ranks was killed by SIGKILL"
    return {
        "killed": (
            of(echo, gone, exitcodes=killed),
            record.FAILED,
            "rank 1 was killed by SIGKILL",
        ),
        "killed by the kernel": (
            of(echo, gone, exitcodes=killed, oom_kills=1),
            record.OOM,
            "the kernel killed rank 1 for want of memory",
        ),
        "left without a word": (
            of(echo, gone, exitcodes={1: 0, 0: 1}),
            record.FAILED,
            "rank 1 ended without a word, with exit code 0",
        ),
        "raised": (
            of(here, raised(1, record.OOM, "MemoryError", "no more\nof it", **said)),
            record.OOM,
            "rank 1 ended with MemoryError: no more",
        ),
        "hangs": (
            of(here, gone, stalled=True),
            record.TIMEOUT,
            "no progress within launch.stall_timeout_s; the ranks were ended",
        ),
        "Ctrl-C": (
            of(here, gone, stopped=True),
            record.INTERRUPTED,
            "the run was interrupted",
        ),
        "agent killed": (
            of(here, gone, agent_lost=True, agent_error=agent),
            record.FAILED,
            agent,
        ),
    }


@pytest.mark.parametrize("how", deaths())
def test_what_ends_the_ranks_in_the_training_ends_the_cell(how: str) -> None:
    seen, status, words = deaths()[how]
    found = judge(seen, 2)
    assert (found.status, found.note) == (status, None)
    if found.error is not None:
        message = found.error["message"].splitlines()[0]
        assert message == words.removeprefix("rank 1 ended with MemoryError: ")


@pytest.mark.parametrize("how", deaths())
def test_what_ends_the_ranks_in_the_probes_leaves_the_cell_completed(how: str) -> None:
    seen, _, words = deaths(trained=True)[how]
    assert judge(seen, 2) == (record.COMPLETED, None, f"{CUT_SHORT}{words}{MISSING}")


def test_one_rank_that_says_so_suffices_since_all_have_agreed() -> None:
    seen = of(ending(0), ending(1, trained=True), exitcodes={0: -signal.SIGKILL})
    note = f"{CUT_SHORT}rank 0 was killed by SIGKILL{MISSING}"
    assert judge(seen, 2) == (record.COMPLETED, None, note)


def test_a_death_after_the_probes_costs_no_figure() -> None:
    both = {"trained": True, "probed": True}
    seen = of(
        ending(0, record.COMPLETED, **both), ending(1, **both), exitcodes={1: -signal.SIGSEGV}
    )
    assert judge(seen, 2) == (
        record.COMPLETED,
        None,
        "when everything was measured and written, rank 1 was killed by SIGSEGV",
    )
    # What rank 1 knows of the probes is not what rank 0 has written of them.
    seen = of(ending(0, trained=True), ending(1, **both), exitcodes={0: -signal.SIGSEGV})
    assert judge(seen, 2).note == f"{CUT_SHORT}rank 0 was killed by SIGSEGV{MISSING}"


@pytest.mark.parametrize("status", [record.INVALID, record.DIVERGED])
def test_what_makes_a_result_wrong_is_never_passed_over(status: str) -> None:
    seen = of(raised(0, status, "Invalid", "not what was asked for", trained=True))
    assert judge(seen, 1).status == status


def test_ranks_that_all_completed_need_no_note() -> None:
    whole = {"trained": True, "probed": True}
    seen = of(*(ending(rank, record.COMPLETED, **whole) for rank in range(2)), stopped=True)
    assert judge(seen, 2) == (record.COMPLETED, None, None)
