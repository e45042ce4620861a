"""Those who train AlexNet side by side: loops of plain PyTorch, other tools, and our own cells.

Each trains on images of 32 px, resized to `image_size`, with AdamW and cross-entropy, and is timed
over `steps` steps after `warm_up`; what it does besides differs, and is the point.
"""

from collections.abc import Callable

from benchmarks.contenders.ours import (
    ours,
    ours_ddp,
    ours_ddp_fast,
    ours_dp,
    ours_dp_fast,
    ours_fast,
)
from benchmarks.contenders.plain import article, bare, tuned
from benchmarks.contenders.tools import (
    accelerate_equal,
    accelerate_resident,
    lightning_equal,
    lightning_resident,
    lightning_workers,
)
from benchmarks.contenders.work import Work

CONTENDERS: dict[str, Callable[[Work], float]] = {
    function.__name__: function
    for function in (
        bare, tuned, article, lightning_workers, lightning_resident, lightning_equal,
        accelerate_resident, accelerate_equal, ours, ours_fast, ours_ddp, ours_ddp_fast, ours_dp,
        ours_dp_fast,
    )
}  # fmt: skip
