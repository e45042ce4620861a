"""What a reader must know about a cell's figures, in words."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from amp_sweep import record
from analysis import key
from analysis.values import items

Row = dict[str, Any]

# Above this share of waiting the input decides the speed, not the precision.
INPUT_BOUND_FRAC = 0.2
NO_EFFECT = "no effect here:"


def of_cell(rows: Sequence[Row], table: Sequence[Row]) -> list[str]:
    """Footnotes of one cell's runs; `table` holds every run of its table.

    They hold no figures of the cell, so that cells can share them.
    """
    done = [row for row in rows if row["status"] == record.COMPLETED]
    others = [row for row in table if row["status"] == record.COMPLETED]
    found = [text for row in done for text in _of_run(row)]
    if done and any(row.get("config.experiment") == key.AS_WRITTEN for row in done):
        loading = {tuple(row.get(f"config.{name}") for name in key.DETERMINED) for row in others}
        if len(loading) > 1:
            found.append(_as_written(done[0]))
    if len({row["cudnn_benchmark"] for row in others} - {None}) > 1:
        off = sorted({row["parallel"] or "?" for row in done if row["cudnn_benchmark"] is False})
        found.extend(f"cudnn benchmark off for {parallel}" for parallel in off)
    batches = {row["global_batch"] for row in others} - {None}
    if len(batches) > 1:
        found.extend(
            f"global batch {row['global_batch']}: not the same in all cells"
            for row in done
            if row["global_batch"] is not None
        )
    return list(dict.fromkeys(found))


def _of_run(row: Row) -> list[str]:
    """Footnotes that one completed run has on its own."""
    found = [note for note in items(row["notes"]) if note.startswith(NO_EFFECT)]
    if not found and row["parallel"] == "dp" and row["replicas"] == 1:
        found.append(f"{NO_EFFECT} dp without two devices is a plain module")
    if not found and row["parallel"] == "ddp" and row["world_size"] == 1:
        found.append(f"{NO_EFFECT} ddp at world size 1")
    if (row["data_wait_frac"] or 0.0) > INPUT_BOUND_FRAC:
        found.append(
            f"input-bound: the device waits for its input more than {INPUT_BOUND_FRAC:.0%} of "
            "the time, which hides what parallelism and precision change"
        )
    if row["stitched"]:
        found.append("stitched: interrupted and resumed, so its times are those of several parts")
    if _noted(row, "paused"):
        found.append("paused: stood still for a while as it trained, and its times count that")
    if _contended(row):
        found.append("contended: other processes used the device during the run")
    if row["native_bf16"] is False and row["autocast_dtype"] == "bfloat16":
        found.append("bfloat16 is emulated on this device, and slow")
    return found


def _as_written(row: Row) -> str:
    workers = row.get("config.data.workers")
    shuffled = "shuffled" if row.get("config.data.shuffle") == "true" else "not shuffled"
    return (
        f"input as the article has it for {row['parallel']}: "
        f"loader workers {workers}, {shuffled}; other cells differ"
    )


def of_missing(row: Row) -> str:
    """Why a run is not completed: its error, its note, or how far it is."""
    if row["status"] == record.RUNNING:
        return f"{row['epochs_done']} of {row.get('config.epochs') or '?'} epochs done"
    message = row["error_message"] or ""
    kind = "" if row["status"] == record.INVALID else row["error_type"] or ""
    text = f"{kind}: {message}" if kind and message else kind or message
    return text if len(text) <= 200 else text[:197] + "..."


def timing_flaws(done: Sequence[Row]) -> tuple[str, ...]:
    """Why the times of a cell's completed runs decide nothing, in words."""
    found = []
    if stitched := sum(row["stitched"] is True for row in done):
        found.append(f"stitched: {_some(stitched, done)} interrupted and resumed")
    if paused := sum(_noted(row, "paused") for row in done):
        found.append(f"paused: {_some(paused, done)} halted for a while")
    if busy := sum(_contended(row) for row in done):
        found.append(f"contended: {_some(busy, done)} disturbed by other processes")
    if any(len(set(items(row["device_names"]))) > 1 for row in done):
        found.append("mixed hardware: devices of different kinds in one run")
    if len(hosts := machines(done)) > 1:
        found.append(f"mixed hardware: {' and '.join(sorted(hosts))}")
    return tuple(found)


def machines(done: Sequence[Row]) -> frozenset[str]:
    """What the hosts of completed runs are, as far as it changes how fast they are."""
    return frozenset(
        f"{row['cpu']}, {row['cores']} cores" if row["cores"] else str(row["cpu"])
        for row in done
        if row["cpu"]
    )


def diagnosis(done: Sequence[Row]) -> tuple[str, str]:
    """What bounds the speed of a cell and the evidence, as most of its runs have it."""
    found = [row for row in done if row.get("diagnosis")]
    if found:
        kind = Counter(row["diagnosis"] for row in found).most_common(1)[0][0]
        one = next(row for row in found if row["diagnosis"] == kind)
        return str(kind), str(one.get("diagnosis_evidence") or "")
    waits = [row["data_wait_frac"] for row in done if row["data_wait_frac"] is not None]
    share = sum(waits) / len(waits) if waits else 0.0
    if share > INPUT_BOUND_FRAC:
        waited = f"the device waits for its input {share:.0%} of the time"
        return "input-bound", f"{waited}, whatever the precision"
    return "", ""


def _contended(row: Row) -> bool:
    # By a note for an earlier segment. Why it is not known is a note that begins alike.
    return bool(row["contended"]) or _noted(row, "contended: another", "contended: other")


def _noted(row: Row, *begins: str) -> bool:
    return any(note.startswith(begins) for note in items(row["notes"]))


def _some(count: int, of: Sequence[Row]) -> str:
    return f"{count} of {len(of)} runs were" if len(of) > 1 else "its run was"
