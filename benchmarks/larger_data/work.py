"""What a row does."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """What a row does."""

    root: str
    images: int
    size: int  # of the files
    image_size: int  # that the network sees
    batch: int
    workers: int
    seconds: float
    device: str
    width: float  # of AlexNet
    precision: str
