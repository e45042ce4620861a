"""Imported first by the server that forks ranks: memory of CPU tensors stays, in large pages.

What a step frees, the C library gives back to the kernel, and the next step takes it again, a
fault for every 4 KiB: with autocast, whose copies of the weights come and go at each step, up to a
third of the time. So freed memory stays with the process, and what is too large for that comes in
pages of 2 MiB. What the environment says of either is left as it is.
"""

import ctypes
import os
import re
import sys
from pathlib import Path

# PyTorch asks for large pages, for tensors of 2 MiB and more, where this is 1 before its first
# tensor (c10/core/impl/alloc_cpu.cpp).
LARGE_PAGES = "THP_MEM_ALLOC_ENABLE"
KERNELS_PAGES = Path("/sys/kernel/mm/transparent_hugepage")

# From glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 2**30  # what lies free at the heap's end goes back beyond that
_FROM_THE_HEAP_BYTES = 2**25  # the largest block that may be kept: glibc's own limit
# They choose otherwise, or another allocator.
SET_OUTSIDE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def _keep() -> bool:
    """Keep what is freed; False where the C library cannot, or the environment decides."""
    if any(name in os.environ for name in SET_OUTSIDE):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library, another system
        return False
    return bool(
        mallopt(_MMAP_THRESHOLD, _FROM_THE_HEAP_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    )


def _ask_for_large_pages() -> bool:
    """Whether PyTorch asks for them; too late where it was there already."""
    in_time = "torch" not in sys.modules or LARGE_PAGES in os.environ
    return os.environ.setdefault(LARGE_PAGES, "1") == "1" and in_time


KEPT = _keep()
ASKED = _ask_for_large_pages()


def huge_pages() -> bool:
    """Whether large tensors of this process lie in pages of 2 MiB, if the kernel has some left."""
    try:
        modes = (KERNELS_PAGES / "enabled").read_text(encoding="ascii")
        size = int((KERNELS_PAGES / "hpage_pmd_size").read_text(encoding="ascii"))
    except (OSError, ValueError):  # not Linux, or built without them
        return False
    mode = re.search(r"\[(\w+)\]", modes)
    if mode is None or size > 2**21:  # no tensor of some MiB fills a larger one
        return False
    return mode[1] == "always" or (mode[1] == "madvise" and ASKED)
