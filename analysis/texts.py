"""Figures as people read them, and the rows of text that every output shares."""

from collections import Counter
from dataclasses import dataclass

from amp_sweep import record
from analysis import verdicts
from analysis.comparison import Cell, Comparison, Table
from analysis.statistics import MOST_SEEDS, Figure
from analysis.verdicts import RATIO, WORSE, Effect

NOT_ASKED = "-"
UNKNOWN = "n/a"
MOST_RATIO = 1000  # the end of an interval beyond it says no more than "anything"
SPEEDUP = "speed-up"
MEMORY = {
    "peak_allocated_mib": "peak MiB",
    "peak_rss_above_mib": "RSS+ MiB",
    "peak_rss_mib": "RSS MiB",
}
MEMORY_MEANS = {
    "peak_allocated_mib": "memory allocated by PyTorch on the fullest device",
    "peak_rss_above_mib": "peak memory of the largest process above what it had at its start",
    "peak_rss_mib": "peak memory of the largest process",
}
HEADINGS = {
    "train_time_s": "time",
    "images_per_s": "images/s",
    "test_accuracy": "accuracy",
    "energy_j": "energy J",
    "data_wait_frac": "input wait",
    **MEMORY,
}


def heading(metric: str) -> str:
    """A column's name as the tables have it."""
    return HEADINGS.get(metric, metric)


def matrices(table: Table) -> list[str]:
    """The figures that stand as parallelism x precision, without those that nobody has."""
    names = ["train_time_s", "images_per_s", table.memory, "energy_j", "test_accuracy"]
    there = [n for n in names if any(cell.figures[n].n for cell in table.cells.values())]
    at = min(2, len(there))
    return [*there[:at], *([SPEEDUP] if table.baseline else []), *there[at:]]


def quantity(value: float, like: float | None = None) -> str:
    """Three digits or more, thousands apart; decimals as `like` has them."""
    size = abs(value if like is None else like)
    if 0 < size < 0.1:
        return f"{value:.2g}"
    return f"{value:,.{0 if size >= 100 else 1 if size >= 10 else 2}f}"


def number(metric: str, value: float, like: float | None = None) -> str:
    """A value as its column's unit, the end of its name, wants it."""
    if metric == SPEEDUP:
        return f"{value:.2f}x"
    if metric.endswith("_s") and not metric.endswith("per_s"):
        return record.duration(value)
    if metric.endswith("_frac"):
        return f"{value:.0%}"
    if metric.endswith("accuracy"):
        return f"{value:.4f}"
    return quantity(value, like)


def figure(metric: str, found: Figure) -> list[str]:
    """`[mean, ± sd]`; without a spread where there is one run."""
    mean, sd = found.mean, found.sd
    if mean is None:
        return [UNKNOWN]
    return [number(metric, mean)] + ([f"± {number(metric, sd, mean)}"] if sd is not None else [])


def estimate(found: Effect) -> list[str]:
    """`[1.85x, (1.80 to 1.90)]` or `[+0.42, (-0.10 to +0.94)]` points of accuracy.

    Without an interval where there is none, or where every run gave the same.
    """
    interval = found.interval
    narrow = interval is not None and 0 < interval.high - interval.low < 0.01

    def told(value: float) -> str:
        if found.scale != RATIO:
            return f"{100 * value:+.2f}"
        if value > MOST_RATIO:
            return f"over {MOST_RATIO:,}"
        return f"{value:.3f}" if narrow else f"{value:.2f}"

    parts = [told(found.estimate) + ("x" if found.scale == RATIO else "")]
    if interval is not None and interval.low < interval.high:
        parts.append(f"({told(interval.low)} to {told(interval.high)})")
    return parts


def verdict(found: Effect) -> list[str]:
    """`[faster]`, or `[not decided,, 2 to 9 more seeds]`."""
    if not found.verdict:
        return ["" if found.n == (0, 0) else "no verdict"]
    within = " within margin" if found.verdict == WORSE and found.within_margin else ""
    told = found.verdict + within
    return [f"{told},", seeds(*found.more_seeds)] if found.more_seeds else [told]


