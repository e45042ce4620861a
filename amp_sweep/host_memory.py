"""Imported first by the server that forks ranks: memory of CPU tensors stays, in large pages.

What a step frees, the C library gives back to the kernel, and the next step takes it again, a
fault for every 4 KiB: with autocast, whose copies of the weights come and go at each step, a third
of the time. So freed memory stays with the process, and what is too large for that comes in pages
of 2 MiB. What the environment says of either is left as it is.
"""

import ctypes
import os

# PyTorch asks for large pages, for tensors of 2 MiB and more, where this is set before its first
# tensor (c10/core/impl/alloc_cpu.cpp).
LARGE_PAGES = "THP_MEM_ALLOC_ENABLE"

# From glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 2**30  # what lies free at the heap's end goes back beyond that
_FROM_THE_HEAP_BYTES = 2**25  # the largest block that may be kept: glibc's own limit
_SET_OUTSIDE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep() -> bool:
    """Keep what is freed; False where the environment or another C library has its own way."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in _SET_OUTSIDE):
        return False
    return bool(
        mallopt(_MMAP_THRESHOLD, _FROM_THE_HEAP_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    )


os.environ.setdefault(LARGE_PAGES, "1")
keep()
