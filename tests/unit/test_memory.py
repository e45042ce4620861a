"""How tensors lie in memory, and how much of it was in use."""

import re
from pathlib import Path

import pytest
import torch

from amp_sweep import memory


@pytest.mark.parametrize(
    ("requested", "device", "expected"),
    [
        ("auto", "cuda", True),
        ("auto", "cpu", False),
        ("auto", "mps", False),
        ("channels_last", "cpu", True),
        ("contiguous", "cuda", False),
    ],
)
def test_auto_is_channels_last_on_cuda_only(requested: str, device: str, expected: bool) -> None:
    assert memory.use_channels_last(requested, device) is expected


def test_the_format_reaches_tensors() -> None:
    images = torch.zeros(2, 3, 4, 5)
    assert images.to(memory_format=memory.memory_format(True)).stride() == (60, 1, 15, 3)
    assert images.to(memory_format=memory.memory_format(False)).stride() == (60, 20, 5, 1)


def test_a_cpu_has_no_device_memory_to_report() -> None:
    memory.reset_peaks([torch.device("cpu")])
    assert memory.peaks_mib([torch.device("cpu")]) == ([], [])


def test_the_peak_of_resident_memory_is_the_kernels_in_mib() -> None:
    block = bytearray(b"x" * 2**20) * 64  # touched, so that it is resident
    found = memory.peak_rss_mib()
    status = Path("/proc/self/status").read_text()
    (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    assert found == pytest.approx(int(kib) / 1024, rel=0.01)
    assert found > len(block) / 2**20
