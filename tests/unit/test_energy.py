"""Joules and devices: against a stand-in for NVML that keeps its rules, and the real one's absence.

No machine of the tests has a GPU for certain: NVML is played by an object with a meter that
turns, in NVML's units (millijoules, milliwatts), with NVML's own error class.
"""

import itertools
import os
from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest
import torch

from amp_sweep import energy
from amp_sweep.energy import Energy, Gpu, Nvml, handles_of, others, throttle_reasons, window


@dataclass
class Process:
    pid: int


@dataclass
class Meter:
    """NVML of a machine with some GPUs, by UUID and place on the bus."""

    uuids: list[str]
    buses: list[str] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    sliced: list[str] = field(default_factory=list)  # places of GPUs that are split (MIG)
    has_counter: bool = True
    millijoules: Any = None
    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def nvmlInit(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid not in self.uuids:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self.uuids.index(uuid)

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> int:
        if bus not in self.buses:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self.buses.index(bus)

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [int(self.buses[handle] in self.sliced)] * 2

    def nvmlDeviceGetTotalEnergyConsumption(self, _handle: int) -> int:
        if not self.has_counter:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return int(next(self.millijoules))

    def nvmlDeviceGetClockInfo(self, _handle: int, kind: int) -> int:
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetEnforcedPowerLimit(self, _handle: int) -> int:
        return 700_000

    def nvmlDeviceGetTemperature(self, _handle: int, _sensor: int) -> int:
        return 45

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _handle: int) -> int:
        return 0x4 | 0x1

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: int) -> list[Process]:
        return [Process(pid) for pid in self.pids]


@dataclass
class Properties:
    """What torch.cuda.get_device_properties gives, as far as it is asked."""

    uuid: str = ""
    pci_domain_id: int = 0
    pci_bus_id: int = 0
    pci_device_id: int = 0


def test_a_cpu_has_no_energy_and_says_why() -> None:
    found = energy.open_nvml([torch.device("cpu")])
    assert found.reason == "CPU: only NVIDIA GPUs tell their energy"
    spent = Energy()
    with window(found, spent):
        pass
    assert spent.total_j() is None and spent.reason == found.reason
    assert found.state() == [] and found.energy_j() is None


def test_without_the_driver_nvml_says_why() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        found = handles_of([Properties("x")], pynvml)
        assert found.handles == [] and str(found.reason).startswith("NVML: ")
    else:
        pytest.skip("there is a driver here")


def test_cudas_devices_are_found_by_uuid_in_whatever_order_they_are_visible() -> None:
    meter = Meter(["GPU-aaaa", "GPU-bbbb", "GPU-cccc"])
    # CUDA_VISIBLE_DEVICES=2,0 makes NVML's third CUDA's first.
    found = handles_of([Properties("cccc"), Properties("aaaa")], meter)
    assert found.handles == [2, 0] and found.reason is None and found.driver == "580.1"


def test_a_slice_of_a_gpu_is_known_by_its_own_name_and_never_as_the_whole() -> None:
    # CUDA tells the slice's UUID, without NVML's prefix, and the place of the whole.
    place = {"pci_bus_id": 0x17}
    meter = Meter(["GPU-aaaa", "MIG-1234"], ["00000000:17:00.0"], sliced=["00000000:17:00.0"])
    assert handles_of([Properties("1234", **place)], meter).handles == [1]
    found = handles_of([Properties("5678", **place)], meter)
    assert found.handles == [] and "5678" in str(found.reason)


def test_without_a_uuid_the_place_on_the_bus_tells() -> None:
    meter = Meter([], ["00000000:17:00.0", "00000000:ca:00.0"])
    found = handles_of([Properties("", 0, 0xCA, 0)], meter)
    assert found.handles == [1]


def test_a_device_that_nvml_does_not_know_is_no_other_one() -> None:
    found = handles_of([Properties("zzzz")], Meter(["GPU-aaaa"], ["00000000:17:00.0"]))
    assert found.handles == [] and "zzzz" in str(found.reason)


def test_joules_are_the_counters_differences_over_all_devices_and_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Two devices, read at the start and at the end of two windows of two seconds.
    readings = iter([1000, 5000, 3000, 6000, 10_000, 20_000, 10_500, 20_500])
    clock = itertools.count(0.0, 2.0)
    monkeypatch.setattr(energy.time, "monotonic", lambda: next(clock))
    nvml = Nvml([0, 1], None, Meter([], millijoules=readings))
    spent = Energy()
    for epoch in range(2):
        with window(nvml, spent, steady=epoch > 0) as done:
            done.images = 100
    assert (spent.windows, spent.seconds, spent.images) == (2, 4.0, 200)
    assert spent.total_j() == pytest.approx((2000 + 1000 + 500 + 500) / 1000)
    # The first epoch, in which libraries look for their kernels, is no part of an image's share.
    assert spent.per_image_of() == (pytest.approx(1.0), 100, True)


