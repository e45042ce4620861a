"""The options of `python -m analysis`."""

import argparse
from pathlib import Path

from analysis import gate, report, verdicts
from analysis.statistics import ALPHA

EXAMPLES = """\
examples:
  %(prog)s outputs/matrix
  %(prog)s outputs/a outputs/b --baseline ddp,fp32
  %(prog)s outputs/matrix --where precision=fp32,autocast --metric energy --metric mfu
  %(prog)s outputs/batches --rows data.batch_size --cols precision --metric images/s
  %(prog)s outputs/before outputs/after --cols sweep --rows precision --metric speed-up
  %(prog)s outputs/matrix --check main/cells.csv --tolerance speed=0.03 --tolerance accuracy=0.01

exit status: 0 tables written (with --check: nothing got worse), 1 not (something got worse),
2 wrong usage (with --check: nothing can be compared). Everything else: docs/analysis.md
"""


def _pair(text: str) -> tuple[str, str]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts):
        raise argparse.ArgumentTypeError("must be PARALLEL,PRECISION, for example none,fp32")
    return parts[0], parts[1]


def _filter(text: str) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=")
    if not (name.strip() and equals and values.strip()):
        raise argparse.ArgumentTypeError("must be COLUMN=VALUE[,VALUE], as in precision=fp32,bf16")
    return name.strip(), [value.strip() for value in values.split(",")]


def _tolerance(text: str) -> tuple[str, float]:
    name, _, value = (part.strip() for part in text.partition("="))
    known = gate.Tolerances.__dataclass_fields__
    try:
        share = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if name not in known or not 0 <= share < 1:
        raise argparse.ArgumentTypeError(
            f"must be one of {', '.join(known)} and a share: speed=0.05 or speed=5%"
        )
    return name, share


def _formats(text: str) -> list[str]:
    found = [part.strip() for part in text.split(",") if part.strip()]
    if unknown := [name for name in found if name not in report.FORMATS]:
        raise argparse.ArgumentTypeError(
            f"no format {unknown[0]!r}; there are: {', '.join(report.FORMATS)}"
        )
    return found


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError("must be a share between 0 and 1, as in 0.005")
    return value


def parser() -> argparse.ArgumentParser:
    """The parser; its `where` and `tolerance` are lists of pairs."""
    made = argparse.ArgumentParser(
        prog="python -P -m analysis",
        description="Compare the runs of sweeps: what to choose, and tables of their cells.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "dirs", nargs="+", type=Path, metavar="DIR", help="a sweep's directory, or a run's"
    )
    which = made.add_argument_group("what is compared")
    which.add_argument(
        "--baseline",
        type=_pair,
        metavar="PARALLEL,PRECISION",
        help="what speed-ups and verdicts refer to (default: none,fp32)",
    )
    which.add_argument(
        "--where",
        type=_filter,
        action="append",
        default=[],
        metavar="COLUMN=VALUE[,VALUE]",
        help="only these runs; any column of cells.csv or setting (may be given several times)",
    )
    which.add_argument(
        "--margin",
        type=_share,
        default=verdicts.MARGIN,
        metavar="SHARE",
        help="loss of accuracy that still counts as not inferior (default: %(default)s, "
        "half a point)",
    )
    which.add_argument(
        "--alpha",
        type=_share,
        default=ALPHA,
        metavar="SHARE",
        help="chance of any false verdict in a table (default: %(default)s)",
    )
    pivots = made.add_argument_group("tables of your own, printed instead of the usual ones")
    pivots.add_argument(
        "--metric",
        action="append",
        metavar="COLUMN",
        help="a figure: time, images/s, speed-up, memory, energy, accuracy or any column with "
        "numbers (may be given several times; default: images/s)",
    )
    pivots.add_argument(
        "--rows",
        metavar="COLUMN",
        help="axis of the rows: any column of cells.csv, any setting, or sweep for the directories "
        "given (default: parallel)",
    )
    pivots.add_argument("--cols", metavar="COLUMN", help="axis of the columns (default: precision)")
    files = made.add_argument_group("files")
    files.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where they go (default: <first DIR>/tables; with "
        "--where nothing is written without it)",
    )
    files.add_argument(
        "--format",
        type=_formats,
        default=list(report.DEFAULT_FORMATS),
        metavar="FORMAT[,FORMAT]",
        help=f"of the tables: {', '.join(report.FORMATS)} (default: "
        f"{','.join(report.DEFAULT_FORMATS)})",
    )
    files.add_argument(
        "--no-pictures", action="store_true", help="tables only: no pictures and no report.html"
    )
    checks = made.add_argument_group("gate")
    checks.add_argument(
        "--check",
        type=Path,
        metavar="BASELINE.csv",
        help="a cells.csv of an earlier run: print what changed and exit with 1 when speed, "
        "memory or accuracy got worse; writes nothing",
    )
    checks.add_argument(
        "--tolerance",
        type=_tolerance,
        action="append",
        default=[],
        metavar="FIGURE=SHARE",
        help="what may be lost: speed, memory (default 0.05 of it each) or accuracy (default "
        "0.005, half a point) (may be given several times)",
    )
    return made
