"""`python -m analysis outputs/NAME`: print and write the tables of one sweep or several."""

import argparse
import io
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from amp_sweep import record
from analysis import report, terminal
from analysis.compare import UnknownBaseline, compare
from analysis.load import load

# Folder of the tables inside a sweep directory.
TABLES_NAME = "tables"

EXPECTED = (
    "Expected: the directory of a sweep (outputs/NAME), which holds a directory per run "
    "with a record.json in it."
)


def _pair(text: str) -> tuple[str, str]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts):
        raise argparse.ArgumentTypeError("must be PARALLEL,PRECISION, for example none,fp32")
    return parts[0], parts[1]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis", description="Compare the runs of sweeps: tables of their cells."
    )
    parser.add_argument(
        "dirs", nargs="+", type=Path, metavar="DIR", help="a sweep's directory, or a run's"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where the files go (default: <first DIR>/tables)"
    )
    parser.add_argument(
        "--baseline",
        type=_pair,
        metavar="PARALLEL,PRECISION",
        help="what speed-ups refer to (default: none,fp32)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 when tables were printed and written, 1 when not, 2 for wrong usage."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    frame, problems = load(*arguments.dirs)
    if frame.empty:
        print("\n".join([*problems, EXPECTED]), file=sys.stderr)
        return 1
    try:
        comparison = compare(frame, arguments.baseline)
    except UnknownBaseline as error:
        parser.error(f"argument --baseline: {error}")
    first = next(directory for directory in arguments.dirs if record.find(directory))
    out = arguments.out or first / TABLES_NAME
    given = sys.argv[1:] if argv is None else argv
    command = shlex.join(["python", "-P", "-m", "analysis", *given])
    # Files first: a closed pipe (`| head`) must not cost them.
    failure = None
    try:
        written = report.write(out, frame, comparison, problems, command)
    except OSError as error:
        failure = f"the tables could not be written to {out}: {error.strerror or error}"
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that has no "±"
    screen = terminal.console()
    report.show(comparison, problems, screen)
    if failure is not None:
        print(failure, file=sys.stderr)
        return 1
    screen.print()
    names = ", ".join(path.name for path in written)
    screen.print(f"Written to {out}: {names}", markup=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
