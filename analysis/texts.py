"""Figures as people read them, and the rows of text that every output shares."""

from collections.abc import Callable
from dataclasses import dataclass

from amp_sweep import record
from analysis.compare import Cell, Comparison, Figure, Table

NOT_ASKED = "-"
UNKNOWN = "n/a"
MEMORY = {"peak_allocated_mib": "peak MiB", "peak_rss_mib": "RSS MiB"}

# Headings of the figures that also stand as a compact matrix.
MATRICES = ("time", "speed-up", "accuracy")


def matrices(table: Table) -> list[str]:
    """The figures that this table has a matrix of."""
    return [name for name in MATRICES if table.baseline or name != "speed-up"]


def quantity(value: float, like: float | None = None) -> str:
    """Three digits or more, thousands apart; decimals as `like` has them."""
    size = abs(value if like is None else like)
    return f"{value:,.{0 if size >= 100 else 1 if size >= 10 else 2}f}"


def _figure(figure: Figure, mean: Callable[[float], str], sd: Callable[[float], str]) -> list[str]:
    """`[mean, ± sd]`; without a spread where there is one run."""
    if figure.mean is None:
        return [UNKNOWN]
    return [mean(figure.mean)] + ([f"± {sd(figure.sd)}"] if figure.sd is not None else [])


def status(cell: Cell) -> list[str]:
    """`[FAILED]`, or `[FAILED 2,][PENDING 1]` over several seeds; [] for a completed cell."""
    if not cell.runs:
        return [NOT_ASKED]
    if cell.completed:
        return []
    if len(cell.statuses) == 1:
        return [next(iter(cell.statuses)).upper()]
    known = [name for name in reversed(record.STATUSES) if cell.statuses[name]]
    parts = [f"{name.upper()} {cell.statuses[name]}," for name in known]
    return [*parts[:-1], parts[-1].rstrip(",")]


def _label(label: str) -> list[str]:
    """`[ddp]`, or `[ddp, (devices=2)]` where variants are told apart."""
    name, _, variant = label.partition(" (")
    return [name, f"({variant}"] if variant else [name]


def figures(table: Table, cell: Cell) -> dict[str, list[str]]:
    """Heading -> parts of the text, for one cell; a spread is a part of its own."""
    missing = status(cell)
    if missing:
        blank = [NOT_ASKED] if not cell.runs else [""]
        names = ("images/s", "speed-up", MEMORY[table.memory], "accuracy", "input wait")
        return {"time": missing, **dict.fromkeys(names, blank)}
    values = cell.figures
    speed = values["images_per_s"]
    memory = values[table.memory]
    wait = values["data_wait_frac"].mean
    return {
        "time": _figure(values["train_time_s"], record.duration, record.duration),
        "images/s": _figure(speed, quantity, lambda sd: quantity(sd, speed.mean)),
        "speed-up": [UNKNOWN if cell.speedup is None else f"{cell.speedup:.2f}x"],
        MEMORY[table.memory]: _figure(memory, quantity, lambda sd: quantity(sd, memory.mean)),
        "accuracy": _figure(values["test_accuracy"], "{:.4f}".format, "{:.4f}".format),
        "input wait": [UNKNOWN if wait is None else f"{wait:.0%}"],
    }


def devices_heading(table: Table) -> str:
    """What a batch is shared over."""
    return "procs" if table.key.get("device_type") == "cpu" else "GPUs"


@dataclass(frozen=True)
class Grid:
    """A table of text; each entry is a list of parts that may stand on lines of their own."""

    headings: list[str]
    rows: list[list[list[str]]]
    left: int = 2  # how many columns, from the first, are text and not figures
    wide: bool = False  # may need a narrow screen's whole width


def cells_grid(table: Table) -> Grid:
    """A row per cell."""
    repeats = table.seeds > 1
    rows = []
    for cell in table.cells.values():
        n = str(cell.runs) if cell.completed == cell.runs else f"{cell.completed}/{cell.runs}"
        row = [_label(cell.parallel), _label(cell.precision)]
        row += [[n if cell.runs else NOT_ASKED]] if repeats else []
        row.append([str(cell.devices) if cell.devices else NOT_ASKED if not cell.runs else ""])
        row += figures(table, cell).values()
        if table.footnotes:
            row.append([" ".join(str(number) for number in cell.footnotes)])
        rows.append(row)
    headings = ["parallel", "precision", *(["n"] if repeats else []), devices_heading(table)]
    headings += ["time", "images/s", "speed-up", MEMORY[table.memory], "accuracy", "input wait"]
    return Grid([*headings, *(["notes"] if table.footnotes else [])], rows, wide=True)


def matrix_grid(table: Table, name: str) -> Grid:
    """Parallelism by precision, with one figure."""
    rows = []
    for p in table.parallels:
        found = [table.cells[p, q] for q in table.precisions]
        rows.append([_label(p), *(status(cell) or figures(table, cell)[name] for cell in found)])
    return Grid([name, *table.precisions], rows, left=1)


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
                _label(cell.parallel),
                _label(cell.precision),
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
    told.append(
        "peak MiB: memory allocated by PyTorch on the fullest device"
        if table.memory == "peak_allocated_mib"
        else "RSS MiB: peak memory of the largest process"
    )
    if table.seeds > 1:
        told.append("mean ± sample standard deviation over n seeds")
    told.append("accuracy: on the test images, after the last epoch")
    if any(not cell.runs for cell in table.cells.values()):
        told.append("-: not asked for (no record)")
    return told


def remarks(comparison: Comparison, problems: list[str]) -> list[str]:
    """What holds for the whole load."""
    return [f"Warning: {text}" for text in [*comparison.warnings, *problems]]
