"""Float32 master weights beside half-precision ones that the layers compute with.

Autocast casts every weight at every step and every gradient back. Here layers hold the
half-precision copy, gradients stay in half precision, and the optimizer writes both forms.
Source: Micikevicius et al., "Mixed precision training", 2018, section 3.1.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from amp_sweep.config import OptimizerConfig
from amp_sweep.fast import adamw

# The layers whose weights autocast casts; all others (norms, embeddings) stay in float32.
_HALF_LAYERS = (nn.modules.conv._ConvNd, nn.Linear)


def halve(network: nn.Module, dtype: torch.dtype) -> dict[nn.Parameter, Tensor]:
    """Put the weights that autocast would cast into `dtype`; their float32 values by parameter."""
    masters: dict[nn.Parameter, Tensor] = {}
    elsewhere = {
        parameter
        for layer in network.modules()
        if not _casts_its_weights(layer)
        for parameter in layer.parameters(recurse=False)
    }
    for layer in network.modules():
        if not _casts_its_weights(layer):
            continue
        for parameter in layer.parameters(recurse=False):
            known = parameter in masters or parameter in elsewhere
            if not known and parameter.dtype == torch.float32:
                masters[parameter] = parameter.data
                parameter.data = parameter.data.to(dtype)
    return masters


def _casts_its_weights(layer: nn.Module) -> bool:
    """Whether autocast alone uses the layer's weights: no hook and no parametrization of them."""
    plain = not layer._forward_pre_hooks and not parametrize.is_parametrized(layer)
    return isinstance(layer, _HALF_LAYERS) and plain


class MasterAdamW(torch.optim.Optimizer):
    """AdamW over half-precision parameters with float32 `masters`, and over plain ones.

    Takes the gradient scale as a tensor, as PyTorch's fused optimizers do, so that the scaler
    never waits for the device; the learning rate is a tensor, so that a CUDA graph follows it.
    """

    _step_supports_amp_scaling = True

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        masters: dict[nn.Parameter, Tensor],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        listed = list(parameters)
        device = listed[0].device
        rate = torch.tensor(lr, device=device)
        super().__init__(
            listed, {"lr": rate, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )
        self._count = torch.zeros((), device=device)
        for parameter in listed:
            master = masters.get(parameter, parameter.data)
            self.state[parameter] = {
                "master": master,
                "exp_avg": torch.zeros_like(master),
                "exp_avg_sq": torch.zeros_like(master),
            }

    def masters(self) -> dict[nn.Parameter, Tensor]:
        """The float32 values of the parameters that are in half precision."""
        return {
            parameter: self.state[parameter]["master"]
            for parameter in self.param_groups[0]["params"]
            if parameter.dtype != torch.float32
        }

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update from the parameters' gradients; a step with a non-finite one is skipped."""
        if closure is not None:
            raise ValueError("a closure has no meaning here")
        (group,) = self.param_groups
        beta1, beta2 = group["betas"]
        scalars = adamw.scalars(
            self._count,
            group["lr"],
            getattr(self, "grad_scale", None),
            getattr(self, "found_inf", None),
            beta1,
            beta2,
            group["weight_decay"],
        )
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            adamw.update(
                parameter,
                state["master"],
                state["exp_avg"],
                state["exp_avg_sq"],
                parameter.grad,
                scalars,
                beta1,
                beta2,
                group["eps"],
            )

    def state_dict(self) -> dict[str, Any]:
        """As every optimizer's, with the number of steps beside it."""
        return {**super().state_dict(), "count": self._count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy the state into place: the stock method would cast it to half precision."""
        self._count.copy_(state_dict["count"])
        (group,), (saved,) = self.param_groups, state_dict["param_groups"]
        for index, parameter in enumerate(group["params"]):
            for name, value in state_dict["state"][index].items():
                self.state[parameter][name].copy_(value)
            parameter.data.copy_(self.state[parameter]["master"])
        group["lr"].fill_(float(saved["lr"]))
        group.update({k: v for k, v in saved.items() if k not in ("params", "lr")})


def build_optimizer(
    parameters: Iterable[nn.Parameter],
    masters: dict[nn.Parameter, Tensor],
    config: OptimizerConfig,
) -> MasterAdamW:
    """AdamW as `config` has it, over parameters of which some are in half precision."""
    return MasterAdamW(
        parameters,
        masters,
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
    )


def float32_state(network: nn.Module, masters: dict[nn.Parameter, Tensor]) -> dict[str, Tensor]:
    """The network's state_dict with its masters in place of half-precision weights."""
    by_name = {
        name: masters[parameter]
        for name, parameter in network.named_parameters(remove_duplicate=False)
        if parameter in masters
    }
    return {**network.state_dict(), **by_name}
