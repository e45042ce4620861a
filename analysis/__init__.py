"""From the records of sweeps to tables: `load -> compare -> report`.

As a library: `analysis.load`, `analysis.load_epochs`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.library import RecordWarning, load, load_epochs

__all__ = ["RecordWarning", "load", "load_epochs"]


def __getattr__(name: str) -> Any:
    # On first use: `python -m analysis` comes by here before it can take care of Ctrl-C.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from analysis import library

    return getattr(library, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
