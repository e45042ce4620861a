"""What this machine is, against the system's own answers."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from amp_sweep import hardware
from amp_sweep.messages import Hardware

CPUINFO = Path("/proc/cpuinfo")
NAMES = {
    *("python", "torch", "torchvision", "cuda", "driver", "gpu", "cpu", "cores", "hostname"),
    *("git_commit", "git_dirty", "slurm_job_ids"),
}


@pytest.fixture
def affinity() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


def test_cores_are_those_that_this_process_may_use(affinity: None) -> None:
    allowed = os.sched_getaffinity(0)
    assert hardware.usable_cores() == len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    assert hardware.usable_cores() == 1


def test_a_cpu_is_one_device_with_a_name() -> None:
    found = hardware.detect("cpu")
    assert (found.device_type, len(found.device_names)) == ("cpu", 1)
    assert found.device_names == (hardware.cpu_name(),) and found.device_names[0].strip()
    models = re.findall(r"^model name\s*: (.*)$", CPUINFO.read_text(), re.MULTILINE)
    if models:
        assert hardware.cpu_name() == models[0].strip()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
@pytest.mark.parametrize("requested", ["auto", "cuda", "mps"])
def test_what_is_not_there_falls_back_to_the_cpu(requested: str) -> None:
    assert hardware.detect(requested) == hardware.detect("cpu")


def test_native_bfloat16_is_what_the_processor_says() -> None:
    flags = re.findall(r"^flags\s*: (.*)$", CPUINFO.read_text(), re.MULTILINE)
    if not flags:
        pytest.skip("the processor does not list flags")
    listed = flags[0].split()
    expected = "avx512_bf16" in listed or "amx_bf16" in listed
    assert hardware.cpu_has_bf16() is expected
    assert hardware.detect("cpu").native_bf16(1) is expected


def test_a_format_is_native_where_all_devices_that_a_cell_uses_have_it() -> None:
    mixed = Hardware("cuda", ("new", "new", "old", "unknown"), (True, True, False, None), 8)
    assert [mixed.native_bf16(count) for count in (1, 2, 3, 4)] == [True, True, False, None]


def test_the_environment_has_the_records_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    found = hardware.environment(hardware.detect("cpu"))
    assert set(found) == NAMES
    assert found["torch"] == torch.__version__
    assert (found["cuda"], found["driver"], found["gpu"]) == (None, None, None)
    assert found["hostname"] == os.uname().nodename
    assert found["slurm_job_ids"] == []
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert hardware.environment(hardware.detect("cpu"))["slurm_job_ids"] == ["77"]


def test_the_commit_is_our_checkouts_wherever_a_person_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = Path(hardware.__file__).parents[1] / ".git" / "HEAD"
    if not head.is_file():
        pytest.skip("no checkout")
    text = head.read_text().strip()
    if text.startswith("ref: "):
        ref = head.parent / text.removeprefix("ref: ")
        if not ref.is_file():
            pytest.skip("packed references")
        text = ref.read_text().strip()
    subprocess.run(["git", "init", "-q", tmp_path], check=True)  # another repository, no commit
    monkeypatch.chdir(tmp_path)
    found = hardware.environment(hardware.detect("cpu"))
    assert found["git_commit"] == text
    assert isinstance(found["git_dirty"], bool)


def test_a_program_that_is_missing_or_fails_gives_nothing() -> None:
    assert hardware._output("no-such-program-here") is None
    assert hardware._output("false") is None
    assert hardware._output("echo", " words ") == "words"
