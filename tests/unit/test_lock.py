"""The lock of a run directory, between real processes."""

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from amp_sweep import lock
from amp_sweep.lock import Lock, LockHeld

# Takes the lock argv[1], says so, and holds it until a line or the end comes on stdin.
HOLDER = """
import sys
from pathlib import Path
from amp_sweep.lock import Lock, LockHeld
try:
    with Lock(Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.readline()
except LockHeld as error:
    print("refused", error.owner["pid"], flush=True)
"""

# Takes the lock argv[1] argv[2] times. Inside it leaves a dead owner's lock behind in the place
# of its own, so that every turn begins with a race for a stale lock.
RACER = """
import json, os, sys, time
from pathlib import Path
from amp_sweep.lock import Lock, LockHeld
path, turns = Path(sys.argv[1]), int(sys.argv[2])
inside, stale = path.with_name("inside"), path.with_name("stale").read_text()
print("ready", flush=True)
sys.stdin.readline()
done = 0
while done < turns:
    try:
        with Lock(path):
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL))  # fails if another is inside
            time.sleep(0.002)
            inside.unlink()
            done += 1
            mine = path.with_name(f"stale.{os.getpid()}")
            mine.write_text(stale)
            mine.replace(path)
    except LockHeld:
        time.sleep(0.002)
print("done", done, flush=True)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def start() -> Iterator[Start]:
    children: list[subprocess.Popen[str]] = []

    def run(code: str, *arguments: object) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield run
    for child in children:
        child.kill()
        child.communicate()


def said(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def release(child: "subprocess.Popen[str]") -> None:
    child.communicate("\n", timeout=20)
    assert child.returncode == 0


def write_owner(path: Path, age_s: float = 0.0, **changes: Any) -> dict[str, Any]:
    """A lock as this process holds it, with changes, its last heartbeat `age_s` ago."""
    scratch = path.with_name("scratch")
    with Lock(scratch):
        owner: dict[str, Any] = {**json.loads(scratch.read_text()), "token": "t0", **changes}
    path.write_text(json.dumps(owner))
    then = time.time() - age_s
    os.utime(path, (then, then))
    return owner


def replace_by_anothers(path: Path) -> None:
    """Another host's fresh lock in the place of this one, as a takeover leaves it."""
    mine = json.loads(path.read_text())
    others = path.with_name("others")
    others.write_text(json.dumps({**mine, "host": "elsewhere", "boot_id": "x", "token": "t1"}))
    others.replace(path)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def leave_behind(path: Path, start: Start) -> dict[str, Any]:
    """The lock of a process that was killed; its owner."""
    holder = start(HOLDER, path)
    assert said(holder) == "held"
    holder.kill()
    holder.wait()
    owner = lock.read_owner(path)
    assert owner is not None and owner["pid"] == holder.pid
    return owner


def taken(path: Path) -> bool:
    """Whether this process gets the lock."""
    try:
        with Lock(path):
            return True
    except LockHeld:
        return False


def test_a_lock_excludes_another_process_and_names_its_owner(path: Path, start: Start) -> None:
    holder = start(HOLDER, path)
    assert said(holder) == "held"
    with pytest.raises(LockHeld) as caught, Lock(path):
        pass
    assert caught.value.owner["pid"] == holder.pid
    assert str(holder.pid) in str(caught.value) and socket.gethostname() in str(caught.value)
    assert said(start(HOLDER, path)) == f"refused {holder.pid}"
    release(holder)
    assert taken(path)


def test_a_lock_is_gone_after_the_block_and_leaves_nothing(path: Path, start: Start) -> None:
    with Lock(path):
        assert path.exists()
    assert list(path.parent.iterdir()) == []
    with contextlib.suppress(ZeroDivisionError), Lock(path):
        raise ZeroDivisionError
    assert list(path.parent.iterdir()) == []
    holder = start(HOLDER, path)
    assert said(holder) == "held"
    assert [item.name for item in path.parent.iterdir()] == ["lock"]
    release(holder)
    assert list(path.parent.iterdir()) == []


