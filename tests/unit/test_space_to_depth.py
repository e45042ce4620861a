import copy

import pytest
import torch
from torch import nn

from amp_sweep.fast.space_to_depth import SpaceToDepthConv2d, convert
from amp_sweep.models import AlexNet, build


@pytest.mark.parametrize("size", [63, 64, 65, 66, 101])
def test_alexnet_on_blocks_of_pixels_gives_the_same_logits_and_gradients(size: int) -> None:
    torch.manual_seed(0)
    stock = AlexNet(10, 0.25).eval()
    converted = convert(copy.deepcopy(stock))
    images = torch.rand(2, 3, size, size)
    one, other = stock(images), converted(images)
    assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)
    one.square().sum().backward()
    other.square().sum().backward()
    for expected, found in zip(stock.parameters(), converted.parameters(), strict=True):
        assert expected.grad is not None and found.grad is not None
        scale = expected.grad.abs().max()
        assert (expected.grad - found.grad).abs().max() <= 1e-4 * scale


def test_converting_keeps_the_names_of_weights() -> None:
    stock, converted = AlexNet(10, 0.25), convert(AlexNet(10, 0.25))
    assert list(stock.state_dict()) == list(converted.state_dict())
    assert type(converted.features[0]) is SpaceToDepthConv2d


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(11, 4, 2), (7, 2, 3), (3, 2, 1), (5, 3, 0), (2, 2, 0)]
)
def test_a_convolution_of_pixel_blocks_is_the_strided_convolution(
    kernel: int, stride: int, padding: int
) -> None:
    torch.manual_seed(0)
    stock = nn.Conv2d(3, 8, kernel, stride, padding)
    converted = convert(nn.Sequential(copy.deepcopy(stock)))
    images = torch.rand(2, 3, 50, 43, dtype=torch.float32, requires_grad=True)
    again = images.detach().clone().requires_grad_()
    one, other = stock(images), converted(again)
    assert one.shape == other.shape and torch.allclose(one, other, atol=1e-5)
    one.square().sum().backward()
    other.square().sum().backward()
    assert images.grad is not None and again.grad is not None
    assert torch.allclose(images.grad, again.grad, atol=1e-5)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(64, 8, 3, stride=2),
        nn.Conv2d(3, 8, 3, stride=1),
        nn.Conv2d(3, 8, 3, stride=2, dilation=2),
        nn.Conv2d(3, 8, 3, stride=2, padding_mode="reflect", padding=1),
        nn.Conv2d(3, 8, 3, stride=(2, 1)),
        nn.ConvTranspose2d(3, 8, 3, stride=2),
    ],
)
def test_other_convolutions_stay_as_they_are(layer: nn.Module) -> None:
    assert type(convert(nn.Sequential(layer))[0]) is type(layer)


def test_a_residual_network_is_converted_at_its_first_convolution() -> None:
    torch.manual_seed(0)
    stock = build("resnet18", 10).eval()
    converted = convert(copy.deepcopy(stock))
    images = torch.rand(1, 3, 64, 64)
    assert type(converted.conv1) is SpaceToDepthConv2d
    assert torch.allclose(stock(images), converted(images), rtol=1e-3, atol=1e-4)
