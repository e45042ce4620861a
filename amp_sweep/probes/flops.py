"""Floating-point operations of a training step, by PyTorch's counter."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

# Enough for batch norm, which wants two values per channel.
IMAGES = 2


def _convolution_backward(
    result: torch.Size,
    images: torch.Size,
    weight: torch.Size,
    bias: object,
    stride: object,
    padding: object,
    dilation: object,
    transposed: bool,
    output_padding: object,
    groups: int,
    wanted: Sequence[bool],
    **_: Any,
) -> int:
    """The gradients of images and weights take what the forward pass takes, each.

    PyTorch's own formula (2.14) takes the weights' gradient `groups` times: a depthwise
    convolution of 960 channels would count 960 times.
    """
    forward: int = conv_flop_count(list(images), list(weight), list(result), transposed=transposed)
    return sum(wanted[:2]) * forward


def per_image(network: nn.Module, size: int) -> tuple[float, float]:
    """FLOPs per image, `size` pixels high and wide, of the forward pass of `network`, and of its
    forward and backward pass together. From shapes alone where it lies on the meta device.

    A multiplication and an addition are two. Convolutions and matrix products are counted, from
    their shapes; element-wise work and the optimizer are not. The first layer's gradient
    towards the images is not computed and not counted.
    """
    device = next(network.parameters()).device
    images = torch.zeros(IMAGES, 3, size, size, device=device)
    labels = torch.zeros(IMAGES, dtype=torch.int64, device=device)
    network.train()
    mapping = {torch.ops.aten.convolution_backward: _convolution_backward}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        loss = F.cross_entropy(network(images), labels)
        forward = counter.get_total_flops()
        loss.backward()  # type: ignore[no-untyped-call]
    return forward / IMAGES, counter.get_total_flops() / IMAGES
