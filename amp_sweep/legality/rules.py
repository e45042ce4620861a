"""What excludes what on every machine, as data with the reason in words."""

from collections.abc import Callable
from dataclasses import dataclass

from amp_sweep.config import RunConfig


@dataclass(frozen=True)
class Rule:
    """One illegal combination: `broken` finds it, `reason` says it (with the config's values)."""

    broken: Callable[[RunConfig], bool]
    reason: str


def processes(config: RunConfig) -> int:
    """Devices that share a batch as far as the request alone tells; 1 where it does not."""
    devices = config.parallel.devices
    if config.parallel.name == "none":
        return 1
    if isinstance(devices, int):
        return devices
    return 2 if config.parallel.name == "ddp" and config.device == "cpu" else 1


RULES: tuple[Rule, ...] = (
    Rule(
        lambda c: c.precision.scaler and not c.precision.autocast,
        "precision.scaler=true needs precision.autocast=true: float32 gradients need no scale",
    ),
    Rule(
        lambda c: c.memory.master_weights is True and not c.precision.autocast,
        "memory.master_weights=true needs precision.autocast=true: in float32 the weights are "
        "their own masters",
    ),
    Rule(
        lambda c: c.memory.master_weights is True and c.optimizer.name != "adamw",
        "memory.master_weights=true works with optimizer=adamw only",
    ),
    Rule(
        lambda c: c.memory.master_weights is True and c.optimizer.clip_norm is not None,
        "memory.master_weights=true keeps gradients in half precision, which "
        "optimizer.clip_norm cannot unscale",
    ),
    Rule(
        lambda c: c.data.batch_mode == "global" and c.data.batch_size % processes(c) != 0,
        "data.batch_size={c.data.batch_size} is the global batch and does not divide by "
        "{processes} devices (parallel={c.parallel.name}); choose a multiple of {processes}",
    ),
    Rule(
        lambda c: c.parallel.backend == "nccl" and c.device == "cpu",
        "parallel.backend=nccl needs CUDA devices; on a CPU it is gloo",
    ),
    Rule(
        lambda c: c.device == "mps" and c.parallel.name != "none",
        "parallel={c.parallel.name} does not work on MPS: it has one device",
    ),
    Rule(
        lambda c: c.data.name == "imagefolder" and c.data.root is None,
        "data=imagefolder needs data.root=FOLDER with train/ and test/ (or val/) in it",
    ),
    Rule(
        lambda c: (
            c.data.name != "synthetic"
            and (c.data.classes is not None or c.data.source_size is not None)
        ),
        "data.classes and data.source_size belong to data=synthetic",
    ),
    Rule(
        lambda c: c.data.pipeline == "resident" and c.data.workers > 0,
        "data.workers={c.data.workers} has nothing to do with data.pipeline=resident; "
        "use data.pipeline=loader",
    ),
    Rule(
        lambda c: c.data.placement != "auto" and c.data.pipeline != "resident",
        "data.placement={c.data.placement} works with data.pipeline=resident only",
    ),
    Rule(
        lambda c: (
            c.data.decode == "device"
            and (c.data.name != "imagefolder" or c.data.pipeline != "loader")
        ),
        "data.decode=device works with data=imagefolder data.pipeline=loader only: elsewhere the "
        "images are decoded before the training",
    ),
    Rule(
        lambda c: c.data.decode == "device" and c.device in ("cpu", "mps"),
        "data.decode=device needs a CUDA device; with device={c.device} it is data.decode=host",
    ),
    Rule(
        lambda c: c.optimizer.nesterov and c.optimizer.momentum == 0,
        "optimizer.nesterov=true needs optimizer.momentum above 0",
    ),
)
