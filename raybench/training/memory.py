"""The memory of a worker: its peak, what data may stay there whole, and freed memory that is kept.

A step on a CPU allocates its activations and frees them again. Left alone, glibc gives such
memory back to the system at once, and the next step pays for every page of it anew: for
`mnist_large` that is 50 to 80 MB a step, or thousands of page faults. In a thread other than a
process's first (Ray Train's) it cannot be told otherwise later on, so it is said by environment,
before a worker starts; other systems and allocators do not read it. No result depends on it.
"""

import contextlib
import ctypes
import math
import resource
import sys
from pathlib import Path

from raybench.data.dataset import Dataset, Split
from raybench.data.inputs import parts, sample_shape
from raybench.spec.run import RunSpec

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FORGET_PEAK = "5"
"""Written to RESET it sets the peak to what the process has now (proc(5), since Linux 4.0)."""


def forget_peak() -> None:
    """Let the peak begin anew, where the system can do it."""
    with contextlib.suppress(OSError):
        RESET.write_text(FORGET_PEAK)


def peak_bytes() -> int | None:
    """Return the most resident memory since `forget_peak`; None where it is not known."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return _peak_of_life()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return found[0] if found else None


def _peak_of_life() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


SHARE = 0.5
"""Of the memory that is free before any are there: what all samples of a run may take of it."""
MOST_VALUES = 2**25
"""Numbers that go into a model, or come out of it, in one forward pass of an evaluation."""


def num_bytes(split: Split) -> int:
    """Return the bytes of inputs and labels, which are arrays."""
    return sum(one.nbytes for one in parts(split.arrays)) + split.labels.nbytes


class Room:
    """The memory for the samples of a run, whose splits ask for their part one after another."""

    def __init__(self, free_bytes: int) -> None:
        """`free_bytes`: before any split is there."""
        self._left = SHARE * free_bytes

    def takes(self, split: Split) -> bool:
        """Whether a split may lie there whole; then its room is taken."""
        wanted = num_bytes(split)
        if wanted > self._left:
            return False
        self._left -= wanted
        return True


def evaluation_batch(spec: RunSpec, dataset: Dataset, most: int) -> int:
    """Return the samples of a forward pass of an evaluation: `most`, or fewer large ones.

    As many as in a pass of training at least, which are known to have room.
    """
    shapes = parts(sample_shape(dataset.train.inputs))
    values = sum(math.prod(shape) for shape in shapes)
    if dataset.task == "language_modelling":
        values = max(values, dataset.num_outputs * math.prod(dataset.train.labels.shape[1:]))
    return min(most, max(spec.batch_size_per_worker, MOST_VALUES // max(1, values), 1))


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
