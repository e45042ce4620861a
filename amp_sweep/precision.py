"""Number formats: TF32 flags, autocast inside the wrapped forward, the gradient scaler."""

import contextlib

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


def observe_dtypes(network: nn.Module, seen: set[str], active: bool = True) -> contextlib.ExitStack:
    """Collect the dtypes that convolutions and linear layers really compute in.

    Works in DataParallel's replicas too, which share their hooks. Closing the stack ends it.
    """
    stack = contextlib.ExitStack()
    if not active:
        return stack
    kinds = (nn.modules.conv._ConvNd, nn.Linear)
    layers: list[nn.Module] = [module for module in network.modules() if isinstance(module, kinds)]
    if not layers:  # an unusual network: any layer that holds parameters
        layers = [module for module in network.modules() if list(module.parameters(recurse=False))]

    def hook(_module: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and output.is_floating_point():
            seen.add(str(output.dtype).removeprefix("torch."))

    for layer in layers:
        stack.callback(layer.register_forward_hook(hook).remove)
    return stack
