"""One process at a time. No torch here."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from amp_sweep.data.prepared import Progress


@contextlib.contextmanager
def locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file `path` while the block lasts, waiting for whoever has it.

    The system releases it when its owner dies. Raises OSError where the file cannot be made.
    """
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that prepares the same data", 0, 1)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
