"""ReLU and max pooling as one pass over memory each way.

Pooling before ReLU gives the same values, and the maximum's place in its window, one byte, is
all that the backward pass needs: the large tensor before the pooling is read once and not kept.
"""

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# What a program of 128 threads takes: 16 values a thread, 8 of them neighbours (16 bytes).
_PIXELS, _CHANNELS = 32, 64


def relu_max_pool_reference(images: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """ReLU, then max pooling, in PyTorch: the oracle of `relu_max_pool`."""
    return F.max_pool2d(F.relu(images), kernel, stride, padding)


def relu_max_pool(images: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Max pooling of ReLU of images [B, C, H, W], square windows; fused on CUDA, channels last."""
    fused = images.device.type == "cuda" and images.is_contiguous(memory_format=torch.channels_last)
    if not fused:
        return relu_max_pool_reference(images, kernel, stride, padding)
    pooled: Tensor = _pool(images, kernel, stride, padding)[0]
    return pooled


def _grid(rows: int, width: int, channels: int) -> tuple[int, int, int]:
    return rows, -(-width // _PIXELS), -(-channels // _CHANNELS)


def _out_size(size: int, kernel: int, stride: int, padding: int) -> int:
    return (size + 2 * padding - kernel) // stride + 1


@torch.library.custom_op("amp_sweep::relu_max_pool", mutates_args=(), device_types="cuda")
def _pool(images: Tensor, kernel: int, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    batch, channels, height, width = images.shape
    out_height = _out_size(height, kernel, stride, padding)
    out_width = _out_size(width, kernel, stride, padding)
    pooled, places = _outputs(images, out_height, out_width)
    forward, _ = _compiled()
    forward[_grid(batch * out_height, out_width, channels)](
        images, pooled, places, height, width, out_height, out_width,
        channels, kernel, stride, padding, _PIXELS, _CHANNELS,
    )  # fmt: skip
    return pooled, places


def _outputs(images: Tensor, out_height: int, out_width: int) -> tuple[Tensor, Tensor]:
    shape = (images.shape[0], images.shape[1], out_height, out_width)
    pooled = images.new_empty(shape).contiguous(memory_format=torch.channels_last)
    places = images.new_empty(shape, dtype=torch.uint8)
    return pooled, places.contiguous(memory_format=torch.channels_last)


@_pool.register_fake
def _(images: Tensor, kernel: int, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    height, width = (_out_size(size, kernel, stride, padding) for size in images.shape[2:])
    return _outputs(images, height, width)


@torch.library.custom_op("amp_sweep::relu_max_pool_backward", mutates_args=(), device_types="cuda")
def _pool_backward(
    gradient: Tensor,
    places: Tensor,
    height: int,
    width: int,
    kernel: int,
    stride: int,
    padding: int,
) -> Tensor:
    batch, channels, out_height, out_width = places.shape
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    result = gradient.new_empty((batch, channels, height, width)).contiguous(
        memory_format=torch.channels_last
    )
    _, backward = _compiled()
    backward[_grid(batch * height, width, channels)](
        gradient, places, result, height, width, out_height, out_width,
        channels, kernel, stride, padding, _PIXELS, _CHANNELS,
    )  # fmt: skip
    return result


@_pool_backward.register_fake
def _(
    gradient: Tensor,
    places: Tensor,
    height: int,
    width: int,
    kernel: int,
    stride: int,
    padding: int,
) -> Tensor:
    shape = (*places.shape[:2], height, width)
    return gradient.new_empty(shape).contiguous(memory_format=torch.channels_last)


# PyTorch passes the context by this name.
def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    images, ctx.kernel, ctx.stride, ctx.padding = inputs
    ctx.size = images.shape[2:]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
    (places,) = ctx.saved_tensors
    height, width = ctx.size
    found: Tensor = _pool_backward(
        gradient, places, height, width, ctx.kernel, ctx.stride, ctx.padding
    )
    return found, None, None, None


_pool.register_autograd(_differentiate, setup_context=_keep)


@lru_cache(maxsize=1)
def _compiled() -> tuple[Any, Any]:
    import triton
    import triton.language as tl

    # A program takes some neighbouring pixels of one row, with all of their channels or a part
    # of them: along the channels everything is contiguous. (Triton reads a kernel's annotations,
    # so parameters that are no constants carry none.)
    @triton.jit  # type: ignore[untyped-decorator]
    def forward(  # type: ignore[no-untyped-def]
        images, pooled, places, height, width, out_height, out_width,
        C: tl.constexpr, K: tl.constexpr, S: tl.constexpr, P: tl.constexpr,
        PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
    ):  # fmt: skip
        line = tl.program_id(0)
        image = line // out_height
        top = (line % out_height) * S - P
        out_x = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
        channel = (tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
        in_channels = channel < C
        left = out_x * S - P
        best = tl.full((PIXELS, CHANNELS), float("-inf"), tl.float32)
        place = tl.full((PIXELS, CHANNELS), 255, tl.int32)
        for i in tl.static_range(K):
            y = top + i
            row = images + (image * height + y).to(tl.int64) * width * C
            for j in tl.static_range(K):
                x = left + j
                there = (x >= 0) & (x < width) & (out_x < out_width) & (y >= 0) & (y < height)
                value = tl.load(
                    row + (x * C)[:, None] + channel,
                    mask=there[:, None] & in_channels,
                    other=float("-inf"),
                ).to(tl.float32)
                # As PyTorch: the first of equal values, and a NaN wins.
                larger = (value > best) | (value != value)
                best = tl.where(larger, value, best)
                place = tl.where(larger, i * K + j, place)
        dead = best <= 0.0
        best = tl.where(dead, 0.0, best)
        place = tl.where(dead, 255, place)
        target = line.to(tl.int64) * out_width * C + (out_x * C)[:, None] + channel
        inside = (out_x < out_width)[:, None] & in_channels
        tl.store(pooled + target, best.to(pooled.dtype.element_ty), mask=inside)
        tl.store(places + target, place.to(tl.uint8), mask=inside)

    @triton.jit  # type: ignore[untyped-decorator]
    def backward(  # type: ignore[no-untyped-def]
        gradient, places, result, height, width, out_height, out_width,
        C: tl.constexpr, K: tl.constexpr, S: tl.constexpr, P: tl.constexpr,
        PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
    ):  # fmt: skip
        line = tl.program_id(0)
        image = line // height
        y = line % height + P
        at = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
        x = at + P
        channel = (tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
        in_channels = channel < C
        total = tl.zeros((PIXELS, CHANNELS), tl.float32)
        # A pixel lies in at most ceil(K / S) windows each way: the last that begins at or before
        # it, and those before that one.
        for i in tl.static_range((K + S - 1) // S):
            out_y = y // S - i
            in_y = y - out_y * S
            row = (image * out_height + out_y).to(tl.int64) * out_width * C
            row_there = (out_y >= 0) & (out_y < out_height) & (in_y < K)
            for j in tl.static_range((K + S - 1) // S):
                out_x = x // S - j
                in_x = x - out_x * S
                there = row_there & (out_x >= 0) & (out_x < out_width) & (in_x < K) & (at < width)
                mask = there[:, None] & in_channels
                source = row + (out_x * C)[:, None] + channel
                place = tl.load(places + source, mask=mask, other=255).to(tl.int32)
                value = tl.load(gradient + source, mask=mask, other=0.0).to(tl.float32)
                total += tl.where(place == (in_y * K + in_x)[:, None], value, 0.0)
        target = line.to(tl.int64) * width * C + (at * C)[:, None] + channel
        inside = (at < width)[:, None] & in_channels
        tl.store(result + target, total.to(result.dtype.element_ty), mask=inside)

    return forward, backward
