"""The data: prepared once, ordered alike in every cell, delivered to the device.

`prepare` and `open_prepared` work without torch, which is imported when one of the names
that need it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from amp_sweep.data.cache import cache_dir, prepare
from amp_sweep.data.prepared import (
    DataError,
    PartName,
    Prepared,
    Progress,
    Unsupported,
    open_prepared,
    training_steps,
)

if TYPE_CHECKING:
    from amp_sweep.data.order import epoch_order, eval_batches, rank_batches
    from amp_sweep.data.pipeline import Raw, Split, open_split

_WITH_TORCH = {
    "epoch_order": "order",
    "eval_batches": "order",
    "rank_batches": "order",
    "Raw": "pipeline",
    "Split": "pipeline",
    "open_split": "pipeline",
}

__all__ = [
    "DataError",
    "PartName",
    "Prepared",
    "Progress",
    "Raw",
    "Split",
    "Unsupported",
    "cache_dir",
    "epoch_order",
    "eval_batches",
    "open_prepared",
    "open_split",
    "prepare",
    "rank_batches",
    "training_steps",
]


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WITH_TORCH[name]}"), name)
