"""What one machine cannot do of a legal request: the cell is `invalid` there.

One device cannot know another's answer, so these are asked where the cell runs.
"""

import os
import shutil

from amp_sweep.config import RunConfig

FLOAT16_ON_CPU = (
    "float16 autocast on a CPU is emulated and unusably slow; use precision.dtype=bfloat16"
)


def impossible_here(
    config: RunConfig, *, device_type: str, visible_devices: int, native_bf16: bool | None
) -> str | None:
    """Why this cell cannot be honoured on a machine with these devices; None when it can."""
    autocast = config.precision.autocast
    devices = config.parallel.devices
    if config.device == "cuda" and device_type != "cuda":
        return "device=cuda, and no CUDA device is visible here"
    if config.device == "mps" and device_type != "mps":
        return "device=mps, and there is no MPS device here"
    if (
        isinstance(devices, int)
        and devices > visible_devices
        and (device_type == "cuda" or config.parallel.name == "dp")
    ):
        kind = "CUDA device" if device_type == "cuda" else device_type.upper()
        return f"parallel.devices={devices}, and {visible_devices} {kind}(s) visible here"
    if config.parallel.sync_batch_norm and device_type != "cuda":
        return "parallel.sync_batch_norm needs CUDA devices"
    if config.parallel.backend == "nccl" and device_type != "cuda":
        return "parallel.backend=nccl needs CUDA devices"
    if config.data.decode == "device" and device_type != "cuda":
        return "data.decode=device needs a CUDA device; use data.decode=host"
    if device_type == "cpu" and autocast and config.precision.dtype == "float16":
        return FLOAT16_ON_CPU
    if (
        device_type == "cuda"
        and autocast
        and config.precision.dtype == "bfloat16"
        and (native_bf16 is False)
    ):
        return "this GPU only emulates bfloat16; use precision=scaler (float16) here"
    if config.precision.tf32 and device_type != "cuda":
        return "TF32 is a format of NVIDIA GPUs"
    # The same generation brought both formats.
    if config.precision.tf32 and native_bf16 is False:
        return "this GPU has no TF32 and would compute in float32; use precision=fp32 here"
    return _speedup_impossible(config, device_type)


def _speedup_impossible(config: RunConfig, device_type: str) -> str | None:
    dp = config.parallel.name == "dp"
    if config.memory.keep_threads is True and not (dp and device_type == "cuda"):
        return "memory.keep_threads=true is about DataParallel's threads on CUDA devices"
    if dp and config.memory.compile not in ("off", "auto"):
        return "torch.compile does not work in DataParallel's threads; use parallel=ddp"
    if dp and config.memory.master_weights is True:
        return "memory.master_weights does not work with DataParallel; use parallel=ddp"
    if config.memory.compile not in ("off", "auto") and device_type == "cpu" and not _compiler():
        return "torch.compile on a CPU needs a C++ compiler (g++)"
    if config.memory.cuda_graph is not True:
        return None
    if device_type != "cuda":
        return "memory.cuda_graph needs a CUDA device"
    if dp:
        return "DataParallel copies the network at every step, which no CUDA graph can hold"
    if config.parallel.name == "ddp" and config.parallel.backend == "gloo":
        return "gloo moves gradients through the host, which no CUDA graph can hold; use nccl"
    if config.parallel.find_unused_parameters:
        return (
            "parallel.find_unused_parameters looks for them on the host at every step, which no "
            "CUDA graph can hold"
        )
    if config.data.pipeline != "resident" or config.data.placement == "host":
        return "memory.cuda_graph needs the images on the device: data.pipeline=resident"
    return None


def _compiler() -> bool:
    """Whether torch.compile finds a C++ compiler."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++"))
