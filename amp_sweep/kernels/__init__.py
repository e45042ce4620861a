"""Triton kernels for CUDA, each beside the plain PyTorch that it must agree with.

Triton comes with PyTorch's CUDA builds and is imported when a kernel is first launched.
"""
