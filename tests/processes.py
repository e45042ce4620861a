"""What the operating system says of the processes of a test."""

import os
import signal

import psutil

from tests.conftest import wait_for


def group_members(group: int) -> list[psutil.Process]:
    """The living processes of a process group."""
    members = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
        except (psutil.Error, ProcessLookupError):
            continue
    return members


def wait_for_end_of_group(group: int, timeout_s: float = 5.0) -> None:
    """Return when no process of the group lives; fail when one still does after `timeout_s`."""
    wait_for(lambda: not group_members(group), timeout_s)


def freeze(pid: int) -> None:
    """Stop a process; returns when it has stopped, which is some time after the signal."""
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: status(pid) == psutil.STATUS_STOPPED)


def freeze_group(group: int) -> None:
    """Stop all processes of a group, those too that are only just forked."""

    def stopped() -> bool:
        os.killpg(group, signal.SIGSTOP)
        left = [status(member.pid) for member in group_members(group)]
        return set(left) <= {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}

    wait_for(stopped)


def status(pid: int) -> str:
    """psutil's word for it; a zombie's where there is no such process."""
    try:
        return psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE


def gone(pid: int) -> bool:
    """Whether a process has ended, also where nobody has waited for it."""
    return status(pid) == psutil.STATUS_ZOMBIE
