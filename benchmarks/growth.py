"""What twice as much costs: images, cells, and the memory of the process that runs the sweep.

    python -m benchmarks.growth --out DIR               # all three; some minutes
    python -m benchmarks.growth --parts cells --seeds 9 # 9 cells against 81
    python -m benchmarks.growth --small                 # does it all run?

images  the same cell on N, 2N and 4N images, repeats interleaved: its training time without the
        first epoch, as a ratio of what proportion predicts
cells   the nine cells of the matrix, tiny, with one seed and with more: the time of the whole
        command, and from the end of one cell to the end of the next
memory  of the same sweeps, on a terminal: resident memory of the sweep process and of the server
        that forks its ranks, at the end of each cell; what a cell adds is the slope of a
        straight line

Times need a quiet machine: the load is told. `--out` gets growth.md and growth.json.
"""

import argparse
import contextlib
import json
import math
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from amp_sweep import record
from benchmarks.children import environment
from benchmarks.cpu_cells import interval

PARTS = ("images", "cells", "memory")
CLAIM = 0.03  # twice the images take twice the time, within this
POLL_S = 0.1

# A cell that costs nothing but its start and its end.
TINY = (
    *("data=synthetic", "data.image_size=64", "data.train_images=64", "data.test_images=16"),
    *("data.batch_size=32", "model.width=0.1", "epochs=1", "track=none"),
    *("measure.probes=false", "measure.energy=false"),
)


# ------------------------------------------------------------------ images


@dataclass(frozen=True)
class ImagesRow:
    """A number of images against the smallest: 1 is what proportion predicts."""

    images: int
    seconds: float  # of training, without the first epoch; median over repeats
    ratio: float | None
    low: float | None
    high: float | None

    @property
    def verdict(self) -> str:
        """Whether the interval lies within the claim."""
        if self.ratio is None:
            return "-"
        if self.low is None or self.high is None:
            return "one repeat"
        if self.low >= 1 - CLAIM and self.high <= 1 + CLAIM:
            return f"within {CLAIM:.0%}"
        beyond = self.high < 1 - CLAIM or self.low > 1 + CLAIM
        return f"beyond {CLAIM:.0%}" if beyond else "undecided"


def training_s(folder: Path, images: int, options: argparse.Namespace) -> float:
    """Seconds of training of a cell, without its first epoch."""
    name = f"images{images}"
    subprocess.run(
        [
            *(sys.executable, "-m", "amp_sweep.train", f"outputs={folder}", f"name={name}"),
            *("data=synthetic", "data.image_size=64", f"data.train_images={images}"),
            *("data.test_images=64", f"epochs={options.epochs}", "force=true", "track=none"),
            *("measure.probes=false", f"device={options.device}", *options.settings),
        ],
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    (run,) = map(record.read, record.find(folder / name))
    return math.fsum(epoch["train_time_s"] for epoch in run.epochs[1:])


def grow_images(folder: Path, options: argparse.Namespace) -> list[ImagesRow]:
    """N, 2N and 4N images in turn, as often as was asked for."""
    counts = [options.images * factor for factor in (1, 2, 4)]
    found: dict[int, list[float]] = {count: [] for count in counts}
    for repeat in range(options.repeats):
        for count in counts if repeat % 2 == 0 else reversed(counts):
            found[count].append(training_s(folder, count, options))
            _say(f"{count:,} images: {found[count][-1]:.2f} s")
    rows = []
    for count in counts:
        ratio: tuple[float | None, float | None, float | None] = (None, None, None)
        if count != counts[0]:
            pairs = zip(found[count], found[counts[0]], strict=True)
            ratio = interval([large / small / (count / counts[0]) for large, small in pairs])
        rows.append(ImagesRow(count, statistics.median(found[count]), *ratio))
    return rows


# ------------------------------------------------------------------ cells and memory


@dataclass(frozen=True)
class Sweep:
    """A sweep of tiny cells, watched from outside.

    ends_s: when each cell was seen to have ended, from the start of the command; one whose
        processes could no longer be read then is missing, in all four lists.
    sweep_mib, server_mib: resident memory at those moments.
    sweep_cpu_s: what the sweep process had computed by then.
    """

    cells: int
    seconds: float
    ends_s: list[float]
    sweep_mib: list[float]
    server_mib: list[float]
    sweep_cpu_s: list[float]


def watch_sweep(folder: Path, seeds: int, options: argparse.Namespace) -> Sweep:
    """Run the nine tiny cells with `seeds` seeds."""
    name = f"seeds{seeds}"
    cells = 9 * seeds
    # On a terminal, where it has bars to draw too.
    reader, terminal = pty.openpty()
    began = time.perf_counter()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "amp_sweep.train", "-m", f"outputs={folder}", f"name={name}"),
            *("parallel=none,dp,ddp", "precision=fp32,autocast,scaler", f"device={options.device}"),
            *(f"seed={','.join(map(str, range(seeds)))}", *TINY),
        ],
        cwd=folder,
        env=environment(),
        stdout=terminal,
    )
    os.close(terminal)
    threading.Thread(target=_drain, args=(reader,), daemon=True).start()
    sweep = psutil.Process(process.pid)
    ends, seen = looked_at(
        lambda: process.poll() is None, lambda: _over(folder / name), lambda: _used(sweep), began
    )
    seconds = time.perf_counter() - began
    completed = len(_over(folder / name))
    if process.returncode or completed != cells:
        raise SystemExit(f"the sweep ended with {process.returncode}, {completed} of {cells} cells")
    if not seen:
        raise SystemExit(f"the memory of the sweep could not be read at the end of {cells} cells")
    _say(f"{cells} cells: {seconds:.1f} s")
    if len(seen) < cells:
        _say(f"{cells - len(seen)} of them ended without their memory being read")
    memory, server_memory, cpu = (list(values) for values in zip(*seen, strict=True))
    return Sweep(cells, seconds, ends, memory, server_memory, cpu)


