"""Which code was measured."""

import subprocess
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
