"""Memory of a worker: peak usage, room for data, and freed memory that is kept for the next step.

A step on a CPU allocates its activations and frees them again. By default glibc returns this memory
to the system at once, and the next step pays for a page fault on every page: 50 to 80 MB per step
for `mnist_large`. A running process can reconfigure glibc only from its first thread, and Ray Train
uses another thread, so `ENVIRONMENT` is set before a worker starts. Other systems and allocators
ignore these variables. They do not change results.
"""

import ctypes
import logging
import math
import resource
import sys
from pathlib import Path

import numpy as np

from raybench.data.dataset import Dataset, Split
from raybench.data.inputs import parts
from raybench.spec.run import RunSpec

logger = logging.getLogger(__name__)

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Value to write to RESET to set the peak to the current usage (proc(5), since Linux 4.0)."""


def reset_peak() -> bool:
    """Reset the peak memory of this process; return whether the system supports that."""
    try:
        RESET.write_text(RESET_PEAK)
    except OSError as error:
        logger.info("the peak memory of this process cannot be reset: %s", error)
        return False
    return True


def peak_bytes() -> int | None:
    """Return the peak resident memory in bytes since `reset_peak`, or None if unknown."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:  # no /proc: the peak since the process started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return peaks[0] if peaks else None


class Memory:
    """Measures the memory of a worker's tensors. This class counts the whole process; the backends
    have a subclass for GPUs."""

    def __init__(self) -> None:
        self._reset()

    def peak(self) -> int | None:
        """Return the peak in bytes since this object was created, or None if unknown."""
        return peak_bytes()

    def _reset(self) -> None:
        reset_peak()


SHARE = 0.5
"""Share of the free memory that all samples of a run may take on a CPU."""
SHARE_OF_GPU = 0.2
"""Share of a GPU's free memory that all samples of a run may take. Gradients, optimizer state and
activations are allocated later; if data left them too little memory, the batch size would seem too
large for the GPU."""
MAX_VALUES = 2**24
"""Largest number of values that enter or leave a model in one evaluation pass."""
TOKEN_VALUES = 1024
"""Values that a token counts for: models turn it into vectors of about this length."""


def num_bytes(split: Split) -> int:
    """Return the size of inputs and labels in memory, in bytes."""
    return sum(array.nbytes for array in parts(split.arrays)) + split.labels.nbytes


class Room:
    """Memory available for the samples of a run; the splits reserve parts of it in turn."""

    def __init__(self, free_bytes: int, *, is_gpu: bool = False) -> None:
        """Create room; `free_bytes` is the free memory before any split is loaded."""
        self._left = (SHARE_OF_GPU if is_gpu else SHARE) * free_bytes

    def reserve(self, split: Split) -> bool:
        """Return whether a whole split fits, and reserve its memory if so."""
        needed = num_bytes(split)
        if needed > self._left:
            return False
        self._left -= needed
        return True


def evaluation_batch(spec: RunSpec, dataset: Dataset, largest: int) -> int:
    """Return the batch size of evaluations: `largest`, or less for large samples, but at least the
    batch size of training, which is known to fit."""
    values = sum(
        math.prod(array.shape[1:]) * (TOKEN_VALUES if np.dtype(array.dtype).kind == "i" else 1)
        for array in parts(dataset.train.inputs)
    )
    if dataset.task == "language_modelling":
        values = max(values, dataset.num_outputs * math.prod(dataset.train.labels.shape[1:]))
    return min(largest, max(spec.batch_size_per_worker, MAX_VALUES // max(1, values), 1))


KEPT_BYTES = 2**30
"""Bytes of freed memory that glibc keeps; smaller tensors are not allocated by mmap."""
ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
    "MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES),
    # Other arenas consist of pieces of 64 MB, and an empty piece is returned to the system.
    "MALLOC_ARENA_MAX": "1",
}


def give_back() -> None:
    """Return all freed memory to the system, so that other processes can use it between runs."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
