"""The same training in less time on the device: a layer, the optimizer and its kernel.

Beside the Triton kernel stands the plain PyTorch that it must agree with, which runs where there
is no CUDA. Triton comes with PyTorch's CUDA builds and is imported when a kernel is first launched.
"""
