"""JPEG files decoded by the device: the host only reads them."""

import io
import logging
import warnings
from collections.abc import Iterable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from numpy.typing import NDArray
from PIL import Image

from amp_sweep.data.ahead import ahead
from amp_sweep.data.loader import Encoded, EncodedBatches, FileImages, HostBatches
from amp_sweep.data.prepared import Unsupported

log = logging.getLogger(__name__)

# Decoded batches that wait on the device: one would be enough if all took equally long.
_DEPTH = 2

# RuntimeErrors that say nothing of the files: too little memory, and errors after which the
# device may do nothing more in this process.
_DEVICE_FAILS = (torch.OutOfMemoryError, torch.AcceleratorError)


class DecodedBatches:
    """Batches of image files as uint8 [b, height, width, 3] on the device.

    `workers` loader processes read the files (0: they are read when they are asked for); the
    device decodes those that are plain JPEG, the host the others. The device's decoder makes
    the calling thread wait, so it has a thread and, on CUDA, a stream of its own.
    Raises Unsupported where torchvision has no decoder for this device.

    refused: plain JPEG images that the device's decoder refused and the host decoded, so far.
    """

    def __init__(self, images: FileImages, workers: int, device: torch.device) -> None:
        self._images = images
        self._device = device
        self.refused = 0
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._files: HostBatches[Encoded] = HostBatches(EncodedBatches(images), workers, False)
        _check(device)

    def run(self, batches: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """The batches with these indices, in order; one run at a time. Raises DataError."""
        rows = list(batches)
        read = zip(self._files.run(rows), rows, strict=True)
        for images in ahead(self._decode, read, _DEPTH):
            if self._stream is not None:
                # Its memory is the other stream's: not to be used again before this one is done.
                images.record_stream(torch.cuda.current_stream(self._device))
            yield images

    def close(self) -> None:
        """End the loader processes."""
        self._files.close()

    def _decode(self, read: tuple[Encoded, torch.Tensor]) -> torch.Tensor:
        if self._stream is None:
            return self._batch(*read)
        with torch.cuda.stream(self._stream):
            images = self._batch(*read)
            # torchvision's decoder writes at once to memory that this stream has freed, though
            # kernels that were given it may not have read it yet (pytorch/vision#9606).
            self._stream.synchronize()
        return images

    def _batch(self, encoded: Encoded, row: torch.Tensor) -> torch.Tensor:
        jpegs = list(torch.split(encoded.jpegs, encoded.lengths)) if encoded.lengths else []
        indices = row.numpy()
        images: list[torch.Tensor] = [torch.empty(0)] * len(indices)
        decoded = self._decoded(jpegs, indices[encoded.places])
        for place, image in zip(encoded.places, decoded, strict=True):
            images[place] = self._sized(image)
        others = encoded.pixels.to(self._device).permute(0, 3, 1, 2)
        for place, image in zip(encoded.others, others, strict=True):
            images[place] = image
        return torch.stack(images).permute(0, 2, 3, 1)

    def _decoded(self, jpegs: list[torch.Tensor], indices: NDArray[np.int64]) -> list[torch.Tensor]:
        """Each file as uint8 [3, height, width], of its own size."""
        if not jpegs:
            return []
        try:
            return _decode_jpegs(jpegs, self._device)
        except _DEVICE_FAILS:
            raise
        except RuntimeError:
            # It does not say which one.
            return [self._alone(*pair) for pair in zip(jpegs, indices, strict=True)]

    def _alone(self, jpeg: torch.Tensor, index: np.int64) -> torch.Tensor:
        """What the device cannot read, the host may; if not, it names the file."""
        try:
            return _decode_jpegs([jpeg], self._device)[0]
        except _DEVICE_FAILS:
            raise
        except RuntimeError as error:
            pixels = np.empty((1, *self._images.shape), np.uint8)
            self._images.fill(pixels, np.array([index]))
            if not self.refused:
                log.warning(
                    "data.decode=device: the host decodes what the device refuses, first %s (%s)",
                    self._images.path(int(index)),
                    _first_line(error),
                )
            self.refused += 1
            return torch.from_numpy(pixels[0]).to(self._device).permute(2, 0, 1)

    def _sized(self, image: torch.Tensor) -> torch.Tensor:
        """Of the size of all, where the files differ: as `decode.resize` does, but for rounding."""
        size = self._images.shape[:2]
        if image.shape[1:] == size:
            return image
        sized = F.interpolate(
            image[None].float(), size, mode="bilinear", align_corners=False, antialias=True
        )
        return sized[0].round_().clamp_(0, 255).to(torch.uint8)


def _decode_jpegs(jpegs: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    from torchvision.io import ImageReadMode, decode_jpeg

    decoded: list[torch.Tensor] = decode_jpeg(jpegs, mode=ImageReadMode.RGB, device=device)
    return decoded


def _check(device: torch.device) -> None:
    """Decode one pixel there. Raises Unsupported."""
    # Since 0.29, in favour of another package that has not all of this yet.
    warnings.filterwarnings("ignore", "The image decoding and encoding", DeprecationWarning)
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "jpeg")
    try:
        _decode_jpegs([torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)], device)
    except _DEVICE_FAILS:
        raise
    except (ImportError, AttributeError, RuntimeError) as error:
        raise Unsupported(
            f"data.decode=device: torchvision {torchvision.__version__} cannot decode JPEG files "
            f"on {device.type} here ({_first_line(error)}); use data.decode=host"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
