"""The first convolution of a network in a form that tensor cores like: equal mathematics."""

import torch.nn.functional as F
from torch import Tensor, nn

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


def convert(network: nn.Module) -> nn.Module:
    """`network`, in place, with this layer where it fits; its state_dict keeps its names."""
    for layer in network.modules():
        if SpaceToDepthConv2d.fits(layer):
            layer.__class__ = SpaceToDepthConv2d
    return network
