"""Imported first by the server that forks ranks: large CPU tensors in pages of 2 MiB.

What a step frees, the C library gives back to the kernel, and the next step takes it again, a
fault for every 4 KiB: with autocast, whose copies of the weights come and go at each step, a fifth
of the time. PyTorch asks for pages of 2 MiB for tensors of that size and more where this variable
is set before its first tensor (c10/core/impl/alloc_cpu.cpp). 0, from outside, leaves it off.
"""

import os

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
