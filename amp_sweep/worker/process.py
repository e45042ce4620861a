"""A rank as a process: its log, its signals, its end with the launcher, how it ended."""

import contextlib
import json
import logging
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from amp_sweep import forkserver, record
from amp_sweep.messages import RankJob
from amp_sweep.parallel import Ranks
from amp_sweep.paths import RunPaths
from amp_sweep.worker.build import Invalid
from amp_sweep.worker.guard import Diverged, RanksDiffer
from amp_sweep.worker.train import StopRequest, run_cell

log = logging.getLogger(__name__)

# How it is said elsewhere than in PyTorch's allocator for GPUs: on a CPU, by CUDA (a context, a
# graph, pinned memory), and by cuBLAS as it starts.
OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")

# PyTorch's advice where parameters got no gradient under ddp, and what it means here.
ADVICE = "passing the keyword argument `find_unused_parameters=True`"
OUR_ADVICE = "parameters that get no gradient need parallel.find_unused_parameters=true under ddp: "


def _log_to(path: Path) -> None:
    """Send this process's log, and all it prints, to its own file."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
        force=True,
    )
    logging.captureWarnings(True)


def _stop_on_signal() -> StopRequest:
    stop = StopRequest()

    def request(_number: int, _frame: object) -> None:
        stop.requested = True

    # A terminal's Ctrl-C reaches the whole group; the launcher decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, request)
    return stop


def _describe(kind: str, error: BaseException) -> dict[str, Any]:
    message = str(error)
    if ADVICE in message:
        message = OUR_ADVICE + message
    return {
        "kind": kind,
        "error": {
            "type": type(error).__name__,
            "message": message,
            "traceback": "".join(traceback.format_exception(error)),
            # The rank at fault, where that is not the one that noticed.
            **({"rank": error.rank} if isinstance(error, RanksDiffer) else {}),
        },
    }


def run_rank(job: RankJob, agent_pid: int) -> None:
    """Entry of a rank's process, called by the elastic agent; exits 1 unless all went well.

    What the agent sets in the environment says which rank this is; nothing else there is asked.
    """
    ranks = Ranks(int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"]), job.plan.world_size)
    paths = RunPaths(Path(job.run_dir))
    stop = _stop_on_signal()
    forkserver.die_with(agent_pid)

    milestones: dict[str, bool] = {}

    def write_ending(values: dict[str, Any]) -> None:
        who = {"rank": ranks.rank, "pid": os.getpid(), "time": time.time()}
        record.write_atomic(paths.ending(ranks.rank), json.dumps({**who, **milestones, **values}))

    def reached(milestone: str) -> None:
        milestones[milestone] = True
        write_ending({"kind": record.RUNNING})

    try:
        _log_to(paths.log(ranks.rank))
        write_ending({"kind": record.RUNNING})
        ending: dict[str, Any] = {"kind": run_cell(job, paths, ranks, stop, reached)}
    except Diverged as error:
        ending = _describe(record.DIVERGED, error)
    except Invalid as error:
        ending = _describe(record.INVALID, error)
    except (torch.OutOfMemoryError, MemoryError) as error:
        ending = _describe(record.OOM, error)
    except BaseException as error:  # SystemExit too: whatever ends a rank is a finding
        out_of_memory = any(words in str(error) for words in OUT_OF_MEMORY)
        ending = _describe(record.OOM if out_of_memory else record.FAILED, error)
    with contextlib.suppress(OSError):  # a full disk: the launcher sees the exit code
        write_ending(ending)
    if "error" in ending:
        log.error("%s", ending["error"]["traceback"])
        sys.stderr.flush()
        os._exit(1)  # the group's other members may never answer a clean farewell
