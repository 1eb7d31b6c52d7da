"""Batches of training samples, changed as `augment` of a run spec says."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import Dataset, Split
from raybench.data.image_changes import (
    CHANGES,
    ONE,
    Draws,
    Key,
    mix,
    mixup_shares,
    sample_keys,
    whole,
)
from raybench.data.inputs import Array, Batch, Rows, each, parts
from raybench.spec.dataset_spec import Augmentation, Mixup, RandomCrop
from raybench.spec.errors import UserError

CHUNK = 2**18
"""Numbers that all changes are made to before the next ones: about what a core's cache holds."""

Placed = tuple[int, Augmentation]


@dataclass(frozen=True)
class Augmented:
    """A batch after its changes."""

    inputs: Batch
    """As they came in shape and type."""
    other_rows: Rows | None
    """(n,) rows that samples are mixed with: the loss is `shares` of that of a sample's own label
    and the rest of that of this row's. None without mixup, and so are the shares."""
    shares: npt.NDArray[np.float32] | None
    """(n,) from 0 to 1."""


class Augmenter:
    """Changes training samples by (seed, round, row) alone.

    So what a sample becomes depends on no batch, order, worker or framework. Keeps no state:
    several threads may call it.
    """

    def __init__(
        self,
        augmentations: Sequence[Augmentation],
        split: Split,
        seed: int,
        read: Callable[[Rows], Batch] | None = None,
    ) -> None:
        """`read` is `split.read` in a form that several threads may call; for mixup alone."""
        self._read, self._seed = read or split.read, seed
        placed = list(enumerate(augmentations))
        where = [place for place, one in placed if isinstance(one, Mixup)]
        self._mixup_at = where[0] if where else None
        self._before, self._after = placed, list[Placed]()
        if self._mixup_at is not None:
            mixup = augmentations[self._mixup_at]
            assert isinstance(mixup, Mixup)
            self._alpha, self._num_rows = mixup.alpha, len(split)
            self._before, self._after = placed[: where[0]], placed[where[0] + 1 :]

    def __call__(self, inputs: Batch, rows: Rows, rounds: Rows) -> Augmented:
        """Return the samples of `rows` (n,), which stood in training `rounds` (n,) times before.

        `inputs` are what `Split.read(rows)` returns; they are not written to. Changes are of
        images: arrays (n, height, width, channels) of bytes or float32, those of one sample all
        alike; mixup is of all inputs. The other sample of a mixup is changed as it would be
        itself in this round, by what stands before mixup.
        """
        changed = self._changed(self._before, inputs, rows, rounds)
        if self._mixup_at is None:
            return Augmented(changed, None, None)
        draws = Draws(sample_keys(self._seed, rounds, rows), self._mixup_at)
        shares, others = mixup_shares(draws, self._alpha), whole(draws(1), self._num_rows)
        partners = self._changed(self._before, self._read(others), others, rounds)
        mixed = self._changed(self._after, _mixed(changed, partners, shares), rows, rounds)
        return Augmented(mixed, others, (shares / ONE).astype(np.float32))

    def _changed(
        self, augmentations: list[Placed], inputs: Batch, rows: Rows, rounds: Rows
    ) -> Batch:
        if not augmentations:
            return inputs
        keys = sample_keys(self._seed, rounds, rows)
        return each(inputs, lambda one: _change(one, keys, augmentations) if is_image(one) else one)


def is_image(inputs: Any) -> bool:
    """Whether inputs (an array, or on demand) are images that can be changed."""
    return len(inputs.shape) == 4 and np.dtype(inputs.dtype) in (np.uint8, np.float32)


def _change(images: Array, keys: Key, augmentations: list[Placed]) -> Array:
    """Return images after all changes."""
    changed = np.empty(images.shape, images.dtype)
    for some in _chunks(images):
        changed[some] = images[some]
        chunk = changed[some]
        for place, settings in augmentations:
            chunk = CHANGES[settings.kind](chunk, Draws(keys[some], place), settings)
        changed[some] = chunk  # numpy leaves it where it is already there
    return changed


def _mixed(samples: Batch, others: Batch, shares: npt.NDArray[np.uint16]) -> Batch:
    if isinstance(samples, dict):
        assert isinstance(others, dict)
        return {name: _mix(one, others[name], shares) for name, one in samples.items()}
    assert not isinstance(others, dict)
    return _mix(samples, others, shares)


def _mix(samples: Array, others: Array, shares: npt.NDArray[np.uint16]) -> Array:
    mixed = np.empty(samples.shape, samples.dtype)
    for some in _chunks(samples):
        mixed[some] = mix(samples[some], others[some], shares[some])
    return mixed


def _chunks(samples: Array) -> Iterator[slice]:
    """Yield a few samples at a time, which stay in the cache from one change to the next."""
    size = max(1, CHUNK * len(samples) // max(1, samples.size))
    for start in range(0, len(samples), size):
        yield slice(start, start + size)


def check_augment(dataset: Dataset, augmentations: Sequence[Augmentation]) -> None:
    """Raise UserError for `augment` that these data cannot be given."""
    if sum(isinstance(one, Mixup) for one in augmentations) > 1:
        raise UserError("augment: mixup stands there twice; a sample is mixed once, keep one.")
    for augmentation in augmentations:
        if isinstance(augmentation, Mixup):
            _check_mixup(dataset)
            continue
        images = [one for one in parts(dataset.train.inputs) if is_image(one)]
        if not images:
            raise UserError(
                f"augment: {augmentation.kind} is of images (N, height, width, channels) of uint8 "
                f"or float32, and {dataset.name} has {_shown(dataset)}; take {augmentation.kind} "
                "out."
            )
        height, width = min((one.shape[1:3] for one in images), key=min)
        if isinstance(augmentation, RandomCrop) and augmentation.padding >= min(height, width):
            raise UserError(
                f"augment: random_crop with padding {augmentation.padding} may cut the images of "
                f"{dataset.name}, {height} x {width} pixels, away altogether; give padding below "
                f"{min(height, width)}."
            )


def _check_mixup(dataset: Dataset) -> None:
    kinds = {np.dtype(one.dtype) for one in parts(dataset.train.inputs)}
    is_text = dataset.task == "language_modelling"
    if is_text or not kinds <= {np.dtype(np.uint8), np.dtype(np.float32)}:
        raise UserError(
            f"augment: mixup is of uint8 and float32 inputs, and {dataset.name} has "
            f"{'tokens' if is_text else _shown(dataset)}: whole numbers such as tokens cannot be "
            "mixed; take mixup out."
        )


def _shown(dataset: Dataset) -> str:
    """Return type and shape of the inputs in words."""
    inputs = dataset.train.inputs
    named = inputs if isinstance(inputs, dict) else {"": inputs}
    return ", ".join(
        f"{name} {np.dtype(one.dtype)} {tuple(one.shape)}".strip() for name, one in named.items()
    )
