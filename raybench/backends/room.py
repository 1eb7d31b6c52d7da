"""Whether the samples of a split may lie in memory whole, or are read batch by batch."""

import math

from raybench.core.spec import RunSpec
from raybench.data.dataset import Dataset, Split
from raybench.data.inputs import parts, sample_shape

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
