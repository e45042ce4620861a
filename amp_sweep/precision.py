"""Number formats: TF32 flags, autocast inside the wrapped forward, the gradient scaler."""

import contextlib
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def autocast_dtype(autocast: bool, dtype: str, device_type: str) -> torch.dtype | None:
    """The dtype autocast computes in; None without autocast. `auto` is PyTorch's default."""
    if not autocast:
        return None
    return DTYPES[dtype] if dtype != "auto" else torch.get_autocast_dtype(device_type)


def set_tf32(enabled: bool) -> None:
    """Set TF32 for convolutions and matrix products alike (PyTorch's defaults differ)."""
    torch.backends.cuda.matmul.allow_tf32 = enabled
    torch.backends.cudnn.allow_tf32 = enabled


def make_scaler(
    enabled: bool, device_type: str, init_scale: float, growth_interval: int
) -> torch.amp.GradScaler:
    """A gradient scaler; a disabled one passes everything through."""
    return torch.amp.GradScaler(
        device_type, init_scale=init_scale, growth_interval=growth_interval, enabled=enabled
    )


class ClassifierLoss(nn.Module):
    """A network and its cross-entropy in one forward, with autocast entered inside.

    DataParallel starts new threads for its replicas, and only what is entered inside the
    wrapped forward holds there with its dtype: outside, bfloat16 silently becomes float16.
    """

    def __init__(self, network: nn.Module, device_type: str, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.network = network
        self.device_type = device_type
        self.dtype = dtype

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        if self.dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device_type, dtype=self.dtype)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean loss [1] of images [B, 3, H, W] and labels [B]; one element per replica."""
        with self._autocast():
            return F.cross_entropy(self.network(images), labels).reshape(1)

    def logits(self, images: Tensor) -> Tensor:
        """Logits [B, outputs] as float32, in the same precision as training."""
        with self._autocast():
            scores: Tensor = self.network(images)
        return scores.float()


@dataclass
class Observed:
    """What the first step was seen to compute in, and on."""

    # Of convolutions and linear layers (of a network without: of layers with parameters).
    dtypes: set[str] = field(default_factory=set)
    # device -> kind of layer (convolution, linear, other, loss) -> dtypes of its results
    by_device: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    # device -> shape of the images that reached it, and whether they lay channels last
    images: dict[str, tuple[tuple[int, ...], bool]] = field(default_factory=dict)

    def add(self, kind: str, result: object) -> None:
        """A layer of this kind gave this result."""
        if isinstance(result, Tensor) and result.is_floating_point():
            name = str(result.dtype).removeprefix("torch.")
            kinds = self.by_device.setdefault(str(result.device), {})
            kinds.setdefault(kind, set()).add(name)
            if kind != "loss":
                self.dtypes.add(name)


def _kind_of(layer: nn.Module) -> str:
    if isinstance(layer, nn.modules.conv._ConvNd):
        return "convolution"
    return "linear" if isinstance(layer, nn.Linear) else "other"


def observe(module: nn.Module, seen: Observed, active: bool = True) -> contextlib.ExitStack:
    """Collect what layers really compute in, and what reaches a `ClassifierLoss`.

    Works in DataParallel's replicas too, which share their hooks. Closing the stack ends it.
    """
    stack = contextlib.ExitStack()
    if not active:
        return stack
    layers = [layer for layer in module.modules() if _kind_of(layer) != "other"]
    if not layers:  # an unusual network: any layer that holds parameters
        layers = [layer for layer in module.modules() if list(layer.parameters(recurse=False))]

    def watch(layer: nn.Module, kind: str) -> None:
        def hook(_module: nn.Module, _inputs: object, result: object) -> None:
            seen.add(kind, result)

        stack.callback(layer.register_forward_hook(hook).remove)

    for layer in layers:
        watch(layer, _kind_of(layer))
    if isinstance(module, ClassifierLoss):
        watch(module, "loss")

        def arrived(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            images = inputs[0]
            last = images.is_contiguous(memory_format=torch.channels_last)
            seen.images[str(images.device)] = (tuple(images.shape), last)

        stack.callback(module.register_forward_pre_hook(arrived).remove)
    return stack
