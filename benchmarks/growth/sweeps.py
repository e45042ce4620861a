"""Sweeps of tiny cells, watched from outside: when cells end, and memory then."""

import argparse
import contextlib
import math
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from amp_sweep import record
from benchmarks.shared.children import environment

POLL_S = 0.1

# A cell that costs nothing but its start and its end.
TINY = (
    *("data=synthetic", "data.image_size=64", "data.train_images=64", "data.test_images=16"),
    *("data.batch_size=32", "model.width=0.1", "epochs=1", "track=none"),
    *("measure.probes=false", "measure.energy=false"),
)


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
    sys.stderr.write(f"{cells} cells: {seconds:.1f} s\n")
    if len(seen) < cells:
        sys.stderr.write(f"{cells - len(seen)} of them ended without their memory being read\n")
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