def test_the_process_itself_cannot_take_a_lock_twice(path: Path) -> None:
    with Lock(path):
        assert not taken(path)
        assert path.exists()


def test_the_lock_of_a_killed_process_is_taken_over_at_once(path: Path, start: Start) -> None:
    holder = start(HOLDER, path)
    assert said(holder) == "held"
    owner = lock.read_owner(path)
    assert owner is not None and lock.is_alive(path, owner)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert path.exists()
    assert not lock.is_alive(path, owner)
    with Lock(path):
        now = lock.read_owner(path)
        assert now is not None and now["pid"] == os.getpid()
    assert list(path.parent.iterdir()) == []


def test_a_dead_process_that_nobody_has_waited_for_is_dead(path: Path, start: Start) -> None:
    holder = start(HOLDER, path)
    assert said(holder) == "held"
    holder.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(holder.pid).status() == psutil.STATUS_ZOMBIE
    assert taken(path)


def test_a_process_id_that_is_used_again_is_another_process(path: Path, start: Start) -> None:
    write_owner(path)
    assert not taken(path)
    path.unlink()
    # The killed process's lock, as if its number were now this process's, which is older.
    dead = leave_behind(path, start)
    path.write_text(json.dumps({**dead, "pid": os.getpid()}))
    assert taken(path)


def test_an_owner_lives_on_when_the_system_clock_is_set(
    path: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = start(HOLDER, path)
    assert said(holder) == "held"
    # A /proc as the kernel shows it after the clock was put forward by 30 s (a time server's
    # first answer): the moment of the last start, btime, has moved with it.
    fake = tmp_path / "proc"
    fake.mkdir()
    for entry in Path("/proc").iterdir():
        if entry.name != "stat":
            (fake / entry.name).symlink_to(entry)
    lines = Path("/proc/stat").read_text().splitlines()
    moved = [f"btime {int(x.split()[1]) + 30}" if x.startswith("btime") else x for x in lines]
    (fake / "stat").write_text("\n".join(moved) + "\n")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(fake))
    assert psutil.pid_exists(holder.pid)
    assert not taken(path)


def test_an_owner_before_this_machines_last_start_is_dead(path: Path) -> None:
    write_owner(path, boot_id="00000000-0000-0000-0000-000000000000")
    assert taken(path)


@pytest.mark.parametrize(("age_s", "alive"), [(0, True), (30, True), (90, False), (1e6, False)])
def test_an_owner_on_another_machine_lives_while_its_heart_beats(
    path: Path, age_s: float, alive: bool
) -> None:
    owner = write_owner(path, age_s, host="elsewhere", boot_id="x", pid=1)
    assert lock.is_alive(path, owner) == alive
    assert taken(path) == (not alive)


@pytest.mark.parametrize("namespace", ["pid:[1]", None])
@pytest.mark.parametrize(("age_s", "alive"), [(0, True), (30, True), (90, False)])
def test_an_owner_in_another_container_of_this_host_lives_while_its_heart_beats(
    path: Path, namespace: str | None, age_s: float, alive: bool
) -> None:
    # Its number is nobody's here; then it is this very process's.
    for number in ({"pid": 2**22 + 1}, {}):
        owner = write_owner(path, age_s, pid_namespace=namespace, **number)
        assert lock.is_alive(path, owner) == alive
        assert taken(path) == (not alive)


def test_an_owner_in_another_container_before_this_machines_last_start_is_dead(
    path: Path,
) -> None:
    write_owner(path, boot_id="00000000-0000-0000-0000-000000000000", pid_namespace="pid:[1]")
    assert taken(path)


def test_an_owner_of_an_earlier_version_is_looked_up_by_its_process(
    path: Path, start: Start
) -> None:
    owner = write_owner(path, 1e6)
    del owner["pid_namespace"]
    path.write_text(json.dumps(owner))
    os.utime(path, (1000, 1000))
    assert not taken(path)
    path.unlink()
    dead = leave_behind(path, start)
    del dead["pid_namespace"]
    path.write_text(json.dumps(dead))
    assert taken(path)


