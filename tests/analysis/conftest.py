"""Makers of synthetic runs as fixtures."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.synthetic import ARTICLE, PARALLELS, PRECISIONS, write_run

MakeRun = Callable[..., Path]


@pytest.fixture
def article() -> dict[str, Any]:
    """A run's settings that are the article's."""
    return dict(ARTICLE)


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """`make_run(parallel, precision, ...)` writes one run and returns its directory."""

    return functools.partial(write_run, tmp_path)


@pytest.fixture
def make_matrix(make_run: MakeRun, tmp_path: Path) -> MakeRun:
    """`make_matrix(...)` writes the nine cells, `but={(parallel, precision): {...}}` some of
    them otherwise (None: not at all), and returns the sweep's directory.
    """

    def make(
        *, but: dict[tuple[str, str], dict[str, Any] | None] | None = None, **common: Any
    ) -> Path:
        for at in ((p, q) for p in PARALLELS for q in PRECISIONS):
            own = (but or {}).get(at, {})
            if own is not None:
                make_run(*at, **{**common, **own})
        return tmp_path / str(common.get("sweep", "matrix"))

    return make
