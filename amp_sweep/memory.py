"""How tensors lie in memory, and how much was in use."""

import resource
import sys

import psutil
import torch


def use_channels_last(requested: str, device_type: str) -> bool:
    """Whether images and weights are stored channels last."""
    if requested == "auto":
        return device_type == "cuda"
    return requested == "channels_last"


def memory_format(channels_last: bool) -> torch.memory_format:
    """PyTorch's name for it."""
    return torch.channels_last if channels_last else torch.contiguous_format


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
