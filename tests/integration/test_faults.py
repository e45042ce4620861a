"""Nothing is lost: interruptions, crashes, two sweeps at once, disks that are full."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch

from amp_sweep import record
from amp_sweep.record import Record
from tests.conftest import CommandLine, wait_for
from tests.processes import freeze_group, group_members, wait_for_end_of_group

NET = ("model.name=faults:Net", "data.image_size=16", "data.batch_size=48")
# Most tests are over with the training; test_probe_faults.py is about what follows.
TRAINING = (*NET, "measure.probes=false")
FAULTY = (*TRAINING, "epochs=3", "track=none")
WITH_CURVES = (*TRAINING, "epochs=3", "track=tensorboard")
STEPS = 29  # in an epoch of the digits
ENDS_WITHIN_S = 10.0

MakeCommandLine = Callable[[Path], CommandLine]


@pytest.fixture
def faulty(command: CommandLine) -> Iterator[CommandLine]:
    yield command.with_faults()


def progress(command: CommandLine) -> str:
    found = [path.read_text() for path in command.folder.glob("outputs/*/*/progress.json")]
    return "".join(found)


def past_first_epoch(command: CommandLine) -> Callable[[], object]:
    return lambda: re.search(r'"epoch": [1-9].*"step": [3-9]', progress(command))


@dataclass(frozen=True)
class Whole:
    """Cells that were trained without interruption."""

    folder: Path

    def run_dir(self, parallel: str, devices: str, scheduler: str) -> Path:
        for path in record.find(self.folder / "outputs" / "matrix"):
            asked = record.read(path).config
            ranks = str(asked["parallel"]["devices"]) if parallel == "ddp" else devices
            found = (asked["parallel"]["name"], ranks, asked["scheduler"]["name"])
            if found == (parallel, devices, scheduler):
                return path.parent
        raise AssertionError("not among those that were trained")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, make_command_line: MakeCommandLine) -> Whole:
    command = make_command_line(tmp_path_factory.mktemp("whole")).with_faults()
    schedulers = "scheduler=cosine,plateau"
    for cells in (("parallel=none",), ("parallel=ddp", "parallel.devices=2,3")):
        run = command.train("-m", *cells, schedulers, *FAULTY)
        assert run.code == 0, run.text
    return Whole(command.folder)


def assert_as_uninterrupted(
    command: CommandLine,
    whole: Whole,
    parallel: str = "none",
    devices: str = "1",
    scheduler: str = "cosine",
    cell: str = "",
) -> None:
    """All bits of the weights, every loss and every accuracy are those of a run in one piece."""
    reference = whole.run_dir(parallel, devices, scheduler)
    (path,) = command.folder.glob(f"outputs/matrix/{cell}*/record.json")
    here = path.parent
    weights, expected = (
        torch.load(folder / "checkpoints" / "final.pt", weights_only=True)["weights"]
        for folder in (here, reference)
    )
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[key], expected[key]) for key in expected)
    rows, others = (record.read(folder / "record.json").epochs for folder in (here, reference))
    timed = ("train_time_s", "images_per_s")
    for row, other in zip(rows, others, strict=True):
        assert {k: v for k, v in row.items() if k not in timed} == {
            k: v for k, v in other.items() if k not in timed
        }
    assert (here / "steps.csv").read_text() == (reference / "steps.csv").read_text()


def pid_of_rank(command: CommandLine, rank: int) -> int:
    text = next(command.folder.rglob(f"rank{rank}.ending.json")).read_text()
    found = re.search(r'"pid": (\d+)', text)
    assert found
    return int(found.group(1))


def pid_of_agent(command: CommandLine, launcher: int) -> int:
    """The process that starts the ranks: what else the forkserver has forked."""
    ranks = {pid_of_rank(command, 0), pid_of_rank(command, 1)}
    grandchildren = [
        process.pid for child in psutil.Process(launcher).children() for process in child.children()
    ]
    (agent,) = set(grandchildren) - ranks
    return agent


WORLDS = [
    ("none", "1", "ctrl-c"),
    ("none", "1", "sigterm"),
    ("ddp", "2", "ctrl-c"),
    ("ddp", "3", "ctrl-c"),
]


@pytest.mark.parametrize(("parallel", "devices", "how"), WORLDS)
def test_ctrl_c_saves_and_the_next_command_ends_with_the_same_weights(
    faulty: CommandLine, whole: Whole, parallel: str, devices: str, how: str
) -> None:
    ranks = (f"parallel={parallel}", f"parallel.devices={devices}")
    cell = (*ranks, *WITH_CURVES, "scheduler=plateau")
    process = faulty.with_environment(SLOW="0.05").popen(*cell)
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
    wait_for_end_of_group(process.pid)
    stopped = faulty.only_record()
    assert stopped.status == record.INTERRUPTED
    assert (next(faulty.folder.rglob("last.pt"))).exists()

    again = faulty.train(*cell)
    assert again.code == 0, again.text
    done = faulty.only_record()
    assert done.status == record.COMPLETED
    assert [segment["from_epoch"] for segment in done.segments] == [0, 1]
    assert list(faulty.folder.rglob("last.pt")) == []
    assert_as_uninterrupted(faulty, whole, parallel, devices, "plateau")


def test_ranks_that_are_told_to_stop_one_after_the_other_save_all_the_same(
    faulty: CommandLine,
) -> None:
    process = faulty.with_environment(SLOW="0.2").popen("parallel=ddp", *FAULTY)
    wait_for(lambda: re.search(r'"step": [1-9]', progress(faulty)))
    os.kill(pid_of_rank(faulty, 1), signal.SIGUSR1)
    time.sleep(1.5)  # in which rank 0 would wait for rank 1 in a step's midst
    os.kill(pid_of_rank(faulty, 0), signal.SIGUSR1)
    out, _ = process.communicate(timeout=30)
    assert faulty.only_record().status == record.INTERRUPTED, out
    assert list(faulty.folder.rglob("last.pt"))


@pytest.mark.parametrize("victim", ["rank", "agent", "sweep", "group"])
def test_after_a_kill_the_next_command_resumes_from_the_last_checkpoint(
    faulty: CommandLine, whole: Whole, victim: str
) -> None:
    cell = ("parallel=ddp", "parallel.devices=2", *WITH_CURVES, "checkpoint.every_steps=4")
    process = faulty.with_environment(SLOW="0.05").popen(*cell)
    wait_for(past_first_epoch(faulty))
    started = time.monotonic()
    if victim == "rank":
        os.kill(pid_of_rank(faulty, 1), signal.SIGKILL)
    elif victim == "agent":
        os.kill(pid_of_agent(faulty, process.pid), signal.SIGKILL)
    elif victim == "sweep":
        os.kill(process.pid, signal.SIGKILL)
    else:
        os.killpg(process.pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=30)
    wait_for_end_of_group(process.pid, ENDS_WITHIN_S)
    assert time.monotonic() - started < ENDS_WITHIN_S
    if victim in ("rank", "agent"):
        failed = faulty.only_record()
        assert process.returncode == 1
        assert failed.status == record.FAILED
        assert failed.error is not None
        if victim == "rank":
            assert (failed.error["rank"], failed.error["exitcode"]) == (1, -9)
        who = "rank 1" if victim == "rank" else "the process that starts the ranks"
        assert f"{who} was killed by SIGKILL" in out
    else:
        status = faulty("amp_sweep.status", "outputs/matrix")
        assert "interrupted" in status.out and status.code == 1

    again = faulty.train(*cell)
    assert again.code == 0, again.text
    found = faulty.only_record()
    # Each part counts, also one whose end nobody wrote down.
    first, second = (segment["wall_s"] for segment in found.segments)
    assert found.metrics["wall_time_s"] == first + second > found.metrics["train_time_s"]
    log = next(faulty.folder.rglob("train.log")).read_text()
    assert re.search(r"resumed at epoch \d, step \d+", log)
    assert_as_uninterrupted(faulty, whole, "ddp", "2")


ENDINGS = [
    ("raises", record.FAILED, "ValueError: planted"),
    ("exits", record.FAILED, "SystemExit: 0"),
    ("exits_at_once", record.FAILED, "exit code 0"),
    ("crashes", record.FAILED, "SIGSEGV"),
    ("is_killed", record.FAILED, "SIGKILL"),
    ("out_of_memory", record.OOM, "MemoryError: planted"),
    ("out_of_device_memory", record.OOM, "CUDA error: out of memory"),
    ("hangs", record.TIMEOUT, "no progress"),
]


@dataclass(frozen=True)
class Endings:
    """A sweep in which every seed but the last fails in a way of its own, on one rank."""

    records: dict[int, Record]  # by seed
    out: str
    rank: int


@pytest.fixture(scope="module", params=["none", "ddp"])
def endings(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    make_command_line: MakeCommandLine,
) -> Endings:
    command = make_command_line(tmp_path_factory.mktemp("endings")).with_faults()
    rank = 1 if request.param == "ddp" else 0
    # In the second epoch's steps.
    faults = [f"{kind}:{rank}:{STEPS + 5}:{seed}" for seed, (kind, _, _) in enumerate(ENDINGS)]
    seeds = ",".join(str(seed) for seed in range(len(ENDINGS) + 1))
    cells = (f"parallel={request.param}", f"seed={seeds}", *TRAINING, "epochs=2", "track=none")
    process = command.with_environment(FAULT=",".join(faults)).popen(
        "-m", *cells, "launch.stall_timeout_s=6"
    )
    out, _ = process.communicate(timeout=150)
    assert process.returncode == 1, out
    wait_for_end_of_group(process.pid)
    records = {found.cell["seed"]: found for found in command.records().values()}
    return Endings(records, out, rank)


@pytest.mark.parametrize(("fault", "status", "said"), ENDINGS, ids=[e[0] for e in ENDINGS])
def test_whatever_ends_a_rank_ends_its_cell_with_the_right_status(
    endings: Endings, fault: str, status: str, said: str
) -> None:
    broken = endings.records[[kind for kind, _, _ in ENDINGS].index(fault)]
    assert broken.status == status, broken.error
    assert broken.error is not None
    if fault != "hangs":
        assert broken.error["rank"] == endings.rank
    assert said in f"{broken.error['type']}: {broken.error['message']}"
    assert said in endings.out
    assert broken.segments[-1]["wall_s"] < 2 * ENDS_WITHIN_S  # the training before it, too
    if fault == "raises":
        assert 'raise ValueError("planted")' in broken.error["traceback"]
        assert 'raise ValueError("planted")' in endings.out


def test_the_sweep_goes_on_after_each_of_them(endings: Endings) -> None:
    assert sorted(endings.records) == list(range(len(ENDINGS) + 1))
    assert endings.records[len(ENDINGS)].status == record.COMPLETED


def test_a_rank_whose_weights_drift_apart_is_named(faulty: CommandLine) -> None:
    command = faulty.with_environment(FAULT="drifts:1:5")
    run = command.train("parallel=ddp", *FAULTY)
    assert run.code == 1
    failed = faulty.only_record()
    assert failed.status == record.FAILED
    assert failed.error is not None and failed.error["rank"] == 1
    assert "rank 1 differs from rank 0" in failed.error["message"]


def test_ctrl_c_in_a_sweep_keeps_what_is_done_and_starts_no_other(faulty: CommandLine) -> None:
    process = faulty.with_environment(SLOW="0.02").popen("-m", "seed=0,1,2", *FAULTY)
    wait_for(lambda: list(faulty.folder.glob("outputs/matrix/none-fp32-s1-*/progress.json")))
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    statuses = [found.status for found in faulty.records().values()]
    assert sorted(statuses) == [record.COMPLETED, record.INTERRUPTED, record.PENDING]
    assert "INTERRUPTED" in out and "PENDING" in out
    assert "1 of 3" in out


@pytest.mark.parametrize("prefix", [(), ("nohup",)])
def test_the_end_of_its_terminal_ends_a_sweep_but_for_nohup(
    faulty: CommandLine, prefix: tuple[str, ...]
) -> None:
    process = faulty.with_environment(SLOW="0.05").popen("parallel=ddp", *FAULTY, prefix=prefix)
    wait_for(lambda: progress(faulty))
    os.killpg(process.pid, signal.SIGHUP)
    out, _ = process.communicate(timeout=60)
    wait_for_end_of_group(process.pid)
    status, code = (record.COMPLETED, 0) if prefix else (record.INTERRUPTED, 130)
    assert (faulty.only_record().status, process.returncode) == (status, code), out


def test_a_sweep_goes_on_where_nobody_reads_its_output_any_more(faulty: CommandLine) -> None:
    process = faulty.popen("-m", "seed=0,1", *FAULTY)
    assert process.stdout is not None and process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert {found.status for found in faulty.records().values()} == {record.COMPLETED}
    assert (faulty.folder / "outputs/matrix/tables/comparison.md").is_file()


def test_a_sweep_that_was_stopped_for_a_while_goes_on_and_says_so(faulty: CommandLine) -> None:
    slow = faulty.with_environment(SLOW="0.05")
    process = slow.popen("parallel=ddp", "launch.stall_timeout_s=6", *FAULTY)
    wait_for(past_first_epoch(faulty))
    freeze_group(process.pid)
    time.sleep(8)
    os.killpg(process.pid, signal.SIGCONT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    found = faulty.only_record()
    (paused,) = (note for note in found.notes if note.startswith("paused"))
    stood = re.fullmatch(r"paused: stood still for ([\d.]+) s while it trained", paused)
    assert stood is not None and float(stood[1]) > 7
    assert found.metrics["wall_time_s"] > 8
    assert "paused: stood still for a while" in out


def test_a_sweep_that_wakes_when_its_cell_is_anothers_leaves_it_alone(faulty: CommandLine) -> None:
    process = faulty.with_environment(SLOW="0.05").popen("parallel=ddp", *FAULTY)
    wait_for(past_first_epoch(faulty))
    freeze_group(process.pid)
    (lock,) = faulty.folder.glob("outputs/*/*/lock")
    others = {**json.loads(lock.read_text()), "host": "elsewhere", "token": "another"}
    lock.write_text(json.dumps(others))
    time.sleep(4)
    os.killpg(process.pid, signal.SIGCONT)
    out, _ = process.communicate(timeout=60)
    wait_for_end_of_group(process.pid)
    assert process.returncode == 1 and "elsewhere" in out, out
    assert json.loads(lock.read_text()) == others
    assert faulty.only_record().status == record.RUNNING  # as the other one left it


def test_a_second_ctrl_c_ends_at_once(faulty: CommandLine) -> None:
    process = faulty.with_environment(SLOW="9").popen(*FAULTY)
    wait_for(lambda: progress(faulty))
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.5)
    started = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert time.monotonic() - started < 5
    assert process.returncode == 130
    assert faulty.only_record().status == record.INTERRUPTED
    wait_for_end_of_group(process.pid)


OTHER_HOST = ("unshare", "--uts", "sh", "-c", 'hostname elsewhere; exec "$@"', "sh")


@pytest.mark.parametrize("where", ["one machine", "two hosts"])
def test_two_sweeps_started_together_train_each_cell_once(faulty: CommandLine, where: str) -> None:
    prefix = OTHER_HOST if where == "two hosts" else ()
    if prefix and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a host name of its own needs root")
    cells = ("-m", "seed=0,1,2", *FAULTY)
    slow = faulty.with_environment(SLOW="0.04")
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
    command = faulty.with_environment(FAULT="lists_sockets:1:5")
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


def test_a_command_imports_torch_once_and_not_in_its_own_process(faulty: CommandLine) -> None:
    process = faulty.with_environment(SLOW="1").popen("parallel=ddp", *FAULTY)
    wait_for(lambda: progress(faulty))
    text = Path(f"/proc/{process.pid}/maps").read_text()
    members = {member.pid: member for member in group_members(process.pid)}
    with_torch = {p for p in members if "libtorch" in Path(f"/proc/{p}/maps").read_text()}
    parents = {members[pid].ppid() for pid in with_torch}
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert "libtorch" not in text
    # The forkserver has it; the agent and the two ranks are its copies.
    assert len(with_torch) == 4
    assert len(with_torch & parents) == 1 and process.pid in parents


def test_a_diverged_run_says_where_and_is_kept(faulty: CommandLine) -> None:
    cell = ("optimizer=sgd", "optimizer.lr=1e30", "guard.nonfinite_steps=3", *FAULTY)
    run = faulty.train(*cell)
    assert run.code == 1
    diverged = faulty.only_record()
    assert diverged.status == record.DIVERGED
    assert diverged.error is not None
    assert re.search(r"3 non-finite losses in a row, up to step \d+", diverged.error["message"])
    assert "DIVERGED" in run.out
    again = faulty.train(*cell)
    assert again.code == 1
    assert "skipped, diverged before" in again.out
    assert faulty.only_record().segments == diverged.segments


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
    diverged = faulty.only_record()
    assert diverged.status == record.DIVERGED
    assert diverged.error is not None and "guard.min_scale=0.9" in diverged.error["message"]


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    faulty: CommandLine, whole: Whole
) -> None:
    cell = ("checkpoint.every_steps=4", *FAULTY)
    process = faulty.with_environment(SLOW="0.05").popen(*cell)
    wait_for(past_first_epoch(faulty))

    def frozen_with_both() -> bool:
        # Between two renames there is no last one for a moment.
        freeze_group(process.pid)
        there = all([*faulty.folder.rglob(f"{name}.pt")] for name in ("last", "previous"))
        if not there:
            os.killpg(process.pid, signal.SIGCONT)
        return there

    wait_for(frozen_with_both)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    last = next(faulty.folder.rglob("last.pt"))
    assert last.with_name("previous.pt").exists()
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 0xFF
    last.write_bytes(content)
    again = faulty.train(*cell)
    assert again.code == 0, again.text
    assert any("last.pt" in note and "damaged" in note for note in faulty.only_record().notes)
    assert_as_uninterrupted(faulty, whole)


def test_a_run_directory_deleted_in_mid_run_fails_that_cell_only(faulty: CommandLine) -> None:
    process = faulty.with_environment(SLOW="0.02").popen("-m", "seed=0,1", *FAULTY)
    wait_for(lambda: progress(faulty))
    shutil.rmtree(next(faulty.folder.glob("outputs/matrix/none-fp32-s0-*")))
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1, out
    assert "seed 0" in out and "No such file or directory" in out
    assert faulty.records()["none-fp32-s1"].status == record.COMPLETED


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of a mebibyte at `folder`."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


SAVING = ("checkpoint.every_steps=4", *FAULTY)


def assert_resumes_as_uninterrupted(command: CommandLine, whole: Whole) -> None:
    again = command.train(*SAVING)
    assert again.code == 0, again.text
    assert "resumed at" in next(command.folder.rglob("train.log")).read_text()
    assert_as_uninterrupted(command, whole)


def test_a_full_disk_fails_the_cell_and_keeps_the_last_checkpoint(
    faulty: CommandLine, whole: Whole
) -> None:
    disk = faulty.folder / "outputs"
    with small_disk(disk):
        process = faulty.with_environment(SLOW="0.1").popen(*SAVING)
        wait_for(lambda: list(faulty.folder.rglob("last.pt")))
        with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"0" * 4096)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 1, out
        assert "No space left on device" in out
        (disk / "filler").unlink()
        assert_resumes_as_uninterrupted(faulty, whole)


def test_a_disk_that_turns_read_only_fails_the_cell_and_keeps_the_last_checkpoint(
    faulty: CommandLine, whole: Whole
) -> None:
    planned = re.search(r"\((/.*)\)", faulty.train(*SAVING, "plan=true").out)
    assert planned
    # Only of the checkpoints: a file system with a log that is being written stays as it is.
    disk = Path(planned.group(1)) / "checkpoints"

    def remounted(mode: str) -> bool:  # not in the middle of a checkpoint
        command = ["mount", "-o", f"remount,{mode}", str(disk)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    with small_disk(disk):
        process = faulty.with_environment(SLOW="0.1").popen(*SAVING)
        wait_for(lambda: (disk / "last.pt").exists())
        wait_for(lambda: remounted("ro"), 20)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 1, out
        failed = faulty.only_record()
        assert failed.status == record.FAILED and failed.error is not None
        assert "Read-only file system" in failed.error["message"]
        assert "Read-only file system" in out
        assert remounted("rw")
        assert_resumes_as_uninterrupted(faulty, whole)


WITHOUT_OVERRIDE = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


def obeying_permissions() -> tuple[str, ...]:
    """What to put before a command so that it obeys file permissions; skips where there is none."""
    if os.geteuid() != 0:
        return ()
    can = (
        shutil.which("setpriv")
        and not subprocess.run(
            [*WITHOUT_OVERRIDE, "true"], capture_output=True, check=False
        ).returncode
    )
    if not can:
        pytest.skip("root ignores permissions, and setpriv cannot take that from it here")
    return WITHOUT_OVERRIDE


def set_mode(folder: Path, mode: int) -> None:
    for path in (folder, folder / "checkpoints"):
        path.chmod(mode)


def test_a_permission_lost_in_mid_run_fails_that_cell_and_keeps_the_last_checkpoint(
    faulty: CommandLine, whole: Whole
) -> None:
    prefix = obeying_permissions()
    cells = ("-m", "seed=0,1", "checkpoint.every_steps=4", *FAULTY)
    process = faulty.with_environment(SLOW="0.03").popen(*cells, prefix=prefix)
    wait_for(past_first_epoch(faulty))
    folder = faulty.run_dir("none-fp32-s0")
    set_mode(folder, 0o555)
    try:
        out, _ = process.communicate(timeout=60)
    finally:
        set_mode(folder, 0o755)
    assert process.returncode == 1, out
    assert "seed 0" in out and "Permission denied" in out
    assert faulty.records()["none-fp32-s1"].status == record.COMPLETED
    again = faulty.train(*cells)
    assert again.code == 0, again.text
    assert "resumed at" in (folder / "train.log").read_text()
    assert_as_uninterrupted(faulty, whole, cell="none-fp32-s0")


def test_where_nothing_may_be_written_the_sweep_is_refused(faulty: CommandLine) -> None:
    prefix = obeying_permissions()
    outputs = faulty.folder / "outputs"
    outputs.mkdir(mode=0o555)
    process = faulty.popen(*FAULTY, prefix=prefix)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "cannot write to" in out and "Permission denied" in out and "Traceback" not in out


@pytest.mark.parametrize(("when", "step"), [("in training", 5), ("in a probe", 3 * STEPS + 1)])
def test_a_rank_that_the_kernel_kills_for_want_of_memory_is_oom_unless_it_has_trained(
    faulty: CommandLine, when: str, step: int
) -> None:
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
        command = faulty.with_environment(FAULT=f"eats_memory:0:{step}")
        process = command.popen(*NET, "epochs=3", "track=none", prefix=limited)
        out, _ = process.communicate(timeout=90)
        found = faulty.only_record()
        killed = "the kernel killed rank 0 for want of memory"
        if when == "in training":
            assert process.returncode == 1, out
            assert found.status == record.OOM, found.error
            assert found.error is not None and killed in found.error["message"]
        else:
            assert process.returncode == 0, out
            assert found.status == record.COMPLETED, found.error
            assert any(killed in note for note in found.notes)
    finally:
        wait_for(lambda: not group_processes(group), 20)
        group.rmdir()


def group_processes(group: Path) -> list[str]:
    return (group / "cgroup.procs").read_text().split()


LEAVES_NO_TRACE = """
import os, signal, sys
from hydra import compose, initialize_config_dir
from amp_sweep import config

def mine(*_): pass

if __name__ == "__main__":
    from amp_sweep import cells, sweep
    config.register()
    with initialize_config_dir(str(config.conf_dir()), version_base="1.3"):
        composed = compose("config", overrides=sys.argv[1:])
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    for number in numbers:
        signal.signal(number, mine)
    before = dict(os.environ)
    code = sweep.run([cells.Cell(config.resolve(composed), ())])
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
