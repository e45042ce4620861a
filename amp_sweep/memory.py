"""How tensors lie in memory, and how much was in use."""

import os
import re
import resource
import sys
from pathlib import Path

import psutil
import torch

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def use_channels_last(requested: str, device_type: str) -> bool:
    """Whether images and weights are stored channels last."""
    if requested == "auto":
        return device_type == "cuda"
    return requested == "channels_last"


def memory_format(channels_last: bool) -> torch.memory_format:
    """PyTorch's name for it."""
    return torch.channels_last if channels_last else torch.contiguous_format


def huge_pages() -> bool:
    """Whether large tensors of this process's CPU lie in pages of 2 MiB (see `host_memory.py`)."""
    try:
        modes = _HUGE_PAGES.read_text(encoding="ascii")
    except OSError:  # not Linux, or built without them
        return False
    allowed = re.search(r"\[(always|madvise)\]", modes) is not None
    return allowed and os.environ.get("THP_MEM_ALLOC_ENABLE") == "1"


def reset_peaks(devices: list[torch.device]) -> None:
    """Start counting peak memory anew."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)


def peaks_mib(devices: list[torch.device]) -> tuple[list[float], list[float]]:
    """Peak allocated and peak reserved memory per CUDA device, in MiB; empty on others."""
    cuda = [device for device in devices if device.type == "cuda"]
    return (
        [torch.cuda.max_memory_allocated(device) / 2**20 for device in cuda],
        [torch.cuda.max_memory_reserved(device) / 2**20 for device in cuda],
    )


def peak_rss_mib() -> float:
    """Peak resident memory of this process, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def rss_mib() -> float:
    """Resident memory of this process now, in MiB."""
    return float(psutil.Process().memory_info().rss) / 2**20
