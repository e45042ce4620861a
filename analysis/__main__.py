"""`python -m analysis outputs/NAME`: what to choose, and the tables of one sweep or several."""

from analysis import ctrl_c

if __name__ == "__main__":
    ctrl_c.ends_this_process()  # before the imports, which take long

import argparse
import io
import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from amp_sweep import record
from analysis import answer as answers
from analysis import axes, compare, gate, options, pivot, report, terminal
from analysis.comparison import Comparison
from analysis.frame import load

EXPECTED = (
    "Expected: the directory of a sweep (outputs/NAME), which holds a directory per run "
    "with a record.json in it."
)

NOT_WRITTEN = "Nothing written: what --where leaves out would be missing; give --out DIR"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 when tables were printed and written, 1 when not, 2 for wrong usage."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed (`>&-`): the files are written all the same
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    try:
        ctrl_c.interrupts()
        return _main(argv)
    except KeyboardInterrupt:  # each file is written as a whole or not at all
        print("interrupted", file=sys.stderr)
        return ctrl_c.EXIT_CODE


def _main(argv: Sequence[str] | None) -> int:
    parser = options.parser()
    arguments = parser.parse_args(argv)
    if arguments.tolerance and not arguments.check:
        parser.error("argument --tolerance: needs --check")
    try:
        report.check_formats(arguments.format)
    except report.MissingPackage as error:
        parser.error(f"argument --format: {error}")
    frame, problems = load(*arguments.dirs)
    if frame.empty:
        print("\n".join([*problems, EXPECTED]), file=sys.stderr)
        return 2 if arguments.check else 1
    try:
        frame = axes.where(frame, _merged(arguments.where))
    except ValueError as error:
        parser.error(f"argument --where: {error}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that has no "±"
    screen = terminal.console()
    if arguments.check:
        return _check(parser, arguments, frame, problems, screen)
    given = sys.argv[1:] if argv is None else argv
    command = shlex.join(["python", "-P", "-m", "analysis", *given])
    return _tables(parser, arguments, frame, problems, screen, command)


def _tables(
    parser: argparse.ArgumentParser,
    arguments: argparse.Namespace,
    frame: pd.DataFrame,
    problems: Sequence[str],
    screen: Console,
    command: str,
) -> int:
    """Write and print the usual tables, or those of --rows, --cols and --metric."""
    try:
        comparison = _compared(arguments, frame)
    except compare.UnknownBaseline as error:
        parser.error(f"argument --baseline: {error}")
    try:
        pivots = _pivots(arguments, frame, comparison)
    except ValueError as error:
        parser.error(f"argument --rows, --cols or --metric: {error}")
    answer = answers.answer(comparison)
    out = _out(arguments)
    written: list[Path] = []
    failure = ""
    # Files first: a closed pipe (`| head`) must not cost them, nor the pictures after it.
    try:
        if pivots and out:
            written = report.write_pivots(out, pivots, command, arguments.format)
        elif out:
            told = (comparison, answer, problems, command, arguments.format)
            written = report.write(out, frame, *told)
    except OSError as error:
        failure = f"the tables could not be written to {out}: {error.strerror or error}"
    try:
        if pivots:
            terminal.show_pivots(pivots, comparison, screen)
            terminal.show_remarks(comparison, problems, screen)
        else:
            terminal.show(comparison, answer, problems, screen)
        sys.stdout.flush()
    finally:
        if out and not (failure or pivots or arguments.no_pictures):
            # Only here: matplotlib takes longer to import than the tables take to print.
            from analysis import html, pictures

            try:
                drawn = pictures.draw(comparison, frame)
                made = html.write(comparison, answer, frame, problems, command, out, drawn)
                written += [made, *pictures.save(drawn, out)]
            except OSError as error:
                failure = f"the pictures could not be written to {out}: {error.strerror or error}"
    if failure:
        print(failure, file=sys.stderr)
        return 1
    screen.print()
    where = f"Written to {out}: {_names(written, out)}" if out else NOT_WRITTEN
    screen.print(where, markup=False, soft_wrap=True)
    return 0


def _names(written: Sequence[Path], out: Path) -> str:
    """The files in `out`; of a folder in it, how many."""
    places = Counter(str(path.relative_to(out).parent) for path in written)
    names = [path.name for path in written if path.parent == out]
    names += [f"{place}/ ({n} files)" for place, n in places.items() if place != "."]
    return ", ".join(names)


def _out(arguments: argparse.Namespace) -> Path | None:
    """Where the files go; None for a part of the runs, which must not replace all of them."""
    if arguments.out:
        return Path(arguments.out)
    if arguments.where:
        return None
    return Path(next(each for each in arguments.dirs if record.find(each))) / record.TABLES_NAME


def _merged(filters: Sequence[tuple[str, list[str]]]) -> Mapping[str, list[str]]:
    """Filters on the same column together allow the values of all of them."""
    merged: dict[str, list[str]] = {}
    for name, values in filters:
        merged.setdefault(name, []).extend(values)
    return merged


def _compared(arguments: argparse.Namespace, frame: pd.DataFrame) -> Comparison:
    return compare.compare(
        frame, arguments.baseline, margin=arguments.margin, alpha=arguments.alpha
    )


def _pivots(
    arguments: argparse.Namespace, frame: pd.DataFrame, comparison: Comparison
) -> list[pivot.Pivot]:
    """The tables asked for by --rows, --cols and --metric; [] where none of them is given.

    Raises ValueError for what is no column or no figure.
    """
    if not (arguments.rows or arguments.cols or arguments.metric):
        return []
    both = arguments.rows or "parallel", arguments.cols or "precision"
    metrics = arguments.metric or ["images/s"]
    if axes.SWEEP not in both:
        found = (pivot.of_frame(frame, comparison, *both, metric) for metric in metrics)
        return [each for pivots in found for each in pivots]
    wanted = _merged(arguments.where)
    frames = (load(each)[0] for each in arguments.dirs if record.find(each))
    kept = [axes.where(each, wanted) for each in frames]
    sweeps = [(each, _compared(arguments, each)) for each in kept]
    found = (pivot.of_sweeps(sweeps, *both, metric) for metric in metrics)
    return [each for pivots in found for each in pivots]


def _check(
    parser: argparse.ArgumentParser,
    arguments: argparse.Namespace,
    frame: pd.DataFrame,
    problems: Sequence[str],
    screen: Console,
) -> int:
    """The gate: print every check; 1 when something got worse, 2 when nothing was compared."""
    try:
        before = axes.where(gate.read(arguments.check), _merged(arguments.where))
    except ValueError as error:
        parser.error(f"argument --check: {error}")
    allowed = gate.Tolerances(**dict(arguments.tolerance))
    checks = gate.check(frame, before, allowed, arguments.alpha)
    terminal.show_grid(gate.grid(checks), screen)
    if told := gate.legend(checks, arguments.alpha):
        screen.print(f"\n{'; '.join(told)}", markup=False, style="dim")
    for problem in problems:
        screen.print(f"Warning: {problem}", markup=False, soft_wrap=True)
    worse = sum(check.verdict == gate.WORSE for check in checks)
    screen.print(f"\n{worse} of {gate.compared(checks)} checks got worse", markup=False)
    for figure in gate.unseen(checks):
        screen.print(f"{figure}: compared in no cell", markup=False)
    if not gate.compared(checks):
        print(f"no cell can be compared with {arguments.check}", file=sys.stderr)
        return 2
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
