"""Whole cells on the folder, through the command line."""

import math
import sys
from pathlib import Path
from typing import Any

from benchmarks.larger_data.work import Work

# More images a second than any cell trains: how many are planned for.
CELL_AT_MOST = 8_000

CELLS: dict[str, list[str]] = {
    "cell": ["data.pipeline=loader"],
    "cell_decode": ["data.pipeline=loader", "data.decode=device"],
    "cell_resident": ["data.pipeline=resident"],
}


def cell_command(name: str, work: Work, out: Path) -> list[str]:
    """The command line of a cell."""
    rate = CELL_AT_MOST if work.device == "cuda" else 0
    epochs = 1 + math.ceil(max(work.images, work.seconds * rate) / work.images)
    workers = 0 if name == "cell_resident" else work.workers
    return [
        *(sys.executable, "-m", "amp_sweep.train", "model=alexnet", f"model.width={work.width}"),
        *("data=imagefolder", f"data.root={work.root}", f"data.image_size={work.image_size}"),
        *(f"data.batch_size={work.batch}", f"data.workers={workers}", *CELLS[name]),
        *(f"precision={work.precision}", f"epochs={epochs}", f"device={work.device}"),
        *(f"outputs={out}", f"name={name}", "measure.probes=false", "track=none"),
    ]


def cell_result(out: Path, name: str) -> dict[str, Any]:
    """What the record of the only cell says."""
    from amp_sweep import record

    found = [record.read(path) for path in record.find(out / name)]
    if not found:
        return {}
    run = found[0]
    if run.status != record.COMPLETED:
        error = run.error or {}
        return {"absent": f"{run.status}: {error.get('message')}"}
    return {
        "images_per_s": run.metrics["images_per_s"],
        "data_wait_frac": run.metrics["data_wait_frac"],
        "data_placement": run.effective["data_placement"],
        "epochs": len(run.epochs),
        "gpu_mib": (run.metrics.get("peak_reserved_mib") or [None])[0],
    }
