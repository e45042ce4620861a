"""AdamW on float32 master weights, with the half-precision copy written in the same pass.

A step reads gradient (2 bytes an element), master and moments (12) and writes master, moments
and the half copy (14): 28 bytes where unscaling, AdamW and autocast's casts apart move 52.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

# A kernel reads its scalars from the device, so that a CUDA graph need not bake them in.
SCALARS = ("step_size", "denominator_factor", "decay", "inverse_scale", "skip")
_BLOCK = 1024


def update_reference(
    weights: Tensor,
    master: Tensor,
    average: Tensor,
    square: Tensor,
    gradient: Tensor,
    scalars: Tensor,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """One AdamW update in place, in PyTorch: the oracle of `update`, and what a CPU runs.

    `weights` and `gradient` are half precision, the others float32, all of one shape; `scalars`
    float32 [5] as `SCALARS` names them. Source: Loshchilov and Hutter, "Decoupled weight decay
    regularization", 2019, algorithm 2.
    """
    step_size, denominator_factor, decay, inverse_scale, skip = scalars.unbind()
    keep = skip != 0
    unscaled = gradient.float() * inverse_scale
    new_average = average + (unscaled - average) * (1 - beta1)
    new_square = square * beta2 + unscaled * unscaled * (1 - beta2)
    denominator = new_square.sqrt() * denominator_factor + eps
    new_master = master * decay - step_size * new_average / denominator
    average.copy_(torch.where(keep, average, new_average))
    square.copy_(torch.where(keep, square, new_square))
    master.copy_(torch.where(keep, master, new_master))
    weights.copy_(master)


def scalars_reference(
    step: Tensor,
    lr: Tensor,
    scale: Tensor | None,
    found_inf: Tensor | None,
    beta1: float,
    beta2: float,
    weight_decay: float,
) -> Tensor:
    """Count the step, unless it is skipped, and give the `SCALARS` of its update."""
    skip = torch.zeros_like(step) if found_inf is None else found_inf.reshape(()).float()
    step += 1 - skip
    exponent = step.double()
    correction1 = 1 - beta1**exponent
    correction2 = 1 - beta2**exponent
    inverse = torch.ones_like(step) if scale is None else 1 / scale.reshape(()).float()
    values = (
        (lr.double() / correction1).float(),
        correction2.rsqrt().float(),
        (1 - lr.double() * weight_decay).float(),
        inverse,
        skip,
    )
    return torch.stack([value.reshape(()) for value in values])


def scalars(
    step: Tensor,
    lr: Tensor,
    scale: Tensor | None,
    found_inf: Tensor | None,
    beta1: float,
    beta2: float,
    weight_decay: float,
) -> Tensor:
    """`scalars_reference` as one launch on CUDA."""
    if step.device.type != "cuda":
        return scalars_reference(step, lr, scale, found_inf, beta1, beta2, weight_decay)
    kernel, _ = _compiled()
    out = torch.empty(len(SCALARS), device=step.device)
    with_scale = scale is not None
    kernel[(1,)](
        step,
        lr,
        scale if scale is not None else step,
        found_inf if found_inf is not None else step,
        out,
        beta1,
        beta2,
        weight_decay,
        with_scale,
    )
    return out


def update(
    weights: Tensor,
    master: Tensor,
    average: Tensor,
    square: Tensor,
    gradient: Tensor,
    scalars: Tensor,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """`update_reference` in one pass on CUDA, over tensors that lie in memory alike."""
    if weights.device.type != "cuda":
        update_reference(weights, master, average, square, gradient, scalars, beta1, beta2, eps)
        return
    if gradient.stride() != weights.stride():
        gradient = torch.empty_like(weights).copy_(gradient)
    _, kernel = _compiled()
    size = weights.numel()
    blocks = -(-size // _BLOCK)
    kernel[(blocks,)](
        weights, master, average, square, gradient, scalars, size, beta1, beta2, eps, _BLOCK
    )


@lru_cache(maxsize=1)
def _compiled() -> tuple[Any, Any]:
    import triton
    import triton.language as tl

    # As arguments the betas would be float32, in which 1 - 0.999 is off by 5e-5; as constants they
    # are not. (Triton reads a kernel's annotations, so other parameters carry none.)
    @triton.jit  # type: ignore[untyped-decorator]
    def scalars_kernel(  # type: ignore[no-untyped-def]
        step, lr, scale, found_inf, out,
        BETA1: tl.constexpr, BETA2: tl.constexpr, DECAY: tl.constexpr, WITH_SCALE: tl.constexpr,
    ):  # fmt: skip
        skip = 0.0
        inverse = 1.0
        if WITH_SCALE:
            skip = tl.load(found_inf)
            inverse = 1.0 / tl.load(scale)
        count = tl.load(step) + (1.0 - skip)
        tl.store(step, count)
        exponent = count.to(tl.float64)
        correction1 = 1.0 - tl.exp2(exponent * tl.log2(tl.full((), BETA1, tl.float64)))
        correction2 = 1.0 - tl.exp2(exponent * tl.log2(tl.full((), BETA2, tl.float64)))
        rate = tl.load(lr).to(tl.float64)
        tl.store(out, (rate / correction1).to(tl.float32))
        tl.store(out + 1, (1.0 / tl.sqrt(correction2)).to(tl.float32))
        tl.store(out + 2, (1.0 - rate * DECAY).to(tl.float32))
        tl.store(out + 3, inverse)
        tl.store(out + 4, skip)

    @triton.jit  # type: ignore[untyped-decorator]
    def update_kernel(  # type: ignore[no-untyped-def]
        weights, master, average, square, gradient, scalars, size,
        BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        if tl.load(scalars + 4) != 0.0:
            return
        step_size = tl.load(scalars)
        factor = tl.load(scalars + 1)
        decay = tl.load(scalars + 2)
        inverse = tl.load(scalars + 3)
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < size
        g = tl.load(gradient + at, mask=inside).to(tl.float32) * inverse
        m = tl.load(average + at, mask=inside)
        v = tl.load(square + at, mask=inside)
        w = tl.load(master + at, mask=inside) * decay
        m += (g - m) * (1.0 - BETA1)
        v = v * BETA2 + g * g * (1.0 - BETA2)
        w -= step_size * m / (tl.sqrt(v) * factor + EPS)
        tl.store(average + at, m, mask=inside)
        tl.store(square + at, v, mask=inside)
        tl.store(master + at, w, mask=inside)
        tl.store(weights + at, w.to(weights.dtype.element_ty), mask=inside)

    return scalars_kernel, update_kernel
