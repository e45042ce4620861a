"""Memory of CPU tensors: it stays, in large pages, unless the environment says otherwise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from amp_sweep import forkserver, memory

NAME = "THP_MEM_ALLOC_ENABLE"

MAKES_A_TENSOR = """
import re
from pathlib import Path
import amp_sweep.host_memory
import torch
from amp_sweep.memory import huge_pages
tensor = torch.ones(16 * 2**20)
found = re.search(r"AnonHugePages: *(\\d+) kB", Path("/proc/self/smaps_rollup").read_text())
print(huge_pages(), int(found[1]) >= 32 * 2**10)
"""

# Faults of 4 KiB for each of ten tensors of 10 MiB, when the heap has found its size.
FREES_TENSORS = """
import resource
from amp_sweep import host_memory
import torch
for _ in range(40):
    torch.ones(10 * 2**18)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(10 * 2**18)
print(host_memory.keep(), (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10)
"""


def printed(script: str, **environment: str) -> str:
    inherited = {key: value for key, value in os.environ.items() if key != NAME}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_large_tensor_lies_in_huge_pages_unless_they_are_turned_off() -> None:
    file = memory._HUGE_PAGES
    if not file.exists() or "[madvise]" not in file.read_text():
        pytest.skip("this kernel does not have them on request")
    assert printed(MAKES_A_TENSOR) == "True True"
    assert printed(MAKES_A_TENSOR, **{NAME: "0"}) == "False False"


def test_freed_memory_is_used_again_without_a_fault_unless_the_environment_decides() -> None:
    small = {NAME: "0"}
    kept, faults = printed(FREES_TENSORS, **small).split()
    if kept == "False":
        pytest.skip("this C library has no mallopt, or the environment decides")
    assert int(faults) < 100
    # Each block of its own, which goes back when it is freed.
    mapped = {**small, "MALLOC_MMAP_THRESHOLD_": "131072"}
    kept, faults = printed(FREES_TENSORS, **mapped).split()
    assert kept == "False" and int(faults) > 2000


@pytest.mark.parametrize(
    ("modes", "asked", "found"),
    [
        ("always [madvise] never", "1", True),
        ("[always] madvise never", "1", True),
        ("always madvise [never]", "1", False),
        ("always [madvise] never", "0", False),
        ("always [madvise] never", None, False),
        (None, "1", False),
    ],
)
def test_they_are_told_where_kernel_and_pytorch_use_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    modes: str | None,
    asked: str | None,
    found: bool,
) -> None:
    file = tmp_path / "enabled"
    if modes is not None:
        file.write_text(f"{modes}\n")
    monkeypatch.setattr(memory, "_HUGE_PAGES", file)
    monkeypatch.delenv(NAME, raising=False)
    if asked is not None:
        monkeypatch.setenv(NAME, asked)
    assert memory.huge_pages() is found


@pytest.mark.parametrize("networks", [(), ("alexnet",)])
def test_the_server_sets_them_before_it_imports_pytorch(networks: tuple[str, ...]) -> None:
    assert forkserver._preload(networks)[0] == forkserver.FIRST == "amp_sweep.host_memory"
