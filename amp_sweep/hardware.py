"""What this machine is: devices, number formats, versions. Run it in a process of its own,
since asking CUDA for names creates a context."""

import importlib.metadata
import os
import platform
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import torch

from amp_sweep.messages import Hardware


def usable_cores() -> int:
    """Cores this process may run on.

    Not every SLURM pins a task to the cores that it was given: what it was given counts too.
    """
    given = os.environ.get("SLURM_CPUS_PER_TASK", "")
    limit = int(given) if given.isdigit() and int(given) > 0 else None
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return min(cores, limit) if limit else cores


def cpu_name() -> str:
    """The processor's model name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else (platform.processor() or platform.machine())


def cpu_has_bf16() -> bool | None:
    """Whether the CPU multiplies bfloat16 natively; None where it does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    if not found:
        return None
    flags = set(found.group(1).split())
    return bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})


def detect(requested: str) -> Hardware:
    """The devices for `requested`: auto (CUDA where visible, else the CPU), cuda, mps or cpu.

    What is not there falls back to the CPU here; `legality.impossible_here` then says so.
    """
    cores = usable_cores()
    if requested in ("auto", "cuda") and torch.cuda.is_available():
        count = torch.cuda.device_count()
        names = tuple(torch.cuda.get_device_name(i) for i in range(count))
        native = tuple(torch.cuda.get_device_capability(i) >= (8, 0) for i in range(count))
        return Hardware("cuda", names, native, cores)
    if requested == "mps" and torch.backends.mps.is_available():
        return Hardware("mps", (cpu_name(),), (None,), cores)
    return Hardware("cpu", (cpu_name(),), (cpu_has_bf16(),), cores)


def _output(*command: str) -> str | None:
    """What a program prints, stripped; None where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _nvidia_driver() -> str | None:
    printed = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return printed.splitlines()[0] if printed else None


def environment(hardware: Hardware) -> dict[str, Any]:
    """Versions, machine and commit, as the record's `environment` names them."""
    # The code that runs: our checkout when there is one, else the person's own folder.
    package = Path(__file__).resolve().parent
    installed = "site-packages" in package.parts
    folder = str(Path.cwd() if installed else package)
    commit = _output("git", "-C", folder, "rev-parse", "HEAD")
    changes = _output("git", "-C", folder, "status", "--porcelain", "--untracked-files=no")
    cuda = hardware.device_type == "cuda"
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # its own type would bring torch to whoever reads it
        "torchvision": importlib.metadata.version("torchvision"),
        "cuda": torch.version.cuda if cuda else None,
        "driver": _nvidia_driver() if cuda else None,
        "gpu": hardware.device_names[0] if cuda else None,
        "cpu": cpu_name(),
        "cores": hardware.cores,
        "hostname": socket.gethostname(),
        "git_commit": commit,
        "git_dirty": bool(changes) if commit else None,
        "slurm_job_ids": [os.environ["SLURM_JOB_ID"]] if "SLURM_JOB_ID" in os.environ else [],
    }
