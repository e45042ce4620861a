"""The networks: AlexNet with a width, torchvision's classifiers, a person's own."""

import importlib
import inspect
import traceback
from collections.abc import Callable

import torch
from torch import Tensor, nn

from amp_sweep.config import is_own_callable


class ModelError(Exception):
    """A network that cannot be built or used as asked; the message is for a person."""


class NotBuilt(ModelError):
    """An own callable raised; it may accept another number of outputs."""


class AlexNet(nn.Module):
    """torchvision's AlexNet with every hidden channel count multiplied by `width`.

    Images [B, 3, H, W] float, H and W at least 63, to logits [B, outputs]. At width 1 the
    layers, their order, their initialisation and the state_dict are torchvision's.
    Source: Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014.
    """

    def __init__(self, outputs: int, width: float = 1.0) -> None:
        super().__init__()

        def scaled(channels: int) -> int:
            return max(1, round(channels * width))

        c1, c2, c3, c4, c5 = (scaled(c) for c in (64, 192, 384, 256, 256))
        hidden = scaled(4096)
        self.features = nn.Sequential(
            nn.Conv2d(3, c1, kernel_size=11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(c1, c2, kernel_size=5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(c2, c3, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(c3, c4, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(c4, c5, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential(
            nn.Dropout(p=0.5),
            nn.Linear(c5 * 6 * 6, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(p=0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, outputs),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, outputs] of images [B, 3, H, W]."""
        features = torch.flatten(self.avgpool(self.features(images)), 1)
        logits: Tensor = self.classifier(features)
        return logits


def _own(name: str) -> Callable[..., nn.Module]:
    module_name, _, attribute = name.partition(":")
    try:
        target = importlib.import_module(module_name)
        for part in attribute.split("."):
            target = getattr(target, part)
    except ImportError as error:
        raise ModelError(f"model.name={name}: cannot import {module_name} ({error})") from error
    except AttributeError as error:
        raise ModelError(f"model.name={name}: {module_name} has no {attribute!r}") from error
    except Exception as error:  # a person's own code may raise anything
        what = f"{type(error).__name__}: {error}"
        raise ModelError(f"model.name={name}: cannot import {module_name} ({what})") from error
    if not callable(target):
        raise ModelError(f"model.name={name}: {attribute!r} is not callable")
    return target


def _torchvision(name: str, outputs: int) -> nn.Module:
    from torchvision import models as classifiers  # late: its import takes longer than torch's

    # Only the classifiers live directly under torchvision.models.
    known = classifiers.list_models(module=classifiers)
    if name not in known:
        raise ModelError(
            f"model.name={name}: allowed are alexnet, torchvision's classification models "
            f"({', '.join(known[:3])}, ...) or package.module:callable"
        )
    builder = classifiers.get_model_builder(name)
    extra: dict[str, bool] = {}
    # GoogLeNet and Inception return extra outputs in training unless told otherwise.
    if name in ("googlenet", "inception_v3"):
        extra = {"aux_logits": False, "init_weights": True}
    model: nn.Module = builder(weights=None, num_classes=outputs, **extra)
    return model


def build(
    name: str, outputs: int, *, width: float | None = None, dropout: float | None = None
) -> nn.Module:
    """A new network with `outputs` logits, initialised from torch's current RNG, on the CPU.

    An own callable is called with `num_classes=outputs`. `dropout` replaces the probability of
    every `nn.Dropout`. Raises ModelError.
    """
    if name == "alexnet":
        model: nn.Module = AlexNet(outputs, 1.0 if width is None else width)
    elif is_own_callable(name):
        made = _own(name)
        try:
            inspect.signature(made).bind(num_classes=outputs)
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"model.name={name}: must take num_classes=N by keyword ({error})"
            ) from error
        try:
            model = made(num_classes=outputs)
        except Exception as error:  # a person's own code may raise anything
            last = traceback.format_exc().rstrip()
            raise NotBuilt(f"model.name={name}: could not be built\n{last}") from error
        if not isinstance(model, nn.Module):
            raise ModelError(f"model.name={name}: returned {type(model).__name__}, not a module")
    else:
        model = _torchvision(name, outputs)
    if dropout is not None:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = dropout
    return model


def _runs_at(model: nn.Module, size: int, refusals: tuple[type[Exception], ...]) -> bool:
    # Batch norm in training mode needs two values per channel; the smallest size is for training.
    images = torch.empty(2, 3, size, size, device="meta")
    try:
        model(images)
    except refusals:
        return False
    return True


def build_for_shapes(name: str, outputs: int, *, width: float | None = None) -> nn.Module:
    """`build` on the meta device, without values; on the CPU where a network needs some.

    RegNet, say, computes its widths with tensors while it is built. Raises ModelError.
    """
    try:
        with torch.device("meta"):
            return build(name, outputs, width=width)
    except (RuntimeError, NotBuilt):  # of torchvision's, of a person's own
        return build(name, outputs, width=width)


def check_image_size(
    name: str, image_size: int, *, width: float | None = None, outputs: int = 2
) -> None:
    """Raise ModelError, with the size needed, when images are too small for the network.

    Shapes only, on the meta device: nothing is computed. Own callables are built for real; one
    that runs at no size passes: size is not its problem (it may need values, which that device
    lacks, or be faulty), and training tells what is.
    """
    own = is_own_callable(name)
    # A person's own code may raise anything.
    refusals = (Exception,) if own else (RuntimeError, ValueError, AssertionError)
    if own:
        model = build(name, outputs).to("meta")
    else:
        model = build_for_shapes(name, outputs, width=width).to("meta")
    model.train()
    if _runs_at(model, image_size, refusals):
        return
    sizes = (2**k for k in range(3, 11))
    working = next((size for size in sizes if _runs_at(model, size, refusals)), None)
    if working is None:
        if own:
            return
        raise ModelError(f"model.name={name} does not accept images of {image_size} px")
    low, high = working // 2, working
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _runs_at(model, middle, refusals) else (middle, high)
    if image_size > high:
        raise ModelError(
            f"data.image_size={image_size}: {name} does not accept it; it accepts {high}"
        )
    raise ModelError(
        f"data.image_size={image_size} is too small for {name}: it needs at least {high}"
    )
