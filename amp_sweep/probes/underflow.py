"""Did the scaler matter? Gradients that are zero in half precision and not in float32."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from amp_sweep.precision import ClassifierLoss

# A scale that is too large gives infinities; a scaler would halve it, so do we.
HALVINGS = 24


@dataclass(frozen=True)
class Underflow:
    """Shares of all gradient elements that half precision turned to zero."""

    unscaled: float
    scaled: float  # with `scale`
    scale: float  # the asked one, halved while it overflowed


@contextlib.contextmanager
def _without_dropout(network: nn.Module) -> Iterator[None]:
    """Dropout layers pass everything: on a GPU their masks depend on the number format."""
    layers = [
        module
        for module in network.modules()
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training
    ]
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()


def measure(
    loss: ClassifierLoss,
    batches: Sequence[tuple[Tensor, Tensor]],
    scale: float,
    seed: int = 0,
) -> Underflow:
    """The share of gradient elements that are zero in the loss's own number format while they
    are not in float32, on the same batches and random numbers, without a scale and with one.

    loss: computes in half precision. Its weights are not changed, its gradients are dropped.
    """
    exact = ClassifierLoss(loss.network, loss.device_type, None)
    parameters = [parameter for parameter in loss.parameters() if parameter.requires_grad]

    def gradients(images: Tensor, labels: Tensor, by: float) -> list[Tensor]:
        torch.manual_seed(seed)
        return _gradients(loss(images, labels).mean() * by, parameters)

    def exact_gradients(images: Tensor, labels: Tensor) -> list[Tensor]:
        torch.manual_seed(seed)
        if all(parameter.dtype == torch.float32 for parameter in parameters):
            return _gradients(exact(images, labels).mean(), parameters)
        # Layers may hold half-precision weights beside float32 masters.
        state = {
            name: value.detach().float().requires_grad_(value.requires_grad)
            for name, value in exact.named_parameters()
        }
        value = functional_call(exact, state, (images, labels))
        return _gradients(value.mean(), [item for item in state.values() if item.requires_grad])

    loss.train()
    lost = {"unscaled": 0, "scaled": 0}
    elements = 0
    with _without_dropout(loss.network):
        for images, labels in batches:
            # As flags of a byte: the values themselves would be another copy of the weights.
            nonzero = [gradient != 0 for gradient in exact_gradients(images, labels)]
            elements += sum(flags.numel() for flags in nonzero)
            lost["unscaled"] += _zero_among(gradients(images, labels, 1.0), nonzero)
            for _ in range(HALVINGS):
                found = gradients(images, labels, scale)
                if all(bool(torch.isfinite(gradient).all()) for gradient in found):
                    break
                scale /= 2
            lost["scaled"] += _zero_among(found, nonzero)
    return Underflow(lost["unscaled"] / elements, lost["scaled"] / elements, scale)


def _gradients(value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    return [
        torch.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(parameters, found, strict=True)
    ]


def _zero_among(gradients: Sequence[Tensor], nonzero: Sequence[Tensor]) -> int:
    counts = [
        ((gradient == 0) & flags).sum() for gradient, flags in zip(gradients, nonzero, strict=True)
    ]
    return int(torch.stack(counts).sum())
