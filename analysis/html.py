"""`report.html`: the answer, the tables, the pictures and the runs in one file.

It needs no network: style, script and pictures are inside, and a content security policy lets
nothing else in. All content is escaped, also where it comes from a record of another machine.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jinja2
import pandas as pd
from markupsafe import Markup

from amp_sweep import record
from analysis import page, pictures
from analysis.answer import Answer
from analysis.comparison import Comparison
from analysis.pictures import Picture, Pictures, style

FILE = "report.html"
ASSETS = Path(__file__).parent / "assets"


def write(
    comparison: Comparison,
    answer: Answer,
    frame: pd.DataFrame,
    problems: Sequence[str],
    command: str,
    out: Path,
    drawn: Pictures | None = None,
) -> Path:
    """Write the report into the folder `out`, made when missing; returns the file.

    `frame` is what was compared, `command` makes the report again, `drawn` are its pictures
    where they are drawn already. Raises OSError where it cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    if drawn is None:
        drawn = pictures.draw(comparison, frame)
    css, script = (_asset(name) for name in ("report.css", "report.js"))
    text = _template().render(
        page=page.build(comparison, answer, frame, problems, out),
        pictures=[
            [p for p in drawn.pictures if p.table == n] for n in range(len(comparison.tables))
        ],
        left_out=drawn.left_out,
        command=command,
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        version=_version(),
        policy=policy(css, script),
        css=Markup(css),  # our own files
        script=Markup(script),
    )
    record.write_atomic(out / FILE, text)
    return out / FILE


def policy(css: str, script: str) -> str:
    """What a browser may load for the page: this style, this script, pictures inside the page."""
    return "; ".join(
        (
            "default-src 'none'",
            "img-src data:",
            f"style-src {_hash(css)}",
            f"script-src {_hash(script)}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data_uri"] = data_uri
    return environment.get_template("report.html.jinja")


def _printable(value: object) -> object:
    """Text without what could change how the text around it is shown or read.

    Control characters, marks of the direction of writing and halves of characters become a
    replacement character.
    """
    if type(value) is not str or value.isprintable():
        return value
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in value
    )


def data_uri(picture: Picture) -> str:
    """A picture as an address that holds it, dark on a dark page."""
    content = base64.b64encode(themed(picture.svg).encode()).decode()
    return f"data:image/svg+xml;base64,{content}"


def themed(svg: str) -> str:
    """The same picture with its colours as variables, which a dark page sets otherwise."""
    dark = style.dark()
    used = [colour for colour in dark if colour in svg]
    for colour in used:
        svg = svg.replace(colour, f"var(--{colour[1:]})")
    light = "".join(f"--{colour[1:]}:{colour};" for colour in used)
    night = "".join(f"--{colour[1:]}:{dark[colour]};" for colour in used)
    rules = f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{night}}}}}"
    svg = re.sub(r"<!--.*?-->|\s*\n\s*", " ", svg, flags=re.DOTALL)
    return re.sub(r"(<svg [^>]*>)", lambda found: f"{found[1]}<style>{rules}</style>", svg, count=1)


def _version() -> str:
    try:
        return version("amp-sweep")
    except PackageNotFoundError:  # run from a copy of the source
        return ""
