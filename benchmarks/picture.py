"""The benchmark's results as one picture: who trains how many images per second.

    python -m benchmarks.picture results/results.json --out results

Writes speed.png and speed.svg. `results.json` is what `python -m benchmarks --out` writes, or
several of them by the name of their run; of a contender that is in more than one the last counts.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from analysis.pictures import style

NAMES = {
    "article": "the article's loop (PIL, one process)",
    "lightning_workers": "Lightning, loader processes",
    "lightning_resident": "Lightning, images on the GPU",
    "lightning_equal": "Lightning, the same, compiled",
    "accelerate_resident": "Accelerate, images on the GPU",
    "accelerate_equal": "Accelerate, the same, compiled",
    "bare": "bare step, no data",
    "tuned": "hand-tuned loop in a CUDA graph",
    "ours": "amp_sweep, default",
    "ours_fast": "amp_sweep, memory=fast",
    "ours_ddp": "amp_sweep, ddp on {gpus} GPUs",
    "ours_ddp_fast": "amp_sweep, memory=fast, ddp on {gpus} GPUs",
}
OURS = "ours"
WIDTH, BAR, ROOM = 7.2, 0.29, 0.9  # inches: of the picture, a row, and around the rows


@dataclass(frozen=True)
class Bar:
    """One contender."""

    contender: str
    label: str
    images_per_s: float  # the median of its repeats


def bars(results: Any, precision: str, batch: int) -> list[Bar]:
    """The contenders that were measured in one precision and batch per GPU, slowest first."""
    runs = results.values() if isinstance(results, dict) else [results]
    found: dict[str, Bar] = {}
    for row in (row for run in runs for row in run):
        name, work = row["contender"], row["work"]
        values = [r["images_per_s"] for r in row["results"] if r.get("images_per_s") is not None]
        if name in NAMES and values and (work["precision"], work["batch"]) == (precision, batch):
            label = NAMES[name].format(gpus=work["gpus"])
            found[name] = Bar(name, label, statistics.median(values))
    return sorted(found.values(), key=lambda bar: bar.images_per_s)


def draw(shown: Sequence[Bar], title: str) -> Figure:
    """A bar each; ours dark, all others light."""
    dark, light = style.series(2)
    figure = Figure((WIDTH, BAR * len(shown) + ROOM), layout="constrained")
    axes = figure.subplots()
    for place, bar in enumerate(shown):
        colour = dark if bar.contender.startswith(OURS) else light
        axes.barh(place, bar.images_per_s, 0.72, color=colour)
        axes.annotate(
            f"{bar.images_per_s:,.0f}",
            (bar.images_per_s, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            size=style.SMALL,
        )
    axes.set_yticks(range(len(shown)), [bar.label for bar in shown], size=style.TEXT)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.12, y=0.02)
    axes.xaxis.set_major_formatter(lambda value, _place: f"{value:,.0f}")
    axes.set_xlabel("images per second; longer is better")
    figure.suptitle(title, x=0.01, ha="left", size=style.TITLE)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point."""
    parser = argparse.ArgumentParser(description="The benchmark's results as one picture.")
    parser.add_argument("results", type=Path, help="results.json")
    parser.add_argument("--precision", default="scaler")
    parser.add_argument("--batch", type=int, default=64, help="of each GPU")
    parser.add_argument("--title", default="AlexNet, 227 px")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for speed.png, speed.svg")
    options = parser.parse_args(arguments)
    results = json.loads(options.results.read_text(encoding="utf-8"))
    shown = bars(results, options.precision, options.batch)
    if not shown:
        parser.error(f"nothing in {options.precision} at batch {options.batch}")
    options.out.mkdir(parents=True, exist_ok=True)
    title = f"{options.title}, {options.precision}, batch {options.batch} per GPU"
    with style.settings():
        figure = draw(shown, title)
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            figure.savefig(options.out / f"speed.{kind}", dpi=150, metadata=metadata)
    return 0


if __name__ == "__main__":
    sys.exit(main())
