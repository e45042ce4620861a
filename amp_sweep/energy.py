"""Joules, clocks and neighbours of NVIDIA GPUs, by NVML; nulls with a reason where it is not.

Read at the ends of training windows only, never in the path of a step.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

# The energy counter moves in steps of up to this many seconds (20 to 100 ms, by generation), so
# each end of a window is uncertain by as much. A window must be ten times as long.
REFRESH_S = 0.1
MIN_WINDOW_S = 10 * REFRESH_S

# NVML's reasons for a lower clock, by bit (nvml.h, nvmlClocksEventReason*).
THROTTLE_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
}
# Those that make a run slower than the device can be.
SLOWING = frozenset({"power cap", "hardware slowdown", "thermal (software)", "thermal (hardware)",
                     "power brake"})  # fmt: skip


@dataclass(frozen=True)
class Gpu:
    """One GPU's state at a moment; None where NVML does not tell."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_limit_w: float | None
    temperature_c: int | None
    throttle_reasons: list[str] | None
    processes: list[int] | None  # ids of the processes with a context on it


@dataclass
class Energy:
    """What the training windows of this process took, over all its devices."""

    joules: float = 0.0
    seconds: float = 0.0
    windows: int = 0
    images: int = 0
    # The same without the first epoch, in which libraries look for their fastest kernels.
    steady_joules: float = 0.0
    steady_seconds: float = 0.0
    steady_windows: int = 0
    steady_images: int = 0
    reason: str | None = None  # why there is no figure; the first reason stays

    def add(self, joules: float, seconds: float, images: int, steady: bool) -> None:
        """One more window."""
        self.joules += joules
        self.seconds += seconds
        self.windows += 1
        self.images += images
        if steady:
            self.steady_joules += joules
            self.steady_seconds += seconds
            self.steady_windows += 1
            self.steady_images += images

    def total_j(self) -> float | None:
        """Joules of all windows; None with a `reason` where they are not to be trusted."""
        if self.reason is None and not self.windows:
            self.reason = "no training window"
        if self.reason is None and self.seconds / self.windows < MIN_WINDOW_S:
            self.reason = (
                f"the training windows last {self.seconds / self.windows:.2f} s, too short for "
                f"NVML's counter (at least {MIN_WINDOW_S:g} s)"
            )
        return self.joules if self.reason is None else None

    def per_image_of(self) -> tuple[float, int, bool] | None:
        """Joules, the images that took them, and whether they leave out the first epoch.

        None where `total_j` is.
        """
        if self.total_j() is None:
            return None
        if self.steady_windows and self.steady_seconds / self.steady_windows >= MIN_WINDOW_S:
            return self.steady_joules, self.steady_images, True
        return self.joules, self.images, False


@dataclass
class Nvml:
    """NVML's handles of some CUDA devices; without any, `reason` says why."""

    handles: list[Any] = field(default_factory=list)
    reason: str | None = None
    library: Any = None
    driver: str | None = None

    def energy_j(self) -> float | None:
        """Joules since the driver was loaded, over all devices; None with a `reason`."""
        total = 0
        for handle in self.handles:
            value = self._ask("nvmlDeviceGetTotalEnergyConsumption", handle)
            if value is None:
                self.reason = "NVML has no energy counter for this device"
                return None
            total += value
        return total / 1e3 if self.handles else None

    def state(self) -> list[Gpu]:
        """Each device's state now; empty without NVML."""
        return [self._gpu(handle) for handle in self.handles]

    def _gpu(self, handle: Any) -> Gpu:
        library = self.library
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit", handle)
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:  # its name before CUDA 12
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        found = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        return Gpu(
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, library.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, library.NVML_CLOCK_MEM),
            power_limit_w=limit / 1e3 if limit is not None else None,
            temperature_c=self._ask(
                "nvmlDeviceGetTemperature", handle, library.NVML_TEMPERATURE_GPU
            ),
            throttle_reasons=throttle_reasons(bits) if bits is not None else None,
            processes=sorted(item.pid for item in found) if found is not None else None,
        )

    def _ask(self, name: str, *arguments: Any) -> Any:
        """What NVML answers; None where this device or driver does not know."""
        try:
            return getattr(self.library, name)(*arguments)
        except (self.library.NVMLError, AttributeError):
            return None


