"""Where figures come from: machine, versions, commit, date."""

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path


def commit() -> str:
    """Short name of the commit of the code that runs, from whatever folder; or "unknown"."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:  # no git here
        return "unknown"
    return done.stdout.strip() or "unknown"


def today() -> str:
    """The date, in UTC."""
    return str(datetime.now(UTC).date())


def cores() -> int:
    """That this process may run on."""
    return len(os.sched_getaffinity(0))


def machine(load: float) -> str:
    """Processor, its cores, their load average when all began, PyTorch's version and the date."""
    import torch

    from amp_sweep.hardware import cpu_name

    return (
        f"{cpu_name()}, {cores()} cores (load average {load:.1f} at the start), "
        f"torch {torch.__version__}, {today()}"
    )
