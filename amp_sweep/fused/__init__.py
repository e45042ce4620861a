"""The same training in fewer passes over memory: layers, the optimizer and their kernels.

Beside each Triton kernel stands the plain PyTorch that it must agree with, which runs where there
is no CUDA. Triton comes with PyTorch's CUDA builds and is imported when a kernel is first launched.
"""