def test_without_a_later_epoch_that_is_long_enough_the_first_counts() -> None:
    spent = Energy()
    spent.add(300.0, 3.0, 1000, steady=False)
    assert spent.per_image_of() == (300.0, 1000, False)
    spent.add(50.0, 0.9, 1000, steady=True)
    assert spent.per_image_of() == (350.0, 2000, False)


@pytest.mark.parametrize(("seconds", "known"), [(0.99, False), (1.0, True), (30.0, True)])
def test_windows_shorter_than_ten_refreshes_give_no_figure(seconds: float, known: bool) -> None:
    spent = Energy(joules=50.0, seconds=2 * seconds, windows=2)
    assert (spent.total_j() is not None) is known
    assert (spent.reason is None) is known
    if not known:
        assert "0.99 s, too short" in str(spent.reason)


def test_a_device_without_a_counter_gives_the_reason() -> None:
    spent = Energy()
    with window(Nvml([0], None, Meter([], has_counter=False)), spent):
        pass
    assert spent.total_j() is None and spent.reason == "NVML has no energy counter for this device"


def test_a_counter_that_goes_backwards_gives_no_figure() -> None:
    spent = Energy()
    with window(Nvml([0], None, Meter([], millijoules=iter([9000, 10]))), spent):
        pass
    assert spent.total_j() is None and "backwards" in str(spent.reason)
    with window(Nvml(reason="no counter"), spent):
        pass
    assert "backwards" in str(spent.reason)  # the first reason stays


def test_a_run_that_did_not_train_gives_no_figure() -> None:
    spent = Energy()
    assert spent.total_j() is None and spent.reason == "no training window"


def test_the_state_of_a_gpu_is_in_plain_units() -> None:
    (found,) = Nvml([0], None, Meter(["GPU-a"], pids=[7, 3])).state()
    # The name of the throttle query is the older one here: the newer is not there.
    assert found == Gpu(1980, 3201, 700.0, 45, ["idle", "power cap"], [3, 7])


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0, []),
        (0x1, ["idle"]),
        (0x8 | 0x40, ["hardware slowdown", "thermal (hardware)"]),
        (0x1000, ["0x1000"]),
    ],
)
def test_throttle_reasons_in_words(bits: int, words: list[str]) -> None:
    assert throttle_reasons(bits) == words


def test_throttle_bits_are_nvmls() -> None:
    named = {
        "idle": pynvml.nvmlClocksThrottleReasonGpuIdle,
        "application clocks": pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting,
        "power cap": pynvml.nvmlClocksThrottleReasonSwPowerCap,
        "hardware slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
        "sync boost": pynvml.nvmlClocksThrottleReasonSyncBoost,
        "thermal (software)": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
        "thermal (hardware)": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
        "power brake": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
        "display clocks": pynvml.nvmlClocksThrottleReasonDisplayClockSetting,
    }
    assert {name: bit for bit, name in energy.THROTTLE_REASONS.items()} == named
    assert set(named) >= energy.SLOWING


def gpu(*pids: int) -> Gpu:
    return Gpu(None, None, None, None, None, list(pids))


@pytest.mark.parametrize(
    ("state", "own", "count"),
    [
        ([], [1], None),
        ([Gpu(None, None, None, None, None, None)], [1], None),
        ([gpu(1), Gpu(None, None, None, None, None, None)], [1], None),
        ([gpu(1)], [1], 0),
        ([gpu(1, 2)], [1], 1),
        ([gpu(1, 2)], [1, 2], 0),  # ranks of one run
        ([gpu(1), gpu(1, 8, 9)], [1], 2),
        ([gpu(4711)], [1], 0),  # a container: the host's ids
        ([gpu(4711, 4712)], [1], 1),
        ([gpu()], [1], 0),
    ],
)
def test_other_processes_are_those_that_are_not_ours(
    state: list[Gpu], own: list[int], count: int | None
) -> None:
    assert os.getpid() not in {1, 2, 8, 9, 4711, 4712}
    assert others(state, own) == count


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_busy_gpu_takes_energy() -> None:
    nvml = energy.open_nvml([torch.device("cuda", 0)])
    if nvml.reason:
        pytest.skip(nvml.reason)
    one = torch.randn(4096, 4096, device="cuda")
    spent = Energy()
    with window(nvml, spent):
        for _ in range(400):
            one @ one
        torch.cuda.synchronize()
    assert spent.joules > 0
    assert nvml.state()[0].power_limit_w > 0  # type: ignore[operator]
