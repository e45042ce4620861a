"""The same network in layers that move less memory: equal mathematics, other sums."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from amp_sweep.fused import pooling

# Fewer channels than this leave most of a tensor core's inner dimension empty.
_FEW_CHANNELS = 4


class SpaceToDepthConv2d(nn.Conv2d):
    """A strided convolution of few channels as a convolution of s x s pixel blocks.

    With stride s every block of s x s pixels becomes one pixel with s * s times the channels,
    and the kernel, padded with zeros to a multiple of s, moves in steps of one. Weights, their
    names and the results are those of `nn.Conv2d`, up to the order of summation.
    """

    def forward(self, images: Tensor) -> Tensor:
        """As `nn.Conv2d`: images [B, C, H, W]."""
        stride, (height, width) = self.stride[0], self.kernel_size
        top, left = (int(pad) for pad in self.padding)
        rows, columns = -(-height // stride), -(-width // stride)  # blocks that a kernel covers
        batch, channels, tall, wide = images.shape
        out_tall = (tall + 2 * top - height) // stride + 1
        out_wide = (wide + 2 * left - width) // stride + 1
        down, across = out_tall - 1 + rows, out_wide - 1 + columns  # blocks of the image
        padded = F.pad(
            images, (left, across * stride - wide - left, top, down * stride - tall - top)
        )
        blocks = (
            padded.view(batch, channels, down, stride, across, stride)
            .permute(0, 2, 4, 1, 3, 5)
            .reshape(batch, down, across, channels * stride**2)
            .permute(0, 3, 1, 2)
        )
        kernel = (
            F.pad(self.weight, (0, columns * stride - width, 0, rows * stride - height))
            .view(-1, channels, rows, stride, columns, stride)
            .permute(0, 2, 4, 1, 3, 5)
            .reshape(-1, rows, columns, channels * stride**2)
            .permute(0, 3, 1, 2)
        )
        return F.conv2d(blocks, kernel, self.bias)

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        """Whether `layer` is a convolution that this one can stand for."""
        return (
            type(layer) is nn.Conv2d
            and layer.in_channels <= _FEW_CHANNELS
            and layer.stride[0] == layer.stride[1] >= 2
            and layer.dilation == (1, 1)
            and layer.groups == 1
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
        )


class ReluMaxPool2d(nn.Module):
    """ReLU followed by max pooling with square windows, as one layer."""

    def __init__(self, kernel: int, stride: int, padding: int) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding = kernel, stride, padding

    def forward(self, images: Tensor) -> Tensor:
        """Images [B, C, H, W]."""
        return pooling.relu_max_pool(images, self.kernel, self.stride, self.padding)


def fuse(network: nn.Module) -> nn.Module:
    """`network`, in place, with the layers above where they fit; its state_dict keeps its names."""
    for parent in list(network.modules()):
        if SpaceToDepthConv2d.fits(parent):
            parent.__class__ = SpaceToDepthConv2d
        if isinstance(parent, nn.Sequential):
            _fuse_pooling(parent)
    return network


def _fuse_pooling(sequence: nn.Sequential) -> None:
    for index in range(len(sequence) - 1):
        first, second = sequence[index], sequence[index + 1]
        if type(first) is nn.ReLU and isinstance(second, nn.MaxPool2d) and _is_plain(second):
            sequence[index] = nn.Identity()
            kernel, stride, padding = (int(v) for v in _sizes(second))
            sequence[index + 1] = ReluMaxPool2d(kernel, stride, padding)


def _sizes(layer: nn.MaxPool2d) -> tuple[Any, Any, Any]:
    return layer.kernel_size, layer.stride, layer.padding


def _is_plain(layer: nn.MaxPool2d) -> bool:
    """Whether it has square windows and nothing unusual."""
    return (
        type(layer) is nn.MaxPool2d
        and all(isinstance(size, int) for size in _sizes(layer))
        and layer.dilation == 1
        and not layer.ceil_mode
        and not layer.return_indices
    )
