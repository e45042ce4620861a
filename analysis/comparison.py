"""What a comparison is: a table per comparison key, a cell per parallelism x precision."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from amp_sweep import record
from analysis import article, key, verdicts
from analysis.statistics import ALPHA, Figure
from analysis.verdicts import Effect

PARALLEL_ORDER = ("none", "dp", "ddp")
PRECISION_ORDER = ("fp32", "autocast", "scaler")

# Figures of a cell. Its memory is one of the last three, by device.
FIGURES = (
    "train_time_s",
    "images_per_s",
    "test_accuracy",
    "data_wait_frac",
    "energy_j",
    "peak_allocated_mib",
    "peak_rss_above_mib",
    "peak_rss_mib",
)
MEMORIES = ("peak_allocated_mib", "peak_rss_above_mib", "peak_rss_mib")


def figure_of(rows: Sequence[dict[str, Any]], name: str) -> Figure:
    """One figure of some runs, without those that do not have it."""
    images = min((row["test_images"] for row in rows if row.get("test_images")), default=None)
    values = tuple((row["seed"], float(row[name])) for row in rows if row.get(name) is not None)
    if name != verdicts.ACCURACY:
        return Figure(values)
    return Figure(values, 1 / images if images else 0.0, most=1.0)


@dataclass(frozen=True)
class Cell:
    """One parallelism x precision of a table."""

    parallel: str
    precision: str
    names: tuple[str, str]  # parallelism and precision without what tells variants apart
    statuses: Counter[str] = field(default_factory=Counter)  # empty: nobody asked for it
    devices: int | None = None  # on a CPU: processes
    figures: dict[str, Figure] = field(default_factory=dict)
    # Against the table's baseline, by figure: `JUDGED` and the table's memory.
    effects: dict[str, Effect] = field(default_factory=dict)
    no_speedup: str = ""  # why there is none
    flaws: tuple[str, ...] = ()  # why its times and speeds get no verdict
    machines: frozenset[str] = frozenset()  # what its completed runs say of their host
    diagnosis: str = ""  # what bounds its speed, "input-bound"; "" where it is not known
    evidence: str = ""  # one sentence on that
    run_dirs: tuple[str, ...] = ()  # of all its runs, by seed
    footnotes: tuple[int, ...] = ()  # numbers from 1, of `Table.footnotes`
    published: article.Published | None = None

    @property
    def runs(self) -> int:
        """How many runs were asked for: one per seed."""
        return self.statuses.total()

    @property
    def completed(self) -> int:
        """How many of them are completed."""
        return self.statuses[record.COMPLETED]

    @property
    def flaw_names(self) -> tuple[str, ...]:
        """`contended`, `paused`, `stitched`, `mixed hardware`: the kinds of its `flaws`."""
        return tuple(dict.fromkeys(flaw.split(":")[0] for flaw in self.flaws))

    @property
    def speedup(self) -> float | None:
        """Ratio of images/s to the baseline's; None where `no_speedup` says why."""
        found = self.effects.get("images_per_s")
        return found.estimate if found else None


@dataclass(frozen=True)
class Table:
    """What may be compared with each other."""

    title: str
    settings: str
    hardware: str
    key: key.Key
    fields: dict[
        str, str
    ]  # model, data, swept axes and whatever tells tables apart, with its value here
    memory: str  # the figure that tells the peak memory
    parallels: tuple[str, ...]
    precisions: tuple[str, ...]
    cells: dict[tuple[str, str], Cell]  # the full product, by parallelism
    footnotes: tuple[str, ...]
    missing: tuple[str, ...]  # a line per run that has ended without completing, or still runs
    baseline: Cell | None = None
    unrelated: str = ""  # why no cell has a speed-up
    margin: float = verdicts.MARGIN  # of "not inferior"
    alpha: float = ALPHA  # chance of any false verdict in this table

    @property
    def tested(self) -> int:
        """How many comparisons the verdicts of this table are adjusted over."""
        found = [e for cell in self.cells.values() for e in cell.effects.values()]
        tested = [e for e in found if e.contrast and not e.contrast.identical]
        return sum(e.figure != verdicts.GATED for e in tested)

    @property
    def seeds(self) -> int:
        """The largest number of runs of one cell."""
        return max((cell.runs for cell in self.cells.values()), default=0)


@dataclass(frozen=True)
class Comparison:
    """Every table of a load, and what differs between its runs."""

    tables: tuple[Table, ...]
    warnings: tuple[str, ...]