def test_a_machine_without_namespaces_looks_its_owners_up(
    path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "readlink", refuse)
    owner = write_owner(path, 1e6)
    assert owner["pid_namespace"] is None
    assert lock.is_alive(path, owner)


def test_the_question_whether_an_owner_lives_leaves_nothing_behind(path: Path) -> None:
    owner = write_owner(path, 30, host="elsewhere", boot_id="x")
    before = path.stat().st_mtime
    lock.is_alive(path, owner)
    assert path.stat().st_mtime == before
    assert [item.name for item in path.parent.iterdir()] == ["lock"]


def test_a_requeued_job_takes_over_its_own_lock_from_another_node(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_owner(path, 0, host="node1", boot_id="x", job_id="77")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert not taken(path)
    monkeypatch.setenv("SLURM_JOB_ID", "78")
    assert not taken(path)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert taken(path)


def test_the_same_jobs_live_process_on_this_node_keeps_its_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    write_owner(path, 0, job_id="77")
    assert not taken(path)


def test_the_heart_beats_while_the_lock_is_held(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.02)
    with Lock(path) as held:
        for _ in range(2):
            os.utime(path, (1000, 1000))
            wait_for(lambda: path.stat().st_mtime > 2000)
        assert not held.lost and held.is_ours()


def test_a_lock_that_another_took_over_is_lost_and_its_heart_stops(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.02)
    with Lock(path) as held:
        replace_by_anothers(path)
        os.utime(path, (1000, 1000))
        wait_for(lambda: held.lost)
        time.sleep(0.1)
        assert path.stat().st_mtime == 1000
        assert not held.is_ours()
        path.unlink()  # the successor has ended: it is not ours again
        assert held.lost and not held.is_ours()
    assert list(path.parent.iterdir()) == []


def test_whose_a_lock_is_can_be_asked_before_the_next_heartbeat(path: Path) -> None:
    with Lock(path) as held:
        assert held.is_ours()
        os.utime(path, (1000, 1000))
        assert held.is_ours()
        assert path.stat().st_mtime == 1000  # a question is no heartbeat
        replace_by_anothers(path)
        assert not held.lost
        assert not held.is_ours()
        assert held.lost
    owner = lock.read_owner(path)
    assert owner is not None and owner["token"] == "t1"


def test_a_heartbeat_never_reaches_the_lock_of_a_successor(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.02)
    loads, moved = json.loads, []

    # The takeover comes when the heartbeat has read the lock and has not touched it yet.
    def take_over(text: str | bytes) -> Any:
        owner = loads(text)
        if not moved and threading.current_thread().name == "lock heartbeat":
            moved.append(True)
            replace_by_anothers(path)
            os.utime(path, (1000, 1000))
        return owner

    with Lock(path) as held:
        monkeypatch.setattr(json, "loads", take_over)
        wait_for(lambda: held.lost)
        assert path.stat().st_mtime == 1000


def test_a_lock_that_was_removed_is_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Lock(path) as asked:
        path.unlink()
        assert not asked.is_ours() and asked.lost
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.02)
    with Lock(path) as held:
        path.unlink()
        wait_for(lambda: held.lost)


def test_a_lock_whose_folder_was_deleted_is_not_anothers(tmp_path: Path) -> None:
    path = tmp_path / "run" / "lock"
    path.parent.mkdir()
    with Lock(path) as held:
        shutil.rmtree(path.parent)
        assert held.is_ours() and not held.lost


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EACCES])
def test_a_file_system_that_does_not_answer_takes_no_lock_away(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.02)
    asked = []

    def fail(*_: object) -> int:
        asked.append(True)
        raise OSError(number, os.strerror(number))

    with Lock(path) as held:
        with monkeypatch.context() as broken:
            broken.setattr(os, "open", fail)
            assert held.is_ours()
            wait_for(lambda: len(asked) > 3)
            assert not held.lost
        # It answers again, and the heart beats on.
        os.utime(path, (1000, 1000))
        wait_for(lambda: path.stat().st_mtime > 2000)
        replace_by_anothers(path)
        wait_for(lambda: held.lost)


