"""Batches on their way to the network: fetched, copied, resized and normalised on the device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import psutil
import torch
import torch.nn.functional as F

from amp_sweep.data.ahead import ahead
from amp_sweep.data.fused_input import FusedInput, fused_input
from amp_sweep.data.loader import (
    ArticleBatches,
    FileImages,
    HostBatches,
    Images,
    RawBatches,
    fetch,
    open_images,
)
from amp_sweep.data.prepared import DataError, PartName, Prepared, labels_path, map_array

if TYPE_CHECKING:
    from amp_sweep.config import DataConfig
    from amp_sweep.data.on_device import DecodedBatches

Placement = Literal["device", "host", "workers", "decoder", "pil"]

# Resident by default while the data leave most of the memory to the network.
_MEMORY_SHARE = 0.25
_UPLOAD_BYTES = 2**26


@dataclass(frozen=True, slots=True)
class Raw:
    """A batch before `to_input`, on the device.

    `indices` is int64 [b]. `images` is uint8 [b, height, width, channels] as stored, or
    float32 [b, 3, size, size] where PIL made it, or None where all images are on the device.
    """

    indices: torch.Tensor
    images: torch.Tensor | None


def open_split(
    prepared: Prepared,
    part: PartName,
    config: "DataConfig",
    device: torch.device,
    channels_last: bool = False,
) -> "Split":
    """One part of the data, ready for one device. Raises DataError.

    `placement=auto` keeps both parts on the device where they take up to a quarter of its
    free memory (of a CPU's available memory), else on the host. What makes the input is settled
    here, and compiled where a kernel of our own does: see `Split.fused`.
    """
    if config.pipeline == "resident":
        if not prepared.stored:
            raise DataError("data.pipeline=resident: these data were prepared for loader or pil")
        wanted = config.placement
        on_device = wanted == "device" or (wanted == "auto" and _fits(prepared, device))
        return Split(prepared, part, config, device, channels_last, on_device)
    if config.pipeline not in ("loader", "pil"):
        raise DataError(f"data.pipeline={config.pipeline}: allowed are resident, loader, pil")
    return Split(prepared, part, config, device, channels_last, on_device=False)


class Split:
    """One part of the data, ready for one device: see `open_split`.

    count: images in the part.
    labels: int64 [count], on the device.
    placement: where the images lie, or who fetches them.
    """

    def __init__(
        self,
        prepared: Prepared,
        part: PartName,
        config: "DataConfig",
        device: torch.device,
        channels_last: bool,
        on_device: bool,
    ) -> None:
        self.count = prepared.count(part)
        self.placement: Placement = "device" if on_device else "host"
        self._device = device
        self._size = config.image_size
        self._channels_last = channels_last
        self._resizes = (prepared.height, prepared.width) != (self._size, self._size)
        # PIL's filter widens where it shrinks, which is called antialias here. Where it only
        # enlarges the flag changes nothing but the kernel: on a CPU (2.14, one thread, 8 to 64
        # pixels) the other one takes 2.7 times as long.
        shrinks = prepared.height > self._size or prepared.width > self._size
        self._antialias = shrinks or device.type == "cpu"
        self._fused: FusedInput | None = None
        self._input = self._made
        labels = torch.tensor(map_array(labels_path(prepared.folder, part)))
        self.labels = labels.to(device)
        self._scale, self._bias = _affine(prepared, config.normalize, device)
        self._resident: torch.Tensor | None = None
        self._host: Images | None = None
        self._batches: HostBatches[torch.Tensor] | DecodedBatches | None = None
        images = open_images(prepared, part)
        pinned = device.type == "cuda"
        if on_device:
            self._resident = self._upload(images)
            if device.type == "cuda" and not shrinks:
                self._fused = self._one_launch(self._resident)
        elif config.pipeline == "resident":
            self._host = images
        elif config.pipeline == "loader" and config.decode == "device":
            self.placement = "decoder"
            self._batches = _decoded(images, config.workers, device)
        elif config.pipeline == "loader":
            self.placement = "workers"
            self._batches = HostBatches(RawBatches(images), config.workers, pinned)
        else:
            self.placement = "pil"
            mean, std = (prepared.mean, _divisors(prepared)) if config.normalize else (None, None)
            # As the article has it: pinned where loader processes do the work.
            self._batches = HostBatches(
                ArticleBatches(images, self._size, mean, std),
                config.workers,
                pinned and config.workers > 0,
            )

    def batches(self, indices: torch.Tensor | Sequence[torch.Tensor]) -> Iterator[Raw]:
        """The batches with these indices into the part, in order, their copies enqueued.

        `indices`: int64 on the CPU, [steps, b] or a sequence of [b]. They go to the device
        once, here, and no step waits for the device. Raises IndexError and DataError.
        """
        rows = list(indices)
        if not rows:
            return
        flat = torch.cat(rows)
        if int(flat.min()) < 0 or int(flat.max()) >= self.count:
            raise IndexError(f"an index beyond the {self.count} images of this part")
        if self._device.type == "cuda":
            flat = flat.pin_memory()
        flat = flat.to(self._device, non_blocking=True)
        on_device = torch.split(flat, [len(row) for row in rows])
        if self._resident is not None:
            for batch in on_device:
                yield Raw(batch, None)
            return
        for batch, images in zip(on_device, self._fetched(rows), strict=True):
            yield Raw(batch, images.to(self._device, non_blocking=True))

    def to_input(self, raw: Raw) -> tuple[torch.Tensor, torch.Tensor]:
        """What the network sees: float32 [b, 3, size, size], and labels, int64 [b].

        Where the images are on the device there is no synchronisation. `fused`, it is one kernel;
        else two gathers, one kernel for conversion and normalisation, one to resize, one for the
        memory format.
        """
        if self._fused is not None:
            return self._fused(raw.indices)
        return self._input(raw)

    def compile(self, mode: str | None) -> None:
        """Make inputs by compiled code, from the next one on; `mode` is torch.compile's.

        A `fused` input is one kernel already and stays as it is.
        """
        if self._fused is None:
            self._input = torch.compile(self._made, mode=mode, dynamic=False)

    def _made(self, raw: Raw) -> tuple[torch.Tensor, torch.Tensor]:
        labels = self.labels.index_select(0, raw.indices)
        if self.placement == "pil" and raw.images is not None:
            return self._in_format(raw.images), labels
        if self._resident is not None:
            pixels = self._channels_first(self._resident.index_select(0, raw.indices))
        elif raw.images is not None:
            pixels = raw.images.permute(0, 3, 1, 2)
            # One byte a pixel now or four later: the resize would do it anyway.
            pixels = pixels if self._stays_in_place else pixels.contiguous()
        else:
            raise ValueError("a batch without images, of data that are not on the device")
        return self._in_format(self._sized(self._normalised(pixels))), labels

    def stored(self) -> list[torch.Tensor]:
        """What lies on the device for good: labels, constants and, where they do, the images."""
        constants = None if self._fused is None else self._fused.constants
        kept = (self.labels, self._scale, self._bias, constants, self._resident)
        return [tensor for tensor in kept if tensor is not None]

    def close(self) -> None:
        """End the loader processes, if there are any."""
        if self._batches is not None:
            self._batches.close()

    @property
    def refused(self) -> int:
        """Images that the device should have decoded and the host did, so far."""
        return getattr(self._batches, "refused", 0)

    @property
    def fused(self) -> bool:
        """Whether one kernel makes the input: images on a CUDA device, not shrunk, with Triton."""
        return self._fused is not None

    @property
    def _stays_in_place(self) -> bool:
        """Whether stored pixels [height, width, channels] are in the network's format already."""
        return self._channels_last and not self._resizes

    def _upload(self, images: Images) -> torch.Tensor:
        """All images on the device as uint8, in the order of axes in which they are used:
        [count, height, width, channels] or [count, channels, height, width].
        """
        height, width, channels = images.shape
        moved = not self._stays_in_place
        axes = (channels, height, width) if moved else images.shape
        resident = torch.empty((self.count, *axes), dtype=torch.uint8, device=self._device)
        step = max(1, _UPLOAD_BYTES // (height * width * channels))
        everything = torch.arange(self.count)
        for start in range(0, self.count, step):
            chunk = fetch(images, everything[start : start + step].numpy(), pinned=False)
            chunk = chunk.to(self._device)
            resident[start : start + step] = chunk.permute(0, 3, 1, 2) if moved else chunk
        return resident

    def _channels_first(self, resident: torch.Tensor) -> torch.Tensor:
        """A view of uploaded images with the axes [count, channels, height, width]."""
        return resident.permute(0, 3, 1, 2) if self._stays_in_place else resident

    def _one_launch(self, resident: torch.Tensor) -> FusedInput | None:
        pixels = self._channels_first(resident)
        affine = None if self._scale is None or self._bias is None else (self._scale, self._bias)
        return fused_input(pixels, self.labels, affine, self._size, self._channels_last)

    def _fetched(self, rows: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        if self._batches is not None:
            yield from self._batches.run(rows)
        elif self._host is not None:
            images, pinned = self._host, self._device.type == "cuda"
            yield from ahead(lambda row: fetch(images, row.numpy(), pinned), rows, depth=1)

    def _normalised(self, pixels: torch.Tensor) -> torch.Tensor:
        """uint8 to float32, at the smaller cost before the resize: its weights sum to 1."""
        if self._scale is None or self._bias is None:
            return torch.div(pixels, 255)
        return torch.addcmul(self._bias, pixels, self._scale)

    def _sized(self, images: torch.Tensor) -> torch.Tensor:
        if not self._resizes:
            return images
        return F.interpolate(
            images,
            size=(self._size, self._size),
            mode="bilinear",
            align_corners=False,
            antialias=self._antialias,
        )

    def _in_format(self, images: torch.Tensor) -> torch.Tensor:
        if images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        if self._channels_last:
            return images.contiguous(memory_format=torch.channels_last)
        return images.contiguous()


def _decoded(images: Images, workers: int, device: torch.device) -> "DecodedBatches":
    """Batches that the device decodes. Raises DataError."""
    # Not before: it brings torchvision.
    from amp_sweep.data.on_device import DecodedBatches

    if not isinstance(images, FileImages):
        raise DataError("data.decode=device: these images do not come from files")
    return DecodedBatches(images, workers, device)


def _fits(prepared: Prepared, device: torch.device) -> bool:
    if device.type == "cuda":
        available, _ = torch.cuda.mem_get_info(device)
    else:
        available = psutil.virtual_memory().available
    return prepared.pixel_bytes <= _MEMORY_SHARE * available


def _divisors(prepared: Prepared) -> tuple[float, ...]:
    """The standard deviations, 1 for a channel in which all pixels are the same."""
    return tuple(std if std > 0 else 1.0 for std in prepared.std)


def _affine(
    prepared: Prepared, normalize: bool, device: torch.device
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Scale and bias, [1, channels, 1, 1], from 0..255 to normalised; None without."""
    if not normalize:
        return None, None
    std = torch.tensor(_divisors(prepared), dtype=torch.float64)
    mean = torch.tensor(prepared.mean, dtype=torch.float64)
    scale, bias = 1 / (255 * std), -mean / std
    shape = (1, -1, 1, 1)
    return (
        scale.to(torch.float32).view(shape).to(device),
        bias.to(torch.float32).view(shape).to(device),
    )