def seeds(low: int | None, high: int | None) -> str:
    """`2 to 9 more seeds`."""
    if low is None:
        return f"over {MOST_SEEDS:,} more seeds"
    if high is None:
        return f"at least {low:,} more seeds"
    if low == high:
        return f"{low:,} more {'seed' if low == 1 else 'seeds'}"
    return f"{low:,} to {high:,} more seeds"


def status(statuses: Counter[str]) -> list[str]:
    """`[FAILED]`, or `[FAILED 2,][PENDING 1]` over several seeds; [] where a run is completed."""
    if not statuses:
        return [NOT_ASKED]
    if statuses[record.COMPLETED]:
        return []
    if len(statuses) == 1:
        return [next(iter(statuses)).upper()]
    known = [name for name in reversed(record.STATUSES) if statuses[name]]
    parts = [f"{name.upper()} {statuses[name]}," for name in known]
    return [*parts[:-1], parts[-1].rstrip(",")]


def worst(statuses: Counter[str]) -> str:
    """The status that stands for all of a cell, which `status` names first; "" without one."""
    return max(statuses, key=record.STATUSES.index, default="")


def label(text: str) -> list[str]:
    """`[ddp]`, or `[ddp, (devices=2)]` where variants are told apart."""
    name, _, variant = text.partition(" (")
    return [name, f"({variant}"] if variant else [name]


def figures(table: Table, cell: Cell) -> dict[str, list[str]]:
    """Heading -> parts of the text, for one cell; a spread is a part of its own."""
    if missing := status(cell.statuses):
        blank = [NOT_ASKED] if not cell.runs else [""]
        heads = ("images/s", "speed-up", MEMORY[table.memory], "accuracy", "input wait")
        return {"time": missing, **dict.fromkeys(heads, blank)}
    names = ("train_time_s", "images_per_s", table.memory, verdicts.ACCURACY)
    time, speed, memory_used, accuracy = (figure(name, cell.figures[name]) for name in names)
    wait = cell.figures["data_wait_frac"].mean
    return {
        "time": time,
        "images/s": speed,
        "speed-up": [UNKNOWN if cell.speedup is None else number(SPEEDUP, cell.speedup)],
        MEMORY[table.memory]: memory_used,
        "accuracy": accuracy,
        "input wait": [UNKNOWN if wait is None else f"{wait:.0%}"],
    }


def devices_heading(table: Table) -> str:
    """What a batch is shared over; where no run got as far as a device, what was asked for."""
    device = table.key.get("device_type") or table.key.get("device") or ""
    return {"cpu": "procs", "cuda": "GPUs"}.get(device, "devices")


@dataclass(frozen=True)
class Grid:
    """A table of text; each entry is a list of parts that may stand on lines of their own."""

    headings: list[str]
    rows: list[list[list[str]]]
    left: int = 2  # how many columns, from the first, are text and not figures
    wide: bool = False  # may need a narrow screen's whole width
    stacked: bool = False  # parts stand on lines of their own on any screen


def cells_grid(table: Table) -> Grid:
    """A row per cell."""
    repeats = table.seeds > 1
    rows = []
    for cell in table.cells.values():
        n = str(cell.runs) if cell.completed == cell.runs else f"{cell.completed}/{cell.runs}"
        row = [label(cell.parallel), label(cell.precision)]
        row += [[n if cell.runs else NOT_ASKED]] if repeats else []
        row.append([str(cell.devices) if cell.devices else NOT_ASKED if not cell.runs else ""])
        row += figures(table, cell).values()
        if table.footnotes:
            row.append([" ".join(str(number) for number in cell.footnotes)])
        rows.append(row)
    headings = ["parallel", "precision", *(["n"] if repeats else []), devices_heading(table)]
    headings += ["time", "images/s", "speed-up", MEMORY[table.memory], "accuracy", "input wait"]
    return Grid([*headings, *(["notes"] if table.footnotes else [])], rows, wide=True)


