"""The tables, and what they say in words."""

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.growth.images import ImagesRow
from benchmarks.growth.sweeps import Sweep
from benchmarks.shared.page import table
from benchmarks.shared.provenance import machine
from benchmarks.shared.ratio import spread


@dataclass(frozen=True)
class Line:
    """A straight line through the memory at the end of each cell, without the first cells."""

    first: float
    last: float
    per_cell: float


def line(memory: Sequence[float]) -> Line:
    """The first two cells bring modules and buffers that stay: they do not count as growth."""
    counted = np.array(memory[2:] if len(memory) > 4 else memory, dtype=np.float64)
    slope = np.polyfit(np.arange(len(counted)), counted, 1)[0] if len(counted) > 1 else math.nan
    return Line(float(counted[0]), float(counted[-1]), float(slope))


def images_table(rows: Sequence[ImagesRow]) -> str:
    """The times of N, 2N and 4N images in Markdown."""
    cells = [
        [
            f"{row.images:,}",
            f"{row.seconds:.2f}",
            "-" if row.ratio is None else f"{row.ratio:.3f}",
            spread(row.low, row.high),
            row.verdict,
        ]
        for row in rows
    ]
    header = ["images", "training, s", "over proportion", "95% interval", "verdict"]
    slope, fixed = np.polyfit([row.images for row in rows], [row.seconds for row in rows], 1)
    words = f"A straight line: {1e6 * slope:.1f} us an image and {fixed:+.3f} s."
    return f"{table(header, cells)}\n\n{words}"


def cells_table(sweeps: Sequence[Sweep]) -> str:
    """What the sweeps took in Markdown, and whether late cells cost more than early ones."""
    rows = []
    for sweep in sweeps:
        steady = (sweep.ends_s[-1] - sweep.ends_s[0]) / max(1, len(sweep.ends_s) - 1)
        rows.append([sweep.cells, f"{sweep.seconds:.1f}", f"{steady:.3f}"])
    small, large = sweeps[0], sweeps[-1]
    words = (
        f"{large.cells / small.cells:g} times the cells took {large.seconds / small.seconds:.2f} "
        "times as long, the start of the command and its table included."
    )
    # Whole rounds of the nine cells: they differ among themselves.
    if len(large.ends_s) > 18:
        for what, values in (
            ("Nine cells took {:.2f} s", large.ends_s),
            ("the sweep process computed {:.2f} s for them", large.sweep_cpu_s),
        ):
            first, last = values[9] - values[0], values[-1] - values[-10]
            words += f" {what.format(first)} at first and {last:.2f} s at last;"
        words = words[:-1] + "."
    return f"{table(['cells', 'whole command, s', 's a cell'], rows)}\n\n{words}"


def memory_table(sweeps: Sequence[Sweep]) -> str:
    """Memory at the end of cells in Markdown."""
    rows = []
    for sweep in sweeps:
        for name, memory in (("sweep", sweep.sweep_mib), ("forkserver", sweep.server_mib)):
            grown = line(memory)
            first, last = f"{grown.first:.1f}", f"{grown.last:.1f}"
            rows.append([sweep.cells, name, first, last, f"{grown.per_cell:+.4f}"])
    small, large = (statistics.median(sweep.sweep_mib) for sweep in (sweeps[0], sweeps[-1]))
    more = sweeps[-1].cells - sweeps[0].cells
    words = (
        f"The settings of {more} more cells, held from the start, take {large - small:.1f} MiB "
        "of the sweep process."
    )
    header = ["cells", "process", "MiB at first", "at last", "MiB a cell"]
    return f"{table(header, rows)}\n\n{words}"


def provenance(options: argparse.Namespace, load: float) -> str:
    """On what, with which versions, when and how often it was measured."""
    import torch

    cuda = torch.cuda.is_available() and options.device != "cpu"
    device = f"{torch.cuda.get_device_name(0)}, " if cuda else ""
    return (
        f"{device}{machine(load)}; images: {options.repeats} repeats in turn of "
        f"{options.epochs} epochs"
    )
