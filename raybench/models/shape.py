"""What a model must know of the data that it is built for."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from raybench.data.dataset import Dataset
from raybench.data.inputs import parts
from raybench.spec.dataset_spec import Task

Kind = Literal["pixels", "numbers", "tokens"]
"""Of one array of inputs, by its type: uint8, float32, whole numbers."""


@dataclass(frozen=True, kw_only=True)
class DataShape:
    """The shape of one sample, and what is to be learnt of it."""

    input_shape: tuple[int, ...] | dict[str, tuple[int, ...]]
    """(H, W, C) of an image, (features,), (tokens,); of inputs by name each by its own."""
    num_outputs: int
    """Numbers that a model returns for a sample, of a language model for a token of it."""
    task: Task = "classification"
    """What is to be learnt."""
    vocabulary_size: int | None = None
    """Token ids are below it; None where the inputs are no tokens, or nobody knows."""
    kind: Kind | None = None
    """What the inputs are; None for inputs by name, or where nobody has looked."""

    @classmethod
    def of(cls, dataset: Dataset) -> "DataShape":
        """Return that of a dataset."""
        kind = None if isinstance(dataset.train.inputs, dict) else _kind(dataset.train.dtype)
        return cls(
            input_shape=dataset.input_shape,
            num_outputs=dataset.num_outputs,
            task=dataset.task,
            vocabulary_size=_vocabulary_size(dataset, kind),
            kind=kind,
        )


def _kind(dtype: "np.dtype[np.generic]") -> Kind:
    if dtype == np.uint8:
        return "pixels"
    return "tokens" if dtype.kind == "i" else "numbers"


def _vocabulary_size(dataset: Dataset, kind: Kind | None) -> int | None:
    """Return the size that the dataset tells, or what its token ids need."""
    if dataset.vocabulary:
        return len(dataset.vocabulary)
    if dataset.task == "language_modelling":
        return dataset.num_classes
    splits = (dataset.train, dataset.validation, dataset.test)
    if kind != "tokens" or any(split.is_on_demand for split in splits):
        return None
    largest = [int(one.max(initial=0)) for split in splits for one in parts(split.arrays)]
    return max(largest) + 1
