"""The lock of a run directory: one process at a time trains a cell. No torch here.

A file created exclusively, with its owner inside and its modification time as the
heartbeat. A dead owner is recognised: on this machine by its process, elsewhere and
in another container by a heartbeat that stopped. An owner that was only suspended
finds out that its lock has gone to another.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Self

import psutil

from amp_sweep import record

HEARTBEAT_S = 5.0
# Owners on other machines are believed dead after this long without a heartbeat.
STALE_S = 60.0
# An owner is some hundred bytes.
_OWNER_BYTES = 2**16


class LockHeld(Exception):
    """Another live process holds the lock; `owner` says which."""

    def __init__(self, owner: dict[str, Any]) -> None:
        super().__init__(describe(owner))
        self.owner = owner


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return str(int(psutil.boot_time()))


def _pid_namespace() -> str | None:
    """Where this process's id counts: containers of one host may each have a process 1."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # not Linux
        return None


def _started(pid: int) -> float:
    """When a process began, by a count that setting the system's clock leaves as it is.

    Raises psutil.Error.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux, or gone
        return psutil.Process(pid).create_time()
    return float(stat.rpartition(")")[2].split()[19])  # clock ticks since the machine began


def _me() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "boot_id": _boot_id(),
        "pid": os.getpid(),
        "pid_namespace": _pid_namespace(),
        "started": _started(os.getpid()),
        "job_id": os.environ.get("SLURM_JOB_ID"),
        "token": uuid.uuid4().hex,
    }


def _shares_pids(owner: dict[str, Any]) -> bool:
    """Whether the process id of an owner on this host means the same process here.

    Owners of earlier versions do not say where theirs counts: it is believed to.
    """
    mine = _pid_namespace()
    return bool(owner.get("pid_namespace", mine) == mine)


def describe(owner: dict[str, Any]) -> str:
    """The owner in words."""
    job = f", job {owner['job_id']}" if owner.get("job_id") else ""
    # Who looks for the number here, to end it, would find another process.
    here = owner.get("host") == socket.gethostname()
    where = "" if not here or _shares_pids(owner) else " in another PID namespace"
    return f"process {owner.get('pid', '?')} on {owner.get('host', '?')}{where}{job}"


def read_owner(path: Path) -> dict[str, Any] | None:
    """Who holds the lock at `path`; None where there is none."""
    try:
        owner = json.loads(record.read_regular(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _heartbeat_age_s(path: Path) -> float:
    """Seconds since the lock's heartbeat by the file system's own clock."""
    probe = path.with_name(f".{path.name}.{uuid.uuid4().hex}.now")
    try:
        probe.touch()
        return probe.stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
    except OSError:  # read-only here: this machine's clock will do
        return time.time() - path.stat().st_mtime
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def is_alive(path: Path, owner: dict[str, Any]) -> bool:
    """Whether the lock's owner still runs."""
    mine = _me()
    here = owner.get("host") == mine["host"]
    same_boot = owner.get("boot_id") == mine["boot_id"]
    if here and same_boot and _shares_pids(owner):
        try:
            process = psutil.Process(int(owner["pid"]))
            # A process id is used again: the start time tells them apart.
            same = abs(_started(process.pid) - float(owner["started"])) < 1.0
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.AccessDenied:
            return True
        except (psutil.NoSuchProcess, KeyError, TypeError, ValueError, OverflowError):
            return False
    if here and not same_boot and owner.get("boot_id"):
        return False  # this machine was started again since
    return _heartbeat_age_s(path) < STALE_S


class Lock:
    """Holds the lock of one run directory while the `with` block lasts.

    Entering raises LockHeld when a live owner has it, and OSError when the
    directory cannot be written.

    `lost` is set, and stays so, when the lock is found to be another's inside the block: this
    process was suspended for so long that it was believed dead. It is found at a heartbeat or
    by `is_ours`. Nothing may be written to the directory from then on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.owner = _me()
        self.lost = False
        self._stop = threading.Event()
        self._beat: threading.Thread | None = None

    def __enter__(self) -> Self:
        while not self._create():
            current = read_owner(self.path)
            if current is None:
                continue
            requeued = current.get("job_id") and current["job_id"] == self.owner["job_id"]
            same_node = current.get("host") == self.owner["host"]
            if is_alive(self.path, current) and not (requeued and not same_node):
                raise LockHeld(current)
            self._remove_stale(current)
        self._beat = threading.Thread(target=self._heartbeat, name="lock heartbeat", daemon=True)
        self._beat.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._beat is not None:
            self._beat.join()
        current = read_owner(self.path)
        if current is not None and current.get("token") == self.owner["token"]:
            with contextlib.suppress(OSError):
                self.path.unlink()

    def is_ours(self) -> bool:
        """Whether nobody has taken the lock over; to be asked inside the block only.

        One read of a small file: cheap enough for every poll and before every write. Raises
        nothing: a file system that fails to answer has not given the lock to another.
        """
        return self._ask(beat=False)

    def _create(self) -> bool:
        """Create the lock with its content in one step; False when there is one."""
        temporary = self.path.with_name(f".{self.path.name}.{self.owner['token']}")
        temporary.write_text(json.dumps(self.owner), encoding="utf-8")
        try:
            os.link(temporary, self.path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def _remove_stale(self, stale: dict[str, Any]) -> None:
        """Remove a dead owner's lock; only one of several contenders gets to do it."""
        guard = self.path.with_name(f".{self.path.name}.takeover")
        try:
            os.close(os.open(guard, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            # Another contender is at it, or died at it long ago.
            if _heartbeat_age_s(guard) > STALE_S:
                guard.unlink(missing_ok=True)
            time.sleep(0.02)
            return
        try:
            if read_owner(self.path) == stale:
                self.path.unlink(missing_ok=True)
        finally:
            guard.unlink(missing_ok=True)

    def _heartbeat(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            if not self._ask(beat=True):
                return

    def _ask(self, *, beat: bool) -> bool:
        """Read whose the lock is, set `lost` if it is not ours; a heartbeat, if it is."""
        if self.lost:
            return False
        # What cannot be read is no loss. Nor is it another's: a lock appears with its content.
        with contextlib.suppress(OSError, ValueError, RecursionError):
            try:
                file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)  # it may be a FIFO now
            except FileNotFoundError:
                # A directory that was deleted as a whole has no other owner either.
                if self.path.parent.is_dir():
                    self.lost = True
                return not self.lost
            try:
                # Reading and touching are two steps. A takeover between them puts another file
                # in this one's place, so the touch of the open file never reaches the successor's
                # lock. It does not stop a contender that has judged already: the next
                # question finds that out.
                owner = json.loads(os.read(file, _OWNER_BYTES))
                if isinstance(owner, dict) and owner.get("token") != self.owner["token"]:
                    self.lost = True  # never False again: two threads may ask at once
                elif beat:
                    os.utime(file)
            finally:
                os.close(file)
        return not self.lost
