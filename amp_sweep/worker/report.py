"""What one rank saw of its devices and of itself, as plain values for the record."""

import os
import socket
from dataclasses import asdict, dataclass, field
from typing import Any

from amp_sweep import energy, memory
from amp_sweep.measure import CpuTimes, StepTimes, cpu_times
from amp_sweep.precision import Observed
from amp_sweep.worker import honoured, measured
from amp_sweep.worker.build import Cell
from amp_sweep.worker.compile_ahead import Compiled
from amp_sweep.worker.state import Progress


@dataclass
class Segment:
    """What this process measured: from its start or resumption to its end."""

    startup_s: float
    compiled: Compiled | None = None
    first_step_s: float | None = None
    step_times: list[StepTimes] = field(default_factory=list)  # one per epoch
    observed: Observed = field(default_factory=Observed)
    rss_before_mib: float = 0.0  # before anything was built
    nvml: energy.Nvml = field(default_factory=energy.Nvml)
    own_processes: list[int] = field(default_factory=list)  # those of all ranks
    gpus_start: list[dict[str, Any]] = field(default_factory=list)
    contended: bool | None = None  # at the start
    cpu: CpuTimes = field(default_factory=cpu_times)  # likewise


def look_around(cell: Cell, segment: Segment) -> None:
    """Note the state of the devices, and who else uses them."""
    segment.own_processes = cell.ranks.gather(os.getpid())
    if not cell.config.measure.energy:
        segment.nvml = energy.Nvml(reason="measure.energy=false")
        return
    segment.nvml = energy.open_nvml(cell.devices)
    segment.gpus_start = [asdict(gpu) for gpu in segment.nvml.state()]
    segment.contended = measured.contended(segment.nvml, segment.own_processes)


def rank_report(cell: Cell, segment: Segment, progress: Progress) -> dict[str, Any]:
    """This rank's part of the record."""
    allocated, reserved = memory.peaks_mib(cell.devices)
    peak_rss_mib = memory.peak_rss_mib()
    seen = segment.observed
    progress.energy.total_j()  # gives the reason, where there is none yet
    return {
        "hostname": socket.gethostname(),
        "device_names": [cell.device_name(device) for device in cell.devices],
        "observed_dtypes": sorted(seen.dtypes),
        "observed_dtypes_by_layer": [
            {
                "rank": cell.ranks.rank,
                "device": device,
                **{kind: sorted(names) for kind, names in sorted(kinds.items())},
            }
            for device, kinds in sorted(seen.by_device.items())
        ],
        "honoured": honoured.seen_by_rank(cell, seen, segment.compiled),
        "peak_allocated_mib": allocated,
        "peak_reserved_mib": reserved,
        "peak_rss_mib": peak_rss_mib,
        "peak_rss_above_mib": max(0.0, peak_rss_mib - segment.rss_before_mib),
        "startup_s": segment.startup_s,
        "compiled": segment.compiled,
        "energy": asdict(progress.energy),
        "contended": [segment.contended, measured.contended(segment.nvml, segment.own_processes)],
        "cpu": (segment.cpu, cpu_times()),
        "threads": cell.threads,
        "refused_images": cell.train.refused + cell.test.refused,
        "gpus_start": segment.gpus_start,
        "gpus_end": [asdict(gpu) for gpu in segment.nvml.state()],
    }
