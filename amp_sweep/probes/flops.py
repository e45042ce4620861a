"""Floating-point operations of a training step, by PyTorch's counter."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

# Enough for batch norm, which wants two values per channel.
IMAGES = 2


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
    with FlopCounterMode(display=False) as counter:
        loss = F.cross_entropy(network(images), labels)
        forward = counter.get_total_flops()
        loss.backward()  # type: ignore[no-untyped-call]
    return forward / IMAGES, counter.get_total_flops() / IMAGES
