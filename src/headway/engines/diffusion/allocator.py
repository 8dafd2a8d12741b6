"""What the C library does with memory that tensors on the CPU have freed: it keeps it.

Every forward pass frees all its activations, and glibc gives a large block, or the top of its heap, back to the
system; the next pass faults it in again, page by page. Measured on the tiny model: of a pass of eight pictures of
256 px 14 % of the CPU time, of sixteen of 64 px 26 %, which is more than the batch gains.
"""

import ctypes
from typing import Final

# `mallopt`'s names in malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
KEPT_BYTES: Final = 1 << 30  # of what is freed at the top of the heap; what is above goes back to the system
BLOCK_BYTES_MAX: Final = 1 << 28  # larger blocks are mapped by themselves, and go back
_STEP_BYTES: Final = 1 << 26  # by which the heap grows


def keep_freed_memory() -> bool:
    """Keep up to `KEPT_BYTES` of freed memory in this process, from now on. False: the C library has no such setting.

    One arena, since those of threads are heaps of 64 MiB that are given back whole.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = (
        (_ARENA_MAX, 1),
        (_MMAP_THRESHOLD, BLOCK_BYTES_MAX),
        (_TRIM_THRESHOLD, KEPT_BYTES),
        (_TOP_PAD, _STEP_BYTES),
    )
    taken = [mallopt(name, value) for name, value in settings]
    return all(taken)