def looked_at(
    alive: Callable[[], bool],
    over: Callable[[], set[Path]],
    used: Callable[[], tuple[float, float, float]],
    began: float,
) -> tuple[list[float], list[tuple[float, float, float]]]:
    """When the cells in `over` were first seen there, and what was `used` then, each a value."""
    ends: list[float] = []
    seen: list[tuple[float, float, float]] = []
    known: set[Path] = set()
    while alive():
        time.sleep(POLL_S)
        new = over() - known
        if not new:
            continue
        try:
            now = used()
        except psutil.Error:  # a process ended in this moment: once more, if the sweep lives
            continue
        known |= new
        ends += [time.perf_counter() - began] * len(new)
        seen += [now] * len(new)
    return ends, seen


def _used(sweep: psutil.Process) -> tuple[float, float, float]:
    """Memory of the sweep and of its server in MiB, and CPU seconds of the sweep."""
    used = sweep.cpu_times()
    server = max([_mib(child) for child in _servers(sweep)], default=math.nan)
    return _mib(sweep), server, used.user + used.system


def _drain(terminal: int) -> None:
    """Read what is written there, until nobody has it open."""
    with contextlib.suppress(OSError), os.fdopen(terminal, "rb") as file:
        while file.read1(1 << 16):
            pass


def _over(folder: Path) -> set[Path]:
    """Records of the cells that are completed."""
    found = set()
    for path in record.find(folder):
        try:
            if '"status": "completed"' in path.read_text(encoding="utf-8")[:4096]:
                found.add(path)
        except OSError:  # it is being replaced
            continue
    return found


def _servers(sweep: psutil.Process) -> list[psutil.Process]:
    """The servers that fork the sweep's ranks."""
    return [child for child in sweep.children() if "forkserver" in " ".join(child.cmdline())]


