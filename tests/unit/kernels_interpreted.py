"""Runs the Triton kernels on the CPU by Triton's interpreter and compares them with PyTorch."""

import itertools
import os

os.environ["TRITON_INTERPRET"] = "1"

import torch

from amp_sweep.fused import adamw, pooling


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


def check_pooling() -> None:
    forward, backward = pooling._compiled()
    for kernel, stride, padding in ((3, 2, 0), (3, 2, 1), (2, 2, 0), (3, 1, 1), (5, 3, 2)):
        torch.manual_seed(0)
        images = torch.randn(2, 5, 13, 11).contiguous(memory_format=torch.channels_last)
        images[0, 0, :4, :4] = 0.0
        images[1, 1, :4, :4] = 2.0  # ties
        high, wide = (pooling._out_size(size, kernel, stride, padding) for size in (13, 11))
        pooled, places = pooling._outputs(images, high, wide)
        shape = (5, kernel, stride, padding, 16, 8)
        forward[(2 * high, 1, 1)](images, pooled, places, 13, 11, high, wide, *shape)
        stock = images.clone().requires_grad_()
        expected = pooling.relu_max_pool_reference(stock, kernel, stride, padding)
        assert torch.equal(pooled, expected)
        gradient = torch.randn(expected.shape).contiguous(memory_format=torch.channels_last)
        expected.backward(gradient)
        found = torch.empty_like(images)
        backward[(2 * 13, 1, 1)](gradient, places, found, 13, 11, high, wide, *shape)
        assert stock.grad is not None and torch.allclose(found, stock.grad, atol=1e-5)


if __name__ == "__main__":
    check_adamw()
    check_pooling()
