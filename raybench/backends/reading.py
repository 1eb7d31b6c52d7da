"""Samples of a split read by rows, and augmented where that is asked for; for any backend."""

import importlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from raybench.backends.base import Step
from raybench.core.augmentation import Mixup
from raybench.core.spec import RunSpec
from raybench.data.dataset import Array, Split
from raybench.data.inputs import Batch
from raybench.data.on_demand import Rows

AHEAD = 2
"""Batches that are augmented ahead by a thread, at least."""


class Augmented(Protocol):
    """Samples after their augmentation."""

    inputs: Batch
    """Of the shapes and types that they had before."""
    other_rows: Rows | None
    """(samples,): rows of the samples that each is mixed with; None where none is mixed."""
    shares: Array | None
    """(samples,) float32: what each has of itself; the other has the rest."""


class Augmenter(Protocol):
    """Changes samples by (seed, round, row) alone."""

    def __call__(self, inputs: Batch, rows: Rows, rounds: Rows) -> Augmented:
        """Return the samples of `rows` as they are in `rounds`; `inputs` may be written to."""
        ...


@dataclass(frozen=True)
class Samples:
    """What is read of some rows."""

    inputs: Batch
    labels: Array
    mixed: tuple[Array, Array, Array] | None = None
    """Labels of the samples that these are mixed with, and what the loss by a sample's own label
    counts and that by the other's: their shares, each times the weight of its own sample."""


class Reader:
    """Reads samples of a split; it and `split` may be asked by one thread at a time."""

    def __init__(self, split: Split, augmenter: Augmenter | None = None) -> None:
        self.split = split
        self._augmenter = augmenter

    def read(self, rows: Rows, rounds: Rows | None = None) -> Samples:
        """Return the samples at `rows`, in that order; `rounds` of them is for augmentation."""
        inputs, labels = self.split.read(rows), self.split.labels[rows]
        if self._augmenter is None:
            return Samples(inputs, labels)
        assert rounds is not None
        changed = self._augmenter(inputs, rows, rounds)
        if changed.other_rows is None:
            return Samples(changed.inputs, labels)
        assert changed.shares is not None
        own, rest = changed.shares, 1 - changed.shares
        if self.split.weights is not None:
            own = own * self.split.weights[rows]
            rest = rest * self.split.weights[changed.other_rows]
        others = self.split.labels[changed.other_rows]
        return Samples(changed.inputs, labels, (others, own, rest))


def training_reader(spec: RunSpec, split: Split) -> Reader | None:
    """Return what reads and augments the training samples; None where nothing is augmented."""
    if not spec.augment:
        return None
    build = importlib.import_module("raybench.data.augment").Augmenter
    return Reader(split, build(spec.augment, split, spec.seed))


def ahead(spec: RunSpec) -> int:
    """Return how many batches are prepared ahead where samples are augmented."""
    return max(spec.prefetch, AHEAD)


def mixes(spec: RunSpec) -> bool:
    """Whether training samples come mixed with others."""
    return any(isinstance(one, Mixup) for one in spec.augment)


def rounds_of(step: Step) -> "np.ndarray | list[None]":
    """Return the rounds of each pass of a step, or None for each where it has none."""
    return [None] * len(step.indices) if step.rounds is None else step.rounds
