"""Memory of CPU tensors: it stays, in large pages, unless the environment says otherwise."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from amp_sweep import forkserver, host_memory

# PyTorch may have another allocator on other processors.
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"),
    reason="another allocator, another kernel",
)

IN_LARGE_PAGES = """
import mmap, re
from pathlib import Path

def in_large_pages(make):
    def now():
        text = Path("/proc/self/smaps_rollup").read_text()
        return int(re.search(r"AnonHugePages: *(\\d+) kB", text)[1]) / 2**10
    before = now()
    made = make()
    return now() - before >= 32

def mapped():
    memory = mmap.mmap(-1, 2**26, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    memory.write(bytes(2**26))
    return memory

from amp_sweep import host_memory
import torch
print(in_large_pages(mapped), host_memory.huge_pages(), in_large_pages(lambda: torch.ones(2**24)))
"""

# Faults of ten tensors of 10 MiB, a tensor, when the heap has found its size.
FREES_TENSORS = """
import resource
from amp_sweep import host_memory
import torch
for _ in range(40):
    torch.ones(10 * 2**18)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(10 * 2**18)
print(host_memory.KEPT, (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10)
"""


def printed(script: str, **environment: str) -> list[str]:
    decisive = {*host_memory.SET_OUTSIDE, host_memory.LARGE_PAGES}
    inherited = {key: value for key, value in os.environ.items() if key not in decisive}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def kernels_mode() -> str:
    file = host_memory.KERNELS_PAGES / "enabled"
    return file.read_text() if file.exists() else ""


def test_a_large_tensor_lies_in_large_pages_unless_they_are_turned_off() -> None:
    there, *found = printed(IN_LARGE_PAGES)
    if there == "False" or "[madvise]" not in kernels_mode():
        pytest.skip("this machine has none left, or not on request")
    assert found == ["True", "True"]
    assert printed(IN_LARGE_PAGES, **{host_memory.LARGE_PAGES: "0"})[1:] == ["False", "False"]


def test_freed_memory_is_used_again_without_a_fault_unless_the_environment_decides() -> None:
    small = {host_memory.LARGE_PAGES: "0"}
    kept, faults = printed(FREES_TENSORS, **small)
    if kept == "False" or "[always]" in kernels_mode():
        pytest.skip("this C library keeps nothing, or pages are large whatever is asked for")
    pages = 10 * 2**20 // os.sysconf("SC_PAGESIZE")
    assert int(faults) < pages / 10
    # Each block of its own, which goes back when it is freed.
    kept, faults = printed(FREES_TENSORS, **small, MALLOC_MMAP_THRESHOLD_="131072")
    assert kept == "False" and int(faults) > pages * 0.8


@pytest.mark.parametrize(
    ("modes", "size", "asked", "found"),
    [
        ("always [madvise] never", 2**21, True, True),
        ("always [madvise] never", 2**21, False, False),
        ("[always] madvise never", 2**21, False, True),
        ("always madvise [never]", 2**21, True, False),
        ("always [madvise] never", 2**29, True, False),
        ("", 2**21, True, False),
        (None, 2**21, True, False),
    ],
)
def test_large_pages_are_told_where_kernel_and_pytorch_use_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    modes: str | None,
    size: int,
    asked: bool,
    found: bool,
) -> None:
    if modes is not None:
        (tmp_path / "enabled").write_text(f"{modes}\n")
        (tmp_path / "hpage_pmd_size").write_text(f"{size}\n")
    monkeypatch.setattr(host_memory, "KERNELS_PAGES", tmp_path)
    monkeypatch.setattr(host_memory, "ASKED", asked)
    assert host_memory.huge_pages() is found


def test_it_is_told_where_pytorch_was_there_before() -> None:
    code = "{}; from amp_sweep import host_memory; print(host_memory.ASKED)"
    assert printed(code.format("import torch")) == ["False"]
    assert printed(code.format("import torch"), **{host_memory.LARGE_PAGES: "1"}) == ["True"]
    assert printed(code.format("pass")) == ["True"]


@pytest.mark.parametrize("networks", [(), ("alexnet",)])
def test_the_server_asks_before_it_imports_pytorch(networks: tuple[str, ...]) -> None:
    assert forkserver._preload(networks)[:2] == ["amp_sweep.uncollected", "amp_sweep.host_memory"]
