"""The memory of a worker: its peak, what data may stay there whole, and freed memory that is kept.

A step on a CPU allocates its activations and frees them again. Left alone, glibc gives such
memory back to the system at once, and the next step pays for every page of it anew: for
`mnist_large` that is 50 to 80 MB a step, or thousands of page faults. In a thread other than a
process's first (Ray Train's) it cannot be told otherwise later on, so it is said by environment,
before a worker starts; other systems and allocators do not read it. No result depends on it.
"""

import ctypes
import math
import resource
import sys
from pathlib import Path

import psutil

from raybench.data.dataset import Dataset, Split
from raybench.data.inputs import parts, sample_shape
from raybench.spec.run import RunSpec

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FORGET_PEAK = "5"
"""Written to RESET it sets the peak to what the process has now (proc(5), since Linux 4.0)."""


def forget_peak() -> bool:
    """Let the peak begin anew, where the system can do it; return whether it can."""
    try:
        RESET.write_text(FORGET_PEAK)
    except OSError:
        return False
    return True


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


def used_bytes() -> int:
    """Return the resident memory of now."""
    return int(psutil.Process().memory_info().rss)


class Memory:
    """The memory that a worker's tensors take, of which a backend knows that of GPUs; here that of
    the process."""

    def __init__(self) -> None:
        self._most = 0
        self._forget()

    def begin(self) -> int | None:
        """Begin a new peak; return the bytes that are taken now, None where no peak can begin."""
        self._most = max(self._most, self.peak() or 0)
        used = self._settled()
        return used if self._forget() else None

    def peak(self) -> int | None:
        """Return the most bytes since `begin`; None where it is not known."""
        return peak_bytes()

    def most(self) -> int | None:
        """Return the most bytes since this was made; None where it is not known."""
        peak = self.peak()
        return None if peak is None else max(self._most, peak)

    def _forget(self) -> bool:
        return forget_peak()

    def _settled(self) -> int:
        """Return the bytes that are taken, without what was freed and is kept."""
        give_back()
        return used_bytes()


FREE_BYTES = 2**29
"""Memory that a forward pass of an evaluation may take, however little a pass of training takes."""
NOISE_BYTES = 2**24
"""Memory that a pass may seem to take beside its samples: work space of kernels, pages of the
process."""
BYTES_OF_A_PARAMETER = 12
"""Gradient and two states of an optimizer, in float32, which stay after a step."""


def fitting_batch(few: int, most: int, taken: int, room: int) -> int:
    """Return the most samples of a forward pass, `few` doubled several times and up to `most`,
    that need no more than `room` bytes where `few` need `taken`."""
    room, taken, size = max(room, FREE_BYTES), max(taken - NOISE_BYTES, 0), few
    while size < most and taken * min(2 * size, most) <= room * few:
        size = min(2 * size, most)
    return size


SHARE = 0.5
"""Share of the memory free beforehand that all samples of a run may take."""
SHARE_OF_GPU = 0.2
"""Share of a GPU's free memory that all samples may take: gradients, the optimizer's state and
activations are to come, and a batch that is out of memory for its data's sake would be taken for
one that does not fit."""
MOST_VALUES = 2**25
"""Numbers that go into a model, or come out of it, in one forward pass of an evaluation."""


def num_bytes(split: Split) -> int:
    """Return the bytes of inputs and labels, which are arrays."""
    return sum(one.nbytes for one in parts(split.arrays)) + split.labels.nbytes


class Room:
    """The memory for the samples of a run, whose splits ask for their part one after another."""

    def __init__(self, free_bytes: int, *, is_gpu: bool = False) -> None:
        """`free_bytes`: before any split is there."""
        self._left = (SHARE_OF_GPU if is_gpu else SHARE) * free_bytes

    def takes(self, split: Split) -> bool:
        """Whether a split may lie there whole; then its room is taken."""
        wanted = num_bytes(split)
        if wanted > self._left:
            return False
        self._left -= wanted
        return True


def evaluation_batch(spec: RunSpec, dataset: Dataset, most: int) -> int:
    """Return the most samples of a forward pass of an evaluation: `most`, or fewer large ones.

    As many as in a pass of training at least, which are known to have room. What is between inputs
    and outputs the warm-up measures (`base.BaseTrainer.warm_up`).
    """
    shapes = parts(sample_shape(dataset.train.inputs))
    values = sum(math.prod(shape) for shape in shapes)
    if dataset.task == "language_modelling":
        values = max(values, dataset.num_outputs * math.prod(dataset.train.labels.shape[1:]))
    return min(most, max(spec.batch_size_per_worker, MOST_VALUES // max(1, values), 1))


KEPT_BYTES = 2**30
"""Bytes of freed memory that stay; no smaller tensor is mapped by itself."""
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
