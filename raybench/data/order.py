"""The order samples are seen in: pure functions of (seed, epoch, rank, workers).

Both frameworks and every worker compute it for themselves and agree without talking.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

_STREAM = 1  # keeps these numbers apart from those of the initial weights (same seed)


def epoch_order(num_samples: int, *, seed: int, epoch: int) -> Indices:
    """Return a permutation of 0 .. num_samples - 1, int64.

    `num_samples` includes repeats (`Dataset.num_train_samples`); take the result modulo
    `len(dataset.train)` to index the arrays.
    """
    return np.random.default_rng([_STREAM, epoch, seed]).permutation(num_samples)


def batches(num_samples: int, *, size: int, least: int, first: int = 0) -> Iterator[slice]:
    """Yield the batches of an epoch from position `first` on: `size` samples each, the last one
    what is left. Fewer than `least` are not left: the batch before has them too."""
    while first < num_samples:
        end = first + size if num_samples - first - size >= least else num_samples
        yield slice(first, end)
        first = end


def worker_share(indices: Indices, *, rank: int, num_workers: int) -> Indices:
    """Return one worker's part of a global batch.

    The parts of all ranks, in order, are exactly the batch. A full batch splits evenly; of a
    partial one the sizes differ by at most one, and a part may be empty.
    """
    return indices[shard(len(indices), rank=rank, num_workers=num_workers)]


def shard(num_samples: int, *, rank: int, num_workers: int) -> slice:
    """Return one worker's contiguous part of `num_samples`, for example of the validation set."""
    return slice(rank * num_samples // num_workers, (rank + 1) * num_samples // num_workers)
