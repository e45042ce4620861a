"""A row per cell with the parts of a whole: what the memory is for, where the time goes."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis import texts
from analysis.comparison import Table
from analysis.pictures import style
from analysis.pictures.cells import Drawn, disturbed, per_device
from analysis.pictures.rows import BAR, ROW, WIDE, rows, write_at_ends

# The parts of a device's memory, from what training always needs to what nobody asked for.
MEMORY = {
    "memory_parameters_mib": "parameters",
    "memory_gradients_mib": "gradients",
    "memory_optimizer_mib": "optimizer state",
    "memory_activations_mib": "activations",
    "memory_input_mib": "input",
    "memory_workspace_mib": "workspace",
    "memory_unattributed_mib": "not attributed",
}
PEAK = "memory_probe_peak_mib"

# The parts of the training time.
TIME = {
    "share_compute": "compute",
    "share_memory": "memory traffic",
    "share_communication": "communication",
    "share_gaps": "gaps between kernels",
    "share_input": "waiting for input",
}

Stack = dict[str, float]


def memory(table: Table, cells: Sequence[Drawn], footer: str) -> Figure | None:
    """The parts of the fullest device's memory, means over seeds; None where none was recorded."""
    stacks = [_fullest(drawn) for drawn in cells]
    peaks = [drawn.mean(PEAK) for drawn in cells]
    told = "Shorter is better. The device that needs most; means over seeds."
    if any(peaks):
        told += " Line and figure: the peak of the same step."
    totals = [
        max(sum(stack.values()), peak or 0.0) for stack, peak in zip(stacks, peaks, strict=True)
    ]
    words = [texts.quantity(total) if total else "" for total in totals]
    title = "memory by what it is for, MiB"
    made = _stacked(table, cells, MEMORY, stacks, words, (title, told, footer), ends=totals)
    if made is None:
        return None
    axes, places = made.axes[0], made.axes[0].get_yticks()
    for peak, y in zip(peaks, places, strict=True):
        if peak:
            axes.plot([peak, peak], [y - ROW * 0.45, y + ROW * 0.45], color=style.INK, zorder=3)
    return made


def time(table: Table, cells: Sequence[Drawn], footer: str) -> Figure | None:
    """The shares of the training time, means over seeds; None where none was recorded."""
    stacks = [
        {part: share for part in TIME if (share := drawn.mean(part)) is not None} for drawn in cells
    ]
    # A share alone, of the input say, is no picture of the whole.
    stacks = [stack if "share_compute" in stack else {} for stack in stacks]
    told = "Shares of the training time; means over seeds. At the bar: what bounds the cell."
    told = " ".join([told, *disturbed(cells)])
    words = [
        "   ".join(filter(None, [drawn.cell.diagnosis, *drawn.cell.flaw_names])) for drawn in cells
    ]
    figure = _stacked(table, cells, TIME, stacks, words, ("where the time goes", told, footer))
    if figure is not None:
        axis = figure.axes[0].xaxis
        axis.set_ticks([0, 0.25, 0.5, 0.75, 1], labels=["0%", "25%", "50%", "75%", "100%"])
    return figure


def _stacked(
    table: Table,
    cells: Sequence[Drawn],
    parts: dict[str, str],
    stacks: Sequence[Stack],
    words: Sequence[str],
    told: tuple[str, str, str],
    ends: Sequence[float] | None = None,
) -> Figure | None:
    """Bars of `parts` (column -> name), with `words` at their ends."""
    used = [part for part in parts if any(stack.get(part) for stack in stacks)]
    if not used:
        return None
    names = [parts[part] for part in used]
    figure, axes, places = rows(table, cells, *told, legend=names)
    shades = dict(zip(parts, style.parts(len(parts)), strict=True))
    hatches = dict(zip(parts, style.HATCHES, strict=False))
    labels = []
    for index, (drawn, y) in enumerate(zip(cells, places, strict=True)):
        end = 0.0
        for part in used:
            # A difference of two measurements may be below zero.
            if (value := stacks[index].get(part, 0.0)) > 0:
                look = {"color": shades[part], "hatch": hatches[part], "edgecolor": style.PAPER}
                axes.barh(y, value, BAR, left=end, linewidth=0, **look)
                axes.barh(y, value, BAR, left=end, linewidth=0.6, fill=False, ec=style.MUTED)
                end += value
        end = max(end, ends[index]) if ends else end
        labels.append((y, end, words[index] or drawn.state or ("" if end else texts.UNKNOWN)))
    write_at_ends(axes, labels, max(end for _, end, _ in labels))
    handles = [
        Patch(facecolor=shades[part], hatch=hatches[part], edgecolor=style.PAPER, label=parts[part])
        for part in used
    ]
    above = axes.get_position().y1 * figure.get_size_inches()[1] + 0.06
    style.legend(figure, handles, names, WIDE, above)
    return figure


def _fullest(drawn: Drawn) -> Stack:
    """MiB of each part on the fullest device of each completed run, then the mean over runs."""
    fullest: list[Stack] = []
    for row in drawn.done:
        found = {part: per_device(row, part) for part in MEMORY}
        devices = max(len(values) for values in found.values())
        per = [
            {part: values[i] for part, values in found.items() if i < len(values)}
            for i in range(devices)
        ]
        if per:
            fullest.append(max(per, key=lambda one: sum(one.values())))
    return {
        part: sum(one.get(part, 0.0) for one in fullest) / len(fullest)
        for part in MEMORY
        if fullest
    }