@pytest.mark.parametrize("content", ["", "{", "null", "\x00\x00", "[" * 100_000])
def test_a_lock_that_was_damaged_is_not_anothers(path: Path, content: str) -> None:
    with Lock(path) as held:
        path.write_text(content)
        assert held.is_ours() and not held.lost


def test_a_heartbeat_comes_well_before_an_owner_is_believed_dead() -> None:
    assert 3 * lock.HEARTBEAT_S <= lock.STALE_S


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "null", "\x00\x00", '{"host": "x"'])
def test_an_unreadable_lock_is_held_while_fresh_and_stale_when_old(
    path: Path, content: str
) -> None:
    path.write_text(content)
    assert lock.read_owner(path) == {}
    with pytest.raises(LockHeld, match=r"process \? on \?"), Lock(path):
        pass
    assert path.read_text() == content
    os.utime(path, (1000, 1000))
    assert taken(path)


def test_a_fifo_in_the_place_of_a_lock_is_held_while_fresh_and_stale_when_old(path: Path) -> None:
    os.mkfifo(path)
    assert lock.read_owner(path) == {}
    assert not taken(path)
    os.utime(path, (1000, 1000))
    assert taken(path)
    assert list(path.parent.iterdir()) == []


def test_a_lock_that_is_nested_too_deep_is_an_unreadable_one(path: Path) -> None:
    path.write_text("[" * 100_000)
    assert lock.read_owner(path) == {}


@pytest.mark.parametrize("changes", [{"pid": "x"}, {"pid": None}, {"started": None}])
def test_an_owner_here_that_cannot_be_looked_up_is_dead(path: Path, changes: Any) -> None:
    write_owner(path, **changes)
    assert taken(path)


def test_no_lock_has_no_owner(path: Path) -> None:
    assert lock.read_owner(path) is None


def test_an_owner_is_described_with_its_job() -> None:
    owner = {"pid": 12, "host": "n1", "job_id": None}
    assert lock.describe(owner) == "process 12 on n1"
    assert lock.describe({**owner, "job_id": "77"}) == "process 12 on n1, job 77"


def test_an_owner_whose_number_means_nothing_here_is_described_so() -> None:
    here = socket.gethostname()
    owner = {"pid": 12, "host": here, "pid_namespace": "pid:[1]", "job_id": "77"}
    assert lock.describe(owner) == f"process 12 on {here} in another PID namespace, job 77"
    assert lock.describe({**owner, "host": "n1"}) == "process 12 on n1, job 77"


def test_a_lock_that_was_taken_away_is_not_anothers_to_remove(path: Path) -> None:
    with Lock(path):
        write_owner(path, token="another")
    owner = lock.read_owner(path)
    assert owner is not None and owner["token"] == "another"


def test_a_lock_that_vanished_is_no_error_on_the_way_out(path: Path) -> None:
    with Lock(path):
        path.unlink()
    assert list(path.parent.iterdir()) == []


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError), Lock(tmp_path / "nowhere" / "lock"):
        pass


def test_a_contender_that_died_while_taking_over_stops_nobody_for_ever(
    path: Path, start: Start
) -> None:
    leave_behind(path, start)
    guard = path.with_name(".lock.takeover")
    guard.touch()
    os.utime(guard, (1000, 1000))
    assert taken(path)
    assert list(path.parent.iterdir()) == []


def test_eight_processes_racing_for_a_stale_lock_hold_it_one_at_a_time(
    path: Path, start: Start
) -> None:
    leave_behind(path, start)
    path.with_name("stale").write_text(path.read_text())
    racers = [start(RACER, path, 5) for _ in range(8)]
    assert [said(racer) for racer in racers] == ["ready"] * 8
    for racer in racers:  # as close to one another as can be
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    answers = [said(racer) for racer in racers]
    codes = [racer.wait(timeout=30) for racer in racers]
    assert answers == ["done 5"] * 8
    assert codes == [0] * 8
