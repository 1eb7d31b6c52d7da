"""Memory of a worker: peak usage, room for data, and freed memory that is kept for the next step.

A training step on a CPU allocates its activations and frees them again. By default, glibc returns
this memory to the system at once, so that the next step causes a page fault on every page: 50 to
80 MB per step for `mnist_large`. A running process can reconfigure glibc only from its first
thread, and Ray Train trains in another thread. Therefore `ENVIRONMENT` is set before a worker
starts. Other systems and allocators ignore these variables. They do not change results.
"""

import ctypes
import logging
import math
import resource
import sys
from pathlib import Path

import numpy as np

from raybench.data.dataset import Dataset, Split, parts
from raybench.spec.run import RunSpec

logger = logging.getLogger(__name__)

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
"""Linux's files with the memory usage of this process, and to reset its peak."""
RESET_PEAK = "5"
"""Value that, written to RESET, sets the peak to the current usage (see proc(5); Linux 4.0)."""


def reset_peak() -> bool:
    """Set the peak memory of this process to its current usage; return whether the system supports
    that."""
    try:
        RESET.write_text(RESET_PEAK)
    except OSError as error:
        logger.info("the peak memory of this process cannot be reset: %s", error)
        return False
    return True


def peak_bytes() -> int | None:
    """Return the peak resident memory in bytes since `reset_peak`; None if unknown."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:  # no /proc: the peak since the process started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return peaks[0] if peaks else None


class Memory:
    """Measures the peak of a worker's memory.

    This class measures the memory of the whole process; the backends have subclasses for GPUs.
    """

    def __init__(self) -> None:
        self._reset()

    def peak(self) -> int | None:
        """Return the peak memory in bytes since this object was created; None if unknown."""
        return peak_bytes()

    def _reset(self) -> None:
        """Set the peak to the current usage."""
        reset_peak()


SHARE = 0.5
"""Share of the machine's free memory that all samples of a run may take on a CPU."""
SHARE_OF_GPU = 0.2
"""Share of a GPU's free memory that all samples of a run may take. Gradients, optimizer state and
activations are allocated after the data. If the data left too little memory, a run would fail as if
its batch size were too large for the GPU."""
MAX_VALUES = 2**24
"""Maximum number of values that enter or leave a model in one pass of an evaluation."""
TOKEN_VALUES = 1024
"""Number of values that one token counts as, because models turn each token into a vector of about
this length."""


def num_bytes(split: Split) -> int:
    """Return the size of a split's inputs and labels in memory, in bytes."""
    return sum(array.nbytes for array in parts(split.arrays)) + split.labels.nbytes


class Room:
    """Memory that the samples of a run may take; each split that fits reserves its part."""

    def __init__(self, free_bytes: int, *, is_gpu: bool = False) -> None:
        """Create an object without reservations.

        Args:
            free_bytes: Free memory in bytes before any split is loaded.
            is_gpu: Whether this is the memory of a GPU.
        """
        self._left_bytes = (SHARE_OF_GPU if is_gpu else SHARE) * free_bytes

    def reserve(self, split: Split) -> bool:
        """Reserve memory for a whole split, if it fits; return whether it does."""
        needed = num_bytes(split)
        if needed > self._left_bytes:
            return False
        self._left_bytes -= needed
        return True


def evaluation_batch(spec: RunSpec, dataset: Dataset, largest: int) -> int:
    """Return the batch size of evaluations.

    This is `largest`, or less if the samples are large (see MAX_VALUES), but at least the batch
    size of training, which is known to fit.
    """
    values = sum(
        math.prod(array.shape[1:]) * (TOKEN_VALUES if np.dtype(array.dtype).kind == "i" else 1)
        for array in parts(dataset.train.inputs)
    )
    if dataset.task == "language_modelling":
        values = max(values, dataset.num_outputs * math.prod(dataset.train.labels.shape[1:]))
    return min(largest, max(spec.batch_size_per_worker, MAX_VALUES // max(1, values), 1))


KEPT_BYTES = 2**30
"""Number of bytes of freed memory that glibc keeps, and size of the smallest tensors that it
allocates with mmap, whose memory it would return at once."""
ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
    "MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES),
    # Further arenas consist of heaps of 64 MB, and glibc returns an empty heap to the system.
    "MALLOC_ARENA_MAX": "1",
}
"""Environment variables of workers that let glibc keep freed memory."""


def give_back() -> None:
    """Return the freed memory of this process to the system, for other processes; called after each
    run."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