def verdict_grid(table: Table) -> Grid | None:
    """Each cell against the baseline, with intervals and verdicts; None where no figure is
    repeated.
    """
    if not table.tested:
        return None
    names = ("images_per_s", table.memory, verdicts.ACCURACY)
    rows = []
    for cell in table.cells.values():
        if cell is table.baseline or not cell.effects:
            continue
        found = [cell.effects.get(name) for name in names]
        told = [[" ".join(estimate(e)), *verdict(e)] if e else [UNKNOWN] for e in found]
        rows.append([label(cell.parallel), label(cell.precision), *told])
    heads = ["parallel", "precision", "speed-up", "memory", "accuracy, points"]
    return Grid(heads, rows, stacked=True) if rows else None


def unjudged(table: Table) -> list[str]:
    """Why cells have no verdict although others have: a line per reason."""
    if not table.tested:
        return []
    figures_of: dict[tuple[str, str], list[str]] = {}  # (reason, cell) -> figures
    for cell in table.cells.values():
        for found in cell.effects.values():
            if found.reason and cell is not table.baseline:
                at = (found.reason, f"{cell.parallel} x {cell.precision}")
                figures_of.setdefault(at, []).append(heading(found.figure))
    cells_of: dict[tuple[str, str], list[str]] = {}  # (reason, figures) -> cells
    for (reason, name), names in figures_of.items():
        cells_of.setdefault((reason, ", ".join(names)), []).append(name)
    return [
        f"no verdict on {names}: {reason} ({', '.join(cells)})"
        for (reason, names), cells in cells_of.items()
    ]


def article_grid(table: Table) -> Grid | None:
    """Our time and accuracy beside the article's; None where the settings are not its own."""
    rows = []
    for cell in table.cells.values():
        if cell.published is None:
            continue
        ours = figures(table, cell)
        minutes, accuracy = cell.published.minutes, cell.published.accuracy
        rows.append(
            [
                label(cell.parallel),
                label(cell.precision),
                ours["time"],
                ["not given" if minutes is None else f"{minutes} min"],
                ours["accuracy"],
                ["not given" if accuracy is None else f"{accuracy:.4f}"],
            ]
        )
    headings = ["parallel", "precision", "time", "article's time", "accuracy", "article's accuracy"]
    return Grid(headings, rows) if rows else None


def counted(tables: list[Table] | tuple[Table, ...]) -> str:
    """`8 of 9 cells completed`; with repeats, a cell is one per seed."""
    cells = [cell for table in tables for cell in table.cells.values()]
    asked = sum(cell.runs for cell in cells)
    done = sum(cell.completed for cell in cells)
    return f"{done} of {asked} {'cell' if asked == 1 else 'cells'} completed"


def over(table: Table) -> str | None:
    """What the speed-ups of a table refer to, `none x fp32`."""
    return f"{table.baseline.parallel} x {table.baseline.precision}" if table.baseline else None


def legend(table: Table) -> list[str]:
    """What the headings mean."""
    told = [] if table.unrelated else [f"speed-up: images/s over those of {over(table)}"]
    told.append(f"{MEMORY[table.memory]}: {MEMORY_MEANS[table.memory]}")
    if table.seeds > 1:
        told.append("mean ± sample standard deviation over n seeds")
    told.append("accuracy: on the test images, after the last epoch")
    if any(not cell.runs for cell in table.cells.values()):
        told.append("-: not asked for (no record)")
    return told


def verdict_legend(table: Table) -> list[str]:
    """How the verdicts come about."""
    methods = {e.method for c in table.cells.values() for e in c.effects.values() if e.method}
    inferior = "not inferior: a loss of more than {:.2g} points is excluded (one-sided {:.2g}%)"
    return [
        f"in brackets the 95% interval of each comparison alone ({' and '.join(sorted(methods))})",
        f"verdicts adjusted (Holm) over {table.tested} comparisons, so that a table holds a false "
        f"one in at most {table.alpha:.0%} of all cases",
        inferior.format(100 * table.margin, 100 * table.alpha / 2),
        "more seeds: how many would decide it, if the difference is as large as it looks",
    ]


def remarks(comparison: Comparison, problems: list[str]) -> list[str]:
    """What holds for the whole load."""
    return [f"Warning: {text}" for text in [*comparison.warnings, *problems]]
