"""Random numbers that depend on seed, round, sample and their own number, and on nothing else.

Each is a hash of these four, so a sample is changed alike in whatever batch, worker and framework
it stands, and no state is kept between batches. The hash is SplitMix64 (Steele, Lea and Flood
2014, doi 10.1145/2660193.2660195): its output function chained over the four, whole arrays at once.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Key = npt.NDArray[np.uint64]
Uniform = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
MOST_DRAWS = 64
"""Random numbers of a sample that one augmentation may ask for."""


@dataclass(frozen=True)
class Draws:
    """The random numbers of one augmentation, of each sample of a batch."""

    keys: Key
    """(n,): see `sample_keys`."""
    place: int
    """Where the augmentation stands in its list: two of one kind draw other numbers."""

    def __call__(self, number: int) -> Uniform:
        """Return draw `number` of each sample, (n,) float64 from 0 to below 1."""
        assert number < MOST_DRAWS
        offset = _mixed_number((self.place * MOST_DRAWS + number + 1) * _GOLDEN & _MASK)
        bits = _mixed(self.keys + np.uint64(offset)) >> np.uint64(11)
        return bits.astype(np.float64) * 2.0**-53

    def of(self, samples: npt.NDArray[np.intp]) -> "Draws":
        """Return those of some samples of the batch."""
        return Draws(self.keys[samples], self.place)


def sample_keys(seed: int, rounds: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> Key:
    """Return (n,) keys, equal where seed, round and row are; of one round all others differ."""
    first = np.uint64(_mixed_number(seed + _GOLDEN & _MASK))
    in_round = _mixed(rounds.astype(np.uint64) * np.uint64(_GOLDEN) + first)
    return _mixed(rows.astype(np.uint64) * np.uint64(_GOLDEN) + in_round)


def whole(uniform: Uniform, number: int | Whole) -> Whole:
    """Return whole numbers from 0 to `number` - 1, equally likely, of uniform ones."""
    return (uniform * number).astype(np.int64)


def _mixed(values: Key) -> Key:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _mixed_number(value: int) -> int:
    """Return `_mixed` of one number; numpy warns of one that overflows, not of arrays."""
    return int(_mixed(np.array([value], np.uint64))[0])
