"""What tells the runs of a sweep apart on the screen. No torch here."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from amp_sweep import record

# Settings that a run's label tells anyway.
IN_LABEL = frozenset({"parallel.name", "precision.name", "seed"})


def told_apart(runs: Sequence[tuple[Sequence[str], dict[str, Any]]]) -> list[str]:
    """For each run (its overrides, its config) the settings, beside parallelism, precision and
    seed, in which the runs differ: `model=alexnet, optimizer.lr=0.01`; empty where none do.

    A setting has the value that its run was given, a group the word that was typed. Runs that are
    alike in both are told apart by what else differs in their configs.
    """
    flats = [record.flatten(config) for _, config in runs]

    def settings(name: str) -> list[str] | None:
        if not any(name in flat for flat in flats):
            return None
        return [_text(flat.get(name)) for flat in flats]

    told: list[dict[str, str]] = [{} for _ in runs]
    for axis, typed in _typed([overrides for overrides, _ in runs]).items():
        # What `launch` or `track` say changes no result.
        changes = axis == "experiment" or axis.split(".")[0] not in record.NOT_IDENTITY
        if axis in IN_LABEL or not changes:
            continue
        had = settings(f"{axis}.name") or ["null"] * len(runs)
        known = [text or name for text, name in zip(typed, had, strict=True)]
        values = (settings(axis) if axis != "experiment" else None) or known
        if len(set(values)) == 1:
            continue
        # A group file may have another name than what it holds: `ddp_article` is ddp.
        label = had if f"{axis}.name" in IN_LABEL else [""] * len(runs)
        namesakes = defaultdict(set)
        for value, name in zip(values, label, strict=True):
            namesakes[name].add(value)
        for one, value, name in zip(told, values, label, strict=True):
            if len(namesakes[name]) > 1:
                one[axis] = value
    _tell_namesakes(told, flats)
    return [", ".join(f"{name}={value}" for name, value in one.items()) for one in told]


def _typed(overrides: Sequence[Sequence[str]]) -> dict[str, list[str | None]]:
    """By the name of each override what the runs were given, None where nothing."""
    split = [
        {
            name.strip(): value.strip()
            for name, equals, value in (str(one).lstrip("+").partition("=") for one in found)
            if equals
        }
        for found in overrides
    ]
    names = dict.fromkeys(name for run in split for name in run)
    return {name: [run.get(name) for run in split] for name in names}


def _tell_namesakes(told: list[dict[str, str]], flats: Sequence[dict[str, Any]]) -> None:
    """Add to `told` what differs in the configs of runs that would still have the same label."""
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, flat in enumerate(flats):
        label = (*(_text(flat.get(name)) for name in sorted(IN_LABEL)), *told[place].values())
        alike[label].append(place)
    for places in alike.values():
        if len(places) == 1:
            continue
        known = [{n: _text(v) for n, v in record.identity(flats[p]).items()} for p in places]
        counts = Counter(item for one in known for item in one.items())
        names = {name for (name, _), count in counts.items() if count < len(places)}
        for place in places:
            told[place].update({name: _text(flats[place].get(name)) for name in sorted(names)})


def _text(value: Any) -> str:
    """A setting as a person types it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
