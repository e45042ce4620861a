"""Runs the Triton kernel on the CPU by Triton's interpreter and compares it with PyTorch."""

import itertools
import os

os.environ["TRITON_INTERPRET"] = "1"

import torch

from amp_sweep.fast import adamw


def check_adamw() -> None:
    count, update = adamw._compiled()
    size, beta1, beta2, eps = 3000, 0.9, 0.999, 1e-8
    for dtype, skip in itertools.product(
        (torch.float16, torch.bfloat16, torch.float32), (0.0, 1.0)
    ):
        torch.manual_seed(0)
        master, average = torch.randn(size), torch.randn(size) * 0.01
        square = torch.rand(size) * 0.01
        gradient = (torch.randn(size) * 3).to(dtype)
        ours = [master.to(dtype), master, average, square]
        theirs = [tensor.clone() for tensor in ours]
        step, again = torch.tensor(3.0), torch.tensor(3.0)
        lr, scale, found = torch.tensor(1e-2), torch.tensor(8.0), torch.tensor(skip)
        expected = adamw.scalars_reference(step, lr, scale, found, beta1, beta2, 0.01)
        scalars = torch.empty(5)
        count[(1,)](again, lr, scale, found, scalars, beta1, beta2, 0.01, True)
        assert torch.allclose(scalars, expected, rtol=1e-6) and step == again == 4 - skip
        adamw.update_reference(*theirs, gradient, expected, beta1, beta2, eps)
        update[(3,)](*ours, gradient, scalars, size, beta1, beta2, eps, 1024)
        for one, other in zip(ours[1:], theirs[1:], strict=True):
            assert torch.allclose(one, other, rtol=1e-6, atol=1e-8)
        # Rounding to half precision may fall on either side.
        rounding = torch.finfo(dtype).eps
        assert torch.allclose(ours[0].float(), theirs[0].float(), rtol=rounding)
        assert skip == 0 or torch.equal(ours[1], master)


if __name__ == "__main__":
    check_adamw()
