"""What this device can do at best, measured on it once: matrix products and a copy.

Never a table of data sheets: those hold for other clocks, other power limits and no library.
"""

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from amp_sweep import record

# The number formats that have a ceiling of their own.
FORMATS = ("float32", "tf32", "float16", "bfloat16")

# Side of the square matrices, and bytes of the copy: large enough to fill the device, small
# enough to take some tens of milliseconds.
_CUDA_SIDE = 8192
_CUDA_COPY = 2**29
_CPU_SIDE = 768
_CPU_COPY = 2**26

# A measurement ends after so many seconds or repeats, whichever comes first.
_BUDGET_S = {"cuda": 0.25, "cpu": 0.06}
_REPEATS = 20


@dataclass(frozen=True)
class Ceilings:
    """The best rates that one device reached."""

    tflops: float  # of a matrix product in the asked format
    gb_per_s: float  # of a copy within the device, bytes read and bytes written


def format_of(autocast_dtype: torch.dtype | None, tf32: bool) -> str:
    """The number format whose ceiling limits a training step."""
    if autocast_dtype is not None:
        return str(autocast_dtype).removeprefix("torch.")
    return "tf32" if tf32 else "float32"


def measured(
    device: torch.device,
    number_format: str,
    folder: Path,
    *,
    device_name: str,
    driver: str | None = None,
    reached_tflops: float = 0.0,
) -> Ceilings:
    """The ceilings of this device, from the file in `folder` or, the first time, measured.

    The file is named by device, PyTorch, CUDA and driver or, on a CPU, its threads. A folder that
    cannot be written costs the measurement again and nothing else. `reached_tflops` is what a run
    reached: a ceiling below it was measured while others used the device, and is measured again.
    """
    path = folder / f"{_identity(device, device_name, driver)}.json"
    known = _read(path)
    for name in (number_format, "copy"):
        too_low = name == number_format and known.get(name, 0.0) < reached_tflops
        if name not in known or too_low:
            rate = _copy(device) if name == "copy" else _matmul(device, name)
            known[name] = max(rate, known.get(name, 0.0))
            with contextlib.suppress(OSError):
                _write(path, known)
    return Ceilings(known[number_format], known["copy"])


def _identity(device: torch.device, name: str, driver: str | None) -> str:
    parts = [name, f"torch-{torch.__version__}"]
    if device.type == "cuda":
        parts.append(f"cuda-{torch.version.cuda}")
        parts.append(f"driver-{driver}")
    else:
        parts.append(f"threads-{torch.get_num_threads()}")
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", "-".join(parts))


def _read(path: Path) -> dict[str, float]:
    try:
        values = json.loads(record.read_regular(path))
        return {str(key): float(value) for key, value in values.items() if float(value) > 0}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        return {}


def _write(path: Path, values: dict[str, float]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    record.write_atomic(path, json.dumps(values, indent=1))


@contextlib.contextmanager
def _tf32(enabled: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = enabled
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _matmul(device: torch.device, number_format: str) -> float:
    """TFLOP/s of the best of some square matrix products of random numbers."""
    side = _CUDA_SIDE if device.type == "cuda" else _CPU_SIDE
    dtype = torch.float32 if number_format == "tf32" else getattr(torch, number_format)
    generator = torch.Generator(device).manual_seed(0)
    one, two = (
        torch.randn(side, side, device=device, generator=generator).to(dtype) for _ in range(2)
    )
    out = torch.empty_like(one)
    with torch.no_grad(), _tf32(number_format == "tf32"):
        seconds = _best_s(lambda: torch.mm(one, two, out=out), device)
    return 2 * side**3 / seconds / 1e12


def _copy(device: torch.device) -> float:
    """GB/s (1e9) of the best of some copies within the device."""
    size = _CUDA_COPY if device.type == "cuda" else _CPU_COPY
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _best_s(lambda: target.copy_(source), device) / 1e9


def _best_s(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of some runs."""
    for _ in range(2):
        run()
    times: list[float] = []
    ends = time.perf_counter() + _BUDGET_S[device.type]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    while len(times) < _REPEATS and (not times or time.perf_counter() < ends):
        times.append(_cuda_s(run, device) if device.type == "cuda" else _host_s(run))
    return min(times)


def _host_s(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _cuda_s(run: Callable[[], object], device: torch.device) -> float:
    """Device time by events on the device's current stream."""
    with torch.cuda.device(device):
        before = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        after = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        before.record()
        run()
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) / 1e3
