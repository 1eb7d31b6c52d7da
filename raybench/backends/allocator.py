"""Freed memory is kept for the next step, where the system's allocator can be told so.

A step on a CPU allocates its activations and frees them again. Left alone, glibc gives such
memory back to the system at once, and the next step pays for every page of it anew: for
`mnist_large` that is 50 to 80 MB a step, or thousands of page faults. In a thread other than a
process's first (Ray Train's) it cannot be told otherwise later on, so it is said by environment,
before a worker starts; other systems and allocators do not read it. No result depends on it.
"""

import ctypes

KEPT_BYTES = 2**30
"""So much freed memory stays, and no tensor below it is mapped by itself."""
ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
    "MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES),
    # Memory of any further arena lies in pieces of 64 MB, and an empty piece is given back.
    "MALLOC_ARENA_MAX": "1",
}


def give_back() -> None:
    """Return all freed memory to the system: between runs, others may need it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
