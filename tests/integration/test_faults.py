"""Nothing is lost: interruptions, crashes, two sweeps at once, disks that are full."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from amp_sweep import record
from amp_sweep.record import Record
from tests.conftest import CommandLine

FAULTY = ("model.name=faults:Net", "data.image_size=16", "data.batch_size=48", "epochs=3")
ENDS_WITHIN_S = 10.0


@pytest.fixture
def faulty(command: CommandLine) -> Iterator[CommandLine]:
    shutil.copy(Path(__file__).with_name("faults.py"), command.folder / "faults.py")
    yield command


def with_environment(command: CommandLine, **variables: str) -> CommandLine:
    return CommandLine(command.folder, {**command.environment, **variables})


def wait_for(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def progress(command: CommandLine) -> str:
    found = [path.read_text() for path in command.folder.glob("outputs/*/*/progress.json")]
    return "".join(found)


def past_first_epoch(command: CommandLine) -> Callable[[], object]:
    return lambda: re.search(r'"epoch": [1-9].*"step": [3-9]', progress(command))


def group_members(group: int) -> list[int]:
    members = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
        except (psutil.Error, ProcessLookupError):
            continue
    return members


def final_weights(command: CommandLine, name: str = "matrix") -> dict[str, torch.Tensor]:
    (path,) = (command.folder / "outputs" / name).glob("*/checkpoints/final.pt")
    state: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["weights"]
    return state


def only_record(command: CommandLine, name: str = "matrix") -> Record:
    (found,) = command.records(name).values()
    return found


def assert_equal_to_uninterrupted(command: CommandLine, *overrides: str) -> None:
    """Train the same cell without interruption, under another name, and compare all bits."""
    assert command.train(*overrides, "name=whole").code == 0
    whole, resumed = final_weights(command, "whole"), final_weights(command)
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)
    one, other = only_record(command, "whole"), only_record(command)
    timed = ("train_time_s", "images_per_s")
    for row, again in zip(one.epochs, other.epochs, strict=True):
        assert {k: v for k, v in row.items() if k not in timed} == {
            k: v for k, v in again.items() if k not in timed
        }
    steps = [
        next(command.folder.glob(f"outputs/{name}/*/steps.csv")) for name in ("whole", "matrix")
    ]
    assert steps[0].read_text() == steps[1].read_text()


WORLDS = [
    ("none", "1", "ctrl-c"),
    ("none", "1", "sigterm"),
    ("ddp", "2", "ctrl-c"),
    ("ddp", "3", "ctrl-c"),
]


@pytest.mark.parametrize(("parallel", "devices", "how"), WORLDS)
def test_ctrl_c_saves_and_the_next_command_ends_with_the_same_weights(
    faulty: CommandLine, parallel: str, devices: str, how: str
) -> None:
    cell = (f"parallel={parallel}", f"parallel.devices={devices}", *FAULTY, "scheduler=plateau")
    process = with_environment(faulty, SLOW="0.05").popen(*cell)
    wait_for(past_first_epoch(faulty))
    started = time.monotonic()
    if how == "ctrl-c":
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    else:
        process.terminate()  # as a service manager does
    out, _ = process.communicate(timeout=30)
    assert time.monotonic() - started < ENDS_WITHIN_S
    assert process.returncode == 130, out
    assert "INTERRUPTED" in out
    wait_for(lambda: not group_members(process.pid), 5)
    stopped = only_record(faulty)
    assert stopped.status == record.INTERRUPTED
    assert (next(faulty.folder.rglob("last.pt"))).exists()

    again = faulty.train(*cell)
    assert again.code == 0, again.text
    done = only_record(faulty)
    assert done.status == record.COMPLETED
    assert [segment["from_epoch"] for segment in done.segments] == [0, 1]
    assert list(faulty.folder.rglob("last.pt")) == []
    assert_equal_to_uninterrupted(faulty, *cell)


@pytest.mark.parametrize("victim", ["rank", "sweep", "group"])
def test_after_a_kill_the_next_command_resumes_from_the_last_checkpoint(
    faulty: CommandLine, victim: str
) -> None:
    cell = ("parallel=ddp", "parallel.devices=2", *FAULTY, "checkpoint.every_steps=4")
    process = with_environment(faulty, SLOW="0.05").popen(*cell)
    wait_for(past_first_epoch(faulty))
    started = time.monotonic()
    if victim == "rank":
        ending = next(faulty.folder.rglob("rank1.ending.json")).read_text()
        found = re.search(r'"pid": (\d+)', ending)
        assert found
        os.kill(int(found.group(1)), signal.SIGKILL)
    elif victim == "sweep":
        os.kill(process.pid, signal.SIGKILL)
    else:
        os.killpg(process.pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=30)
    wait_for(lambda: not group_members(process.pid), ENDS_WITHIN_S)
    assert time.monotonic() - started < ENDS_WITHIN_S
    if victim == "rank":
        failed = only_record(faulty)
        assert process.returncode == 1
        assert failed.status == record.FAILED
        assert failed.error is not None
        assert (failed.error["rank"], failed.error["exitcode"]) == (1, -9)
        assert "rank 1 was killed by SIGKILL" in out
    else:
        status = faulty("amp_sweep.status", "outputs/matrix")
        assert "interrupted" in status.out and status.code == 1

    again = faulty.train(*cell)
    assert again.code == 0, again.text
    assert len(only_record(faulty).segments) == 2
    log = next(faulty.folder.rglob("train.log")).read_text()
    assert re.search(r"resumed at epoch \d, step \d+", log)
    assert_equal_to_uninterrupted(faulty, *cell)


ENDINGS = [
    ("raises", record.FAILED, "ValueError: planted"),
    ("exits", record.FAILED, "SystemExit: 0"),
    ("exits_at_once", record.FAILED, "exit code 0"),
    ("crashes", record.FAILED, "SIGSEGV"),
    ("is_killed", record.FAILED, "SIGKILL"),
    ("out_of_memory", record.OOM, "MemoryError: planted"),
    ("hangs", record.TIMEOUT, "no progress"),
]


@pytest.mark.parametrize(("fault", "status", "said"), ENDINGS, ids=[e[0] for e in ENDINGS])
@pytest.mark.parametrize("parallel", ["none", "ddp"])
def test_whatever_ends_a_rank_ends_its_cell_with_the_right_status_and_the_sweep_goes_on(
    faulty: CommandLine, parallel: str, fault: str, status: str, said: str
) -> None:
    rank = 1 if parallel == "ddp" else 0
    # The fault strikes in the second epoch's steps of seed 0 only: seed 1 is too short for it.
    command = with_environment(faulty, FAULT=f"{fault}:{rank}:{29 + 5}")
    process = command.popen(
        "-m",
        f"parallel={parallel}",
        "epochs=2,1",
        *FAULTY[:-1],
        "launch.stall_timeout_s=6",
    )
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1, out
    wait_for(lambda: not group_members(process.pid), 5)
    by_epochs = {
        found.config["epochs"]: found
        for found in map(record.read, record.find(faulty.folder / "outputs" / "matrix"))
    }
    assert by_epochs[1].status == record.COMPLETED
    broken = by_epochs[2]
    assert broken.status == status, broken.error
    assert broken.error is not None
    if fault != "hangs":
        assert broken.error["rank"] == rank
    assert said in f"{broken.error['type']}: {broken.error['message']}"
    assert said in out
    if fault == "raises":
        assert 'raise ValueError("planted")' in broken.error["traceback"]
        assert 'raise ValueError("planted")' in out


def test_a_rank_whose_weights_drift_apart_is_named(faulty: CommandLine) -> None:
    command = with_environment(faulty, FAULT="drifts:1:5")
    run = command.train("parallel=ddp", *FAULTY)
    assert run.code == 1
    failed = only_record(faulty)
    assert failed.status == record.FAILED
    assert failed.error is not None and failed.error["rank"] == 1
    assert "rank 1 differs from rank 0" in failed.error["message"]


def test_ctrl_c_in_a_sweep_keeps_what_is_done_and_starts_no_other(faulty: CommandLine) -> None:
    process = with_environment(faulty, SLOW="0.02").popen("-m", "seed=0,1,2", *FAULTY)
    wait_for(lambda: list(faulty.folder.glob("outputs/matrix/none-fp32-s1-*/progress.json")))
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    statuses = [found.status for found in faulty.records().values()]
    assert sorted(statuses) == [record.COMPLETED, record.INTERRUPTED, record.PENDING]
    assert "INTERRUPTED" in out and "PENDING" in out
    assert "1 of 3" in out


def test_a_second_ctrl_c_ends_at_once(faulty: CommandLine) -> None:
    process = with_environment(faulty, SLOW="20").popen(*FAULTY)
    wait_for(lambda: progress(faulty))
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.5)
    started = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert time.monotonic() - started < 5
    assert process.returncode == 130
    assert only_record(faulty).status == record.INTERRUPTED
    wait_for(lambda: not group_members(process.pid), 5)


OTHER_HOST = ("unshare", "--uts", "sh", "-c", 'hostname elsewhere; exec "$@"', "sh")


@pytest.mark.parametrize("where", ["one machine", "two hosts"])
def test_two_sweeps_started_together_train_each_cell_once(faulty: CommandLine, where: str) -> None:
    prefix = OTHER_HOST if where == "two hosts" else ()
    if prefix and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a host name of its own needs root")
    cells = ("-m", "seed=0,1,2", *FAULTY)
    slow = with_environment(faulty, SLOW="0.02")
    processes = [slow.popen(*cells), slow.popen(*cells, prefix=prefix)]
    outs = [process.communicate(timeout=120)[0] for process in processes]
    # The one that is done first cannot wait for the other: it says who trains what is left.
    codes = [process.returncode for process in processes]
    assert 0 in codes, outs
    for code, out in zip(codes, outs, strict=True):
        assert code == 0 or re.search(r"passed over: .* trained by process \d+ on", out), out
    for found in faulty.records().values():
        assert found.status == record.COMPLETED
        assert len(found.segments) == 1
        assert [row["epoch"] for row in found.epochs] == [1, 2, 3]
    trained = [len(re.findall(r"seed \d: trained", out)) for out in outs]
    assert sum(trained) == 3 and min(trained) >= 1


def test_while_a_cell_runs_nothing_listens_beyond_the_loopback(faulty: CommandLine) -> None:
    command = with_environment(faulty, FAULT="lists_sockets:1:5")
    process = command.popen("parallel=ddp", *FAULTY)
    process.communicate(timeout=60)
    assert process.returncode == 0
    ours = set(re.findall(r"socket:\[(\d+)\]", (faulty.folder / "inodes.txt").read_text()))
    listening = []
    for line in (faulty.folder / "sockets.txt").read_text().splitlines():
        fields = line.split()
        if len(fields) > 9 and fields[3] == "0A" and fields[9] in ours:
            listening.append(fields[1].split(":")[0])
    assert listening  # the store and gloo do listen
    assert set(listening) <= {"0100007F", "00000000000000000000000001000000"}


def test_a_diverged_run_says_where_and_is_kept(faulty: CommandLine) -> None:
    cell = ("optimizer=sgd", "optimizer.lr=1e30", "guard.nonfinite_steps=3", *FAULTY)
    run = faulty.train(*cell)
    assert run.code == 1
    diverged = only_record(faulty)
    assert diverged.status == record.DIVERGED
    assert diverged.error is not None
    assert re.search(r"3 non-finite losses in a row, up to step \d+", diverged.error["message"])
    assert "DIVERGED" in run.out
    again = faulty.train(*cell)
    assert again.code == 1
    assert "skipped, diverged before" in again.out
    assert only_record(faulty).segments == diverged.segments


def test_a_collapsed_scale_is_a_divergence(faulty: CommandLine) -> None:
    run = faulty.train(
        "precision=scaler",
        "precision.init_scale=1",
        "guard.min_scale=0.9",
        "guard.nonfinite_steps=1000",
        "optimizer=sgd",
        "optimizer.lr=1e30",
        *FAULTY,
    )
    assert run.code == 1
    diverged = only_record(faulty)
    assert diverged.status == record.DIVERGED
    assert diverged.error is not None and "guard.min_scale=0.9" in diverged.error["message"]


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(faulty: CommandLine) -> None:
    cell = ("checkpoint.every_steps=4", *FAULTY)
    process = with_environment(faulty, SLOW="0.05").popen(*cell)
    wait_for(past_first_epoch(faulty))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    last = next(faulty.folder.rglob("last.pt"))
    assert last.with_name("previous.pt").exists()
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 0xFF
    last.write_bytes(content)
    again = faulty.train(*cell)
    assert again.code == 0, again.text
    assert any("last.pt" in note and "damaged" in note for note in only_record(faulty).notes)
    assert_equal_to_uninterrupted(faulty, *cell)


def test_a_run_directory_deleted_in_mid_run_fails_that_cell_only(faulty: CommandLine) -> None:
    process = with_environment(faulty, SLOW="0.02").popen("-m", "seed=0,1", *FAULTY)
    wait_for(lambda: progress(faulty))
    shutil.rmtree(next(faulty.folder.glob("outputs/matrix/none-fp32-s0-*")))
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1, out
    assert "seed 0" in out and "No such file or directory" in out
    assert faulty.records()["none-fp32-s1"].status == record.COMPLETED


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_full_or_read_only_disk_fails_the_cell_and_keeps_the_last_checkpoint(
    faulty: CommandLine, fault: str
) -> None:
    disk = faulty.folder / "outputs"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        cell = ("checkpoint.every_steps=4", "track=none", *FAULTY)
        process = with_environment(faulty, SLOW="0.1").popen(*cell)
        wait_for(lambda: list(faulty.folder.rglob("last.pt")))
        if fault == "full":
            fill(disk)
        else:
            remount(disk, "ro")
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 1, out
        reason = "No space left on device" if fault == "full" else "Read-only file system"
        assert reason in out
        if fault == "full":
            (disk / "filler").unlink()
        else:
            remount(disk, "rw")
        again = faulty.train(*cell)
        assert again.code == 0, again.text
        log = next(faulty.folder.rglob("train.log")).read_text()
        assert "resumed at" in log
        assert_equal_to_uninterrupted(faulty, *cell)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"0" * 4096)


def remount(disk: Path, mode: str) -> None:
    def tried() -> bool:  # busy while a file is being written
        done = subprocess.run(
            ["mount", "-o", f"remount,{mode}", str(disk)], capture_output=True, check=False
        )
        return done.returncode == 0

    wait_for(tried, 20)


def test_a_rank_that_the_kernel_kills_for_want_of_memory_is_oom(faulty: CommandLine) -> None:
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        group, limit = root / "amp_sweep_test", "memory.max"
    else:
        group, limit = root / "memory" / "amp_sweep_test", "memory.limit_in_bytes"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("a memory limit needs root and writable cgroups")
    try:
        if not (group / limit).exists():
            pytest.skip("cgroups here have no memory controller")
        (group / limit).write_text(str(1500 * 2**20))
        limited = ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh")
        command = with_environment(faulty, FAULT="eats_memory:0:5")
        process = command.popen(*FAULTY, prefix=limited)
        out, _ = process.communicate(timeout=90)
        assert process.returncode == 1, out
        failed = only_record(faulty)
        assert failed.status == record.OOM, failed.error
        assert failed.error is not None and "for want of memory" in failed.error["message"]
    finally:
        wait_for(lambda: not group_processes(group), 20)
        group.rmdir()


def group_processes(group: Path) -> list[str]:
    return (group / "cgroup.procs").read_text().split()


LEAVES_NO_TRACE = """
import os, signal, sys
from amp_sweep import forkserver
from hydra import compose, initialize_config_dir
from amp_sweep import config

def mine(*_): pass

if __name__ == "__main__":
    forkserver.start()
    from amp_sweep import sweep
    config.register()
    with initialize_config_dir(str(config.conf_dir()), version_base="1.3"):
        composed = compose("config", overrides=sys.argv[1:])
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    for number in numbers:
        signal.signal(number, mine)
    before = dict(os.environ)
    code = sweep.run([sweep.Cell(config.resolve(composed), ())])
    assert code == 0
    assert {signal.getsignal(number) for number in numbers} == {mine}
    assert dict(os.environ) == before
    import torch
    assert not torch.cuda.is_initialized() and not torch.distributed.is_initialized()
    print("no trace")
"""


def test_the_parent_keeps_its_signal_handlers_and_its_environment(faulty: CommandLine) -> None:
    (faulty.folder / "calls.py").write_text(LEAVES_NO_TRACE)
    run = faulty("calls", "parallel=ddp", *FAULTY)
    assert "no trace" in run.out, run.text
