"""The parts of the page: for each, what is trained and which tables show it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from amp_sweep.record import Record
from benchmarks.figures.tables import diagnoses, energies, memories, ordered, work
from benchmarks.figures.training import Size, overhead, train

Part = tuple[str, Callable[[], tuple[list[Record], str]]]


def one_device(size: Size, runs: Path) -> list[Part]:
    """What one device can show, the most telling first."""
    plain: list[Record] = []

    def memory() -> tuple[list[Record], str]:
        axes = ("parallel=none", "precision=fp32,scaler")
        large = f"data.batch_size={size.large_batch}"
        plain.extend(ordered(train(runs, "nine", *size.article, *axes)))
        found = [*plain, *ordered(train(runs, "large", *size.article, *axes, large))]
        return found, memories(found)

    def limits() -> tuple[list[Record], str]:
        written = train(runs, "written", *size.written, "parallel=none", "precision=fp32")
        labelled = [("as written: ", run) for run in written]
        return written, diagnoses([*labelled, *(("resident: ", run) for run in plain)])

    def cost() -> tuple[list[Record], str]:
        return [], _overhead_words(overhead(size.overhead))

    def row(parallel: str) -> Part:
        def cells() -> tuple[list[Record], str]:
            # The cells of the first part are there already, and are not trained again.
            axes = (f"parallel={parallel}", f"precision={size.precisions}")
            done = train(runs, "nine", *size.article, *axes)
            found = ordered([run for run in done if run.cell["parallel"] == parallel])
            labelled = [("", run) for run in found]
            return found, "\n\n".join([energies(found), diagnoses(labelled), work(found)])

        return f"The nine cells, {parallel}: energy, limits, work", cells

    return [
        ("Where the memory went (MiB)", memory),
        ("The article's cell as written, and on a resident input", limits),
        ("What measuring costs", cost),
        *map(row, ("none", "dp", "ddp")),
    ]


def _overhead_words(found: dict[str, Any]) -> str:
    if not found:
        return "Not measured: the benchmark failed."
    return (
        f"All measuring on against all off, interleaved: {found['ratio']:.4f} (95% interval "
        f"{found['low']:.4f} to {found['high']:.4f}; n = {found['pairs']} pairs of windows of "
        f"{found['steps']} steps of {found['step_ms']:.2f} ms; {found['device']})."
    )


def two_devices(size: Size, runs: Path) -> list[Part]:
    """What only two devices show, in few steps each."""
    few = ("parallel.devices=2", *size.few)

    def ddp() -> tuple[list[Record], str]:
        found = train(runs, "two", *size.article, *few, "parallel=ddp", "precision=fp32,scaler")
        return ordered(found), _all_of(ordered(found))

    def dp() -> tuple[list[Record], str]:
        found = train(runs, "two", *size.article, *few, "parallel=dp", "precision=fp32,scaler")
        return ordered(found), _all_of(ordered(found))

    def gloo() -> tuple[list[Record], str]:
        axes = ("parallel=ddp", "precision=fp32", "parallel.backend=gloo")
        found = train(runs, "gloo", *size.article, *few, *axes)
        return found, _all_of(found)

    return [("ddp over NCCL", ddp), ("dp", dp), ("ddp over gloo", gloo)]


def _all_of(found: Sequence[Record]) -> str:
    labelled = [("", run) for run in found]
    return "\n\n".join([memories(found), diagnoses(labelled), work(found), energies(found)])