def _mib(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20


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


# ------------------------------------------------------------------ in words


def images_table(rows: Sequence[ImagesRow]) -> str:
    """The times of N, 2N and 4N images in Markdown."""
    lines = [
        "| images | training, s | over proportion | 95% interval | verdict |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        ratio = "-" if row.ratio is None else f"{row.ratio:.3f}"
        spread = "-" if row.low is None else f"{row.low:.3f} to {row.high:.3f}"
        lines.append(f"| {row.images:,} | {row.seconds:.2f} | {ratio} | {spread} | {row.verdict} |")
    slope, fixed = np.polyfit([row.images for row in rows], [row.seconds for row in rows], 1)
    lines += ["", f"A straight line: {1e6 * slope:.1f} us an image and {fixed:+.3f} s."]
    return "\n".join(lines)


def cells_table(sweeps: Sequence[Sweep]) -> str:
    """What the sweeps took in Markdown, and whether late cells cost more than early ones."""
    lines = ["| cells | whole command, s | s a cell |", "| --- | --- | --- |"]
    for sweep in sweeps:
        steady = (sweep.ends_s[-1] - sweep.ends_s[0]) / max(1, len(sweep.ends_s) - 1)
        lines.append(f"| {sweep.cells} | {sweep.seconds:.1f} | {steady:.3f} |")
    small, large = sweeps[0], sweeps[-1]
    lines += [
        "",
        f"{large.cells / small.cells:g} times the cells took {large.seconds / small.seconds:.2f} "
        "times as long, the start of the command and its table included.",
    ]
    # Whole rounds of the nine cells: they differ among themselves.
    if len(large.ends_s) > 18:
        for what, values in (
            ("Nine cells took {:.2f} s", large.ends_s),
            ("the sweep process computed {:.2f} s for them", large.sweep_cpu_s),
        ):
            first, last = values[9] - values[0], values[-1] - values[-10]
            lines[-1] += f" {what.format(first)} at first and {last:.2f} s at last;"
        lines[-1] = lines[-1][:-1] + "."
    return "\n".join(lines)


def memory_table(sweeps: Sequence[Sweep]) -> str:
    """Memory at the end of cells in Markdown."""
    lines = [
        "| cells | process | MiB at first | at last | MiB a cell |",
        "| --- | --- | --- | --- | --- |",
    ]
    for sweep in sweeps:
        for name, memory in (("sweep", sweep.sweep_mib), ("forkserver", sweep.server_mib)):
            grown = line(memory)
            lines.append(
                f"| {sweep.cells} | {name} | {grown.first:.1f} | {grown.last:.1f} | "
                f"{grown.per_cell:+.4f} |"
            )
    small, large = (statistics.median(sweep.sweep_mib) for sweep in (sweeps[0], sweeps[-1]))
    more = sweeps[-1].cells - sweeps[0].cells
    lines += [
        "",
        f"The settings of {more} more cells, held from the start, take {large - small:.1f} MiB "
        "of the sweep process.",
    ]
    return "\n".join(lines)


def provenance(options: argparse.Namespace, load: float) -> str:
    """On what, with which versions, when and how often it was measured."""
    import torch

    from amp_sweep.hardware import cpu_name

    cuda = torch.cuda.is_available() and options.device != "cpu"
    device = f"{torch.cuda.get_device_name(0)}, " if cuda else ""
    return (
        f"{device}{cpu_name()}, {len(os.sched_getaffinity(0))} cores (load average {load:.1f} at "
        f"the start), torch {torch.__version__}, {datetime.now(UTC).date()}; images: "
        f"{options.repeats} repeats in turn of {options.epochs} epochs"
    )


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--images", type=int, default=1024, help="N")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=9, help="of the large sweep")
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--settings", nargs="*", default=[], help="of the cell of the images")
    parser.add_argument("--small", action="store_true", help="on the CPU: does it all run?")
    parser.add_argument("--out", type=Path, metavar="DIR", help="growth.md and growth.json")
    options = parser.parse_args(argv)
    if options.small:
        options.images, options.epochs, options.repeats, options.seeds = 64, 2, 1, 2
        options.device = "cpu"
    load = os.getloadavg()[0]
    pieces: list[str] = []
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="growth-") as name:
        folder = Path(name)
        if "images" in options.parts:
            rows = grow_images(folder, options)
            pieces.append(f"## Images\n\n{images_table(rows)}")
            figures["images"] = [asdict(row) for row in rows]
        if {"cells", "memory"} & set(options.parts):
            sweeps = [watch_sweep(folder, seeds, options) for seeds in (1, options.seeds)]
            figures["sweeps"] = [asdict(sweep) for sweep in sweeps]
            if "cells" in options.parts:
                pieces.append(f"## Cells\n\n{cells_table(sweeps)}")
            if "memory" in options.parts:
                pieces.append(f"## Memory\n\n{memory_table(sweeps)}")
    pieces.append(provenance(options, load))
    page = "\n\n".join(pieces)
    sys.stdout.write(f"{page}\n")
    if options.out:
        given = " ".join(["python -m benchmarks.growth", *(sys.argv[1:] if argv is None else argv)])
        options.out.mkdir(parents=True, exist_ok=True)
        text = f"# What twice as much costs\n\n{page}.\n\nMade by `{given}`.\n"
        (options.out / "growth.md").write_text(text, encoding="utf-8")
        figures["provenance"] = pieces[-1]
        (options.out / "growth.json").write_text(
            json.dumps(figures, indent=1) + "\n", encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
