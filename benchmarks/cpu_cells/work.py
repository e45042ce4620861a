"""What both contenders do."""

from dataclasses import dataclass

PARALLELS = ("none", "dp", "ddp")
PRECISIONS = ("fp32", "autocast", "scaler")
RANKS = 2


@dataclass(frozen=True)
class Work:
    """What both contenders do."""

    parallel: str
    precision: str
    epochs: int
    train_images: int | None
    channels_last: bool

    @property
    def world(self) -> int:
        """Processes."""
        return RANKS if self.parallel == "ddp" else 1
