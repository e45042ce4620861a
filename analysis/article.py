"""The article's own figures, and when ours may stand beside them (DESIGN section 1)."""

from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]

PROVENANCE = (
    "The article's figures are from one RTX 2060 laptop GPU, world size 1, one run each; "
    "of its times only the whole minutes are known, and accuracies of single runs differ "
    "by chance."
)


@dataclass(frozen=True)
class Published:
    """What the article gives for one cell; None where it gives nothing."""

    minutes: int | None
    accuracy: float | None


PUBLISHED = {
    ("none", "fp32"): Published(22, 0.8191),
    ("none", "autocast"): Published(21, 0.8403),
    ("none", "scaler"): Published(27, None),
    ("dp", "fp32"): Published(22, 0.8216),
    ("dp", "autocast"): Published(21, 0.8188),
    ("dp", "scaler"): Published(None, 0.8409),
    ("ddp", "fp32"): Published(21, 0.8224),
    ("ddp", "autocast"): Published(20, 0.8162),
    ("ddp", "scaler"): Published(20, 0.8252),
}

# Config fields as text, as in the tidy table. How the images reach the device is free:
# that is where `article` and `article_as_written` differ.
SETTINGS = {
    "model.name": "alexnet",
    "model.width": "1.0",
    "model.outputs": "1000",
    "model.dropout": None,
    "data.image_size": "227",
    "data.batch_size": "64",
    "data.batch_mode": "global",
    "data.normalize": "false",
    "data.train_images": None,
    "epochs": "20",
    "optimizer.name": "adamw",
    "optimizer.lr": "0.0001",
    "scheduler.name": "plateau",
    "scheduler.patience": "3",
}


def published(row: Row) -> Published | None:
    """The article's figures for a run of its settings; None for any other run."""
    if any(row.get(f"config.{name}") != value for name, value in SETTINGS.items()):
        return None
    images = (row.get("config.data.name"), row["data"], row.get("config.data.root"))
    is_cifar = images[0] == "cifar10" or (
        images[0] == "imagefolder" and any("cifar" in (text or "").lower() for text in images[1:])
    )
    # It trains in float32 and float16 only.
    dtype = row.get("config.precision.dtype")
    own_formats = dtype in (None, "auto", "float16") and row.get("config.precision.tf32") != "true"
    return PUBLISHED.get((row["parallel"], row["precision"])) if is_cifar and own_formats else None
