"""Which runs may stand in one pivot: those that differ in nothing but what its axes tell."""

from collections.abc import Sequence

from analysis import axes, key
from analysis.comparison import Cell

At = tuple[str, str]  # a run's place: row, column


def untold(
    cells: Sequence[Cell], keys: Sequence[key.Key], at: Sequence[At], shown: At
) -> list[key.Key]:
    """Of each run what its pivot's runs must have in common: all that the axes `shown` don't tell.

    `cells`, `keys` (what runs are compared by) and `at` have an item for each run.
    """
    variants = [(cell.parallel, cell.precision) for cell in cells]
    names = [_names(cell, shown) for cell in cells]
    # Variants go by their plain names where the axes and the keys tell them apart all the same.
    places = [
        (*name, *where, *found.items()) for name, where, found in zip(names, at, keys, strict=True)
    ]
    apart = len(set(places)) == len(set(zip(places, variants, strict=True)))
    whole: list[key.Key] = [
        {"parallel": parallel, "precision": precision, **found}
        for (parallel, precision), found in zip(names if apart else variants, keys, strict=True)
    ]
    told = _told(whole, at, shown)
    return [{name: value for name, value in each.items() if name not in told} for each in whole]


def _names(cell: Cell, shown: At) -> At:
    """A cell's parallelism and precision, without what an axis may say of them."""
    devices = any(axis.startswith("parallel.") or axis == "devices" for axis in shown)
    precision = any(axis.startswith("precision.") for axis in shown)
    return (
        cell.names[0] if devices else cell.parallel,
        cell.names[1] if precision else cell.precision,
    )


def _told(keys: Sequence[key.Key], at: Sequence[At], shown: At) -> set[str]:
    """The fields that an axis stands for and that have one value at each value of the axis."""
    told: set[str] = set()
    for place, axis in enumerate(shown):
        for name in {name for whole in keys for name in whole if axes.explains(axis, name)}:
            pairs = {(where[place], whole.get(name)) for where, whole in zip(at, keys, strict=True)}
            if name in key.HARDWARE:  # runs that never started may not know theirs
                pairs = {pair for pair in pairs if pair[1] is not None}
            if len(pairs) == len({value for value, _ in pairs}):
                told.add(name)
    return told