def throttle_reasons(bits: int) -> list[str]:
    """NVML's bit field in words; bits that this version does not know by their value."""
    named = [name for bit, name in THROTTLE_REASONS.items() if bits & bit]
    rest = bits & ~sum(THROTTLE_REASONS)
    return [*named, *([f"0x{rest:x}"] if rest else [])]


def open_nvml(devices: Sequence[torch.device]) -> Nvml:
    """NVML's handles of these devices, whatever CUDA_VISIBLE_DEVICES calls them."""
    if devices[0].type != "cuda":
        return Nvml(reason=f"{devices[0].type.upper()}: only NVIDIA GPUs tell their energy")
    try:
        import pynvml
    except ImportError:
        return Nvml(reason="nvidia-ml-py is not installed")
    properties = [torch.cuda.get_device_properties(device) for device in devices]
    return handles_of(properties, pynvml)


def handles_of(properties: Sequence[Any], library: Any) -> Nvml:
    """NVML's handles of the devices with these CUDA properties.

    CUDA numbers the devices that it may see, NVML all of the machine, in another order: only the
    UUID is the same for both, or else the place on the PCI bus. A slice of a GPU (MIG) has the UUID
    of the slice and the place of the whole, whose figures are not its own.
    """
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        return Nvml(reason=f"NVML: {error}")
    handles = []
    for device in properties:
        handle = None
        uuid = str(getattr(device, "uuid", ""))  # without NVML's prefix
        bus = (
            f"{getattr(device, 'pci_domain_id', 0):08x}:{getattr(device, 'pci_bus_id', 0):02x}:"
            f"{getattr(device, 'pci_device_id', 0):02x}.0"
        )
        for name, value in (
            ("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}"),
            ("nvmlDeviceGetHandleByUUID", f"MIG-{uuid}"),
            ("nvmlDeviceGetHandleByPciBusId", bus),
        ):
            with contextlib.suppress(library.NVMLError, AttributeError):
                found = getattr(library, name)(value)
                if name == "nvmlDeviceGetHandleByPciBusId" and _is_sliced(found, library):
                    continue
                handle = found
                break
        if handle is None:
            return Nvml(reason=f"NVML does not know the device {uuid or bus}")
        handles.append(handle)
    driver = None
    with contextlib.suppress(library.NVMLError, AttributeError):
        driver = str(library.nvmlSystemGetDriverVersion())
    return Nvml(handles, None, library, driver)


def _is_sliced(handle: Any, library: Any) -> bool:
    """Whether the GPU is split into slices (MIG)."""
    with contextlib.suppress(library.NVMLError, AttributeError):
        return bool(library.nvmlDeviceGetMigMode(handle)[0])
    return False  # older than that


@dataclass
class Window:
    """What was done in a window; set before its end."""

    images: int = 0


@contextlib.contextmanager
def window(nvml: Nvml, energy: Energy, steady: bool = True) -> Iterator[Window]:
    """Add what the devices take inside to `energy`, for as many images as the block says.

    The devices must be idle at both ends. `steady` is false while a run warms up.
    """
    done = Window()
    before, started = nvml.energy_j(), time.monotonic()
    yield done
    after = nvml.energy_j()
    seconds = time.monotonic() - started
    if before is None or after is None or after < before:
        energy.reason = energy.reason or nvml.reason or "NVML's counter went backwards"
    else:
        energy.add(after - before, seconds, done.images, steady)


def others(state: Sequence[Gpu], own: Sequence[int]) -> int | None:
    """How many processes besides our own hold a context on these devices; None if unknown.

    Inside a container NVML tells the host's ids, among which ours are not: then one a device is
    taken for ours.
    """
    if not state or any(gpu.processes is None for gpu in state):
        return None
    count = 0
    for gpu in state:
        listed = set(gpu.processes or ())
        mine = listed & {*own, os.getpid()}
        count += len(listed - mine) - (1 if listed and not mine else 0)
    return count
