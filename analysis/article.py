"""The article's own figures and claims, and when ours may stand beside them."""

import math
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

HELD, NOT_HELD, NOT_DECIDED = "held", "not held", "not decided"


@dataclass(frozen=True)
class Claim:
    """What the article's table says of a cell against another, in our words.

    It holds where the ratio of the figure (for accuracy: the difference, a share of 1) lies
    between `low` and `high`.
    """

    text: str
    figure: str
    at: tuple[str, str]
    other: tuple[str, str]
    low: float = -math.inf
    high: float = math.inf


# "Hardly" and "a little" are less than a tenth; "no slower" allows 5%, a minute of 22, which is
# all that its whole minutes can tell. A claimed rise in accuracy counts from half its size.
CLAIMS = (
    Claim(
        "autocast hardly helps: 21 against 22 minutes",
        "images_per_s",
        ("none", "autocast"),
        ("none", "fp32"),
        low=1 / 1.1,
        high=1.1,
    ),
    Claim(
        "the scaler makes training slower than fp32: 27 against 22 minutes",
        "images_per_s",
        ("none", "scaler"),
        ("none", "fp32"),
        high=1.0,
    ),
    Claim(
        "DataParallel is no slower than one device: 22 against 22 minutes",
        "images_per_s",
        ("dp", "fp32"),
        ("none", "fp32"),
        low=0.95,
    ),
    Claim(
        "DistributedDataParallel is a little faster than one device: 21 against 22 minutes",
        "images_per_s",
        ("ddp", "fp32"),
        ("none", "fp32"),
        low=1.0,
        high=1.1,
    ),
    Claim(
        "autocast is more accurate than fp32: 0.8403 against 0.8191",
        "test_accuracy",
        ("none", "autocast"),
        ("none", "fp32"),
        low=0.0106,
    ),
    Claim(
        "with DataParallel the scaler is more accurate than fp32: 0.8409 against 0.8216",
        "test_accuracy",
        ("dp", "scaler"),
        ("dp", "fp32"),
        low=0.0096,
    ),
    Claim(
        "with DistributedDataParallel autocast is less accurate than fp32: 0.8162 against 0.8224",
        "test_accuracy",
        ("ddp", "autocast"),
        ("ddp", "fp32"),
        high=-0.0031,
    ),
)

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
