"""The network's input from images that lie on a CUDA device, as one kernel of Triton's.

PyTorch's operations for it are five launches, three of which write the whole batch in float32. A
step of small kernels waits for the host, so each launch less is time gained.
"""

import logging
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)

# Says something of the device, not of Triton.
_DEVICE_FAILS = (torch.OutOfMemoryError, torch.AcceleratorError)
_BLOCK = 1024


class FusedInput:
    """Labels and images of a batch of rows, by one launch: see `fused_input`.

    constants: scale and bias of red, green and blue, float32 [2, 3], or None.
    """

    def __init__(
        self,
        pixels: Tensor,
        labels: Tensor,
        affine: tuple[Tensor, Tensor] | None,
        size: int,
        channels_last: bool,
    ) -> None:
        self._pixels = pixels
        self._labels = labels
        self.constants = None if affine is None else _constants(*affine)
        self._size = size
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        # Triton launches on the current device. (-1, a CPU's, changes nothing.)
        self._device = torch.cuda.device(pixels.get_device())
        self._blocks = -(-3 * size * size // _BLOCK)
        _, channels, height, width = pixels.shape
        image_step, channel_step, row_step, column_step = pixels.stride()
        # As constants the kernel's divisions are multiplications, and a launch passes six pointers.
        self._geometry = (
            *(height, width, size, channels_last),
            *(image_step, channel_step if channels == 3 else 0, row_step, column_step),
            *(self._blocks, _BLOCK),
        )
        self._kernel = _compiled()

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Images, float32 [b, 3, size, size], and labels, int64 [b], of `rows`, int64 [b].

        The rows lie on the device, contiguous and within the data; nothing here checks them.
        """
        batch = len(rows)
        targets = torch.empty_like(rows)
        images = torch.empty(
            (batch, 3, self._size, self._size), device=rows.device, memory_format=self._format
        )
        with self._device:
            self._kernel[(batch * self._blocks,)](
                self._pixels, self._labels, rows, self.constants, images, targets, *self._geometry
            )
        return images, targets


def fused_input(
    pixels: Tensor,
    labels: Tensor,
    affine: tuple[Tensor, Tensor] | None,
    size: int,
    channels_last: bool,
) -> FusedInput | None:
    """What makes batches of these images; None, and the log says why, where Triton cannot.

    `pixels`: uint8 [count, channels, height, width] with 1 or 3 channels, in any order in memory,
    no image larger than `size`; `labels`: int64 [count]; `affine`: scale and bias from 0..255, a
    value a channel, else images are pixels / 255. All on the device. It is compiled and run once
    here, so no batch waits for that and a CUDA graph may hold it. Raises torch.OutOfMemoryError.
    """
    try:
        made = FusedInput(pixels, labels, affine, size, channels_last)
        made(torch.zeros(1, dtype=torch.int64, device=pixels.device))
    except _DEVICE_FAILS:
        raise
    # A package or a compiler that is missing, one that fails, a cache that cannot be written: none
    # of them is a reason not to train.
    except Exception as error:
        why = (str(error).strip().splitlines() or [""])[0]
        log.info("input by PyTorch's operations, without Triton: %s: %s", type(error).__name__, why)
        return None
    return made


def _constants(scale: Tensor, bias: Tensor) -> Tensor:
    return torch.stack([values.flatten().expand(3) for values in (scale, bias)])


@lru_cache(maxsize=1)
def _compiled() -> Any:
    import triton
    import triton.language as tl

    # Rows may begin anywhere in an epoch's indices: by their alignment there would be two kernels,
    # and the second one compiled in the middle of training.
    @triton.jit(do_not_specialize_on_alignment=["rows"])  # type: ignore[untyped-decorator]
    def input_kernel(  # type: ignore[no-untyped-def]
        pixels, labels, rows, constants, images, targets,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, CHANNELS_LAST: tl.constexpr,
        IMAGE_STEP: tl.constexpr, CHANNEL_STEP: tl.constexpr,
        ROW_STEP: tl.constexpr, COLUMN_STEP: tl.constexpr,
        BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        place = tl.program_id(0) // BLOCKS
        block = tl.program_id(0) % BLOCKS
        index = tl.load(rows + place)
        if block == 0:
            tl.store(targets + place, tl.load(labels + index))
        # By element of the image as it lies in memory: what is written is contiguous.
        at = block * BLOCK + tl.arange(0, BLOCK)
        inside = at < 3 * SIZE * SIZE
        if CHANNELS_LAST:
            channel = at % 3
            x = (at // 3) % SIZE
            y = at // (3 * SIZE)
        else:
            x = at % SIZE
            y = (at // SIZE) % SIZE
            channel = at // (SIZE * SIZE)
        # The index is int64, and so is an image's offset: all images may be more than 2 GiB.
        source = pixels + index * IMAGE_STEP + channel * CHANNEL_STEP
        if HEIGHT == SIZE and WIDTH == SIZE:
            near = source + y * ROW_STEP + x * COLUMN_STEP
            value = tl.load(near, mask=inside, other=0).to(tl.float32)
        else:
            # As PyTorch finds its source (area_pixel_compute_source_index, align_corners=False).
            from_y = tl.maximum((y + 0.5) * (HEIGHT / SIZE) - 0.5, 0.0)
            from_x = tl.maximum((x + 0.5) * (WIDTH / SIZE) - 0.5, 0.0)
            top = from_y.to(tl.int32)
            left = from_x.to(tl.int32)
            down = from_y - top
            right = from_x - left
            upper = source + top * ROW_STEP
            lower = source + tl.minimum(top + 1, HEIGHT - 1) * ROW_STEP
            first = left * COLUMN_STEP
            second = tl.minimum(left + 1, WIDTH - 1) * COLUMN_STEP
            a = tl.load(upper + first, mask=inside, other=0).to(tl.float32)
            b = tl.load(upper + second, mask=inside, other=0).to(tl.float32)
            c = tl.load(lower + first, mask=inside, other=0).to(tl.float32)
            d = tl.load(lower + second, mask=inside, other=0).to(tl.float32)
            above = (1.0 - right) * a + right * b
            below = (1.0 - right) * c + right * d
            value = (1.0 - down) * above + down * below
        # After the resize, whose weights sum to 1: here it is one value an element, and not four.
        if constants is None:
            value = tl.div_rn(value, 255.0)
        else:
            scale = tl.load(constants + channel, mask=inside, other=0.0)
            bias = tl.load(constants + 3 + channel, mask=inside, other=0.0)
            value = bias + value * scale
        tl.store(images + place.to(tl.int64) * (3 * SIZE * SIZE) + at, value, mask=inside)

    return input_kernel
