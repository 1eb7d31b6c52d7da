"""Datasets: three splits of samples and labels, the same for both frameworks.

The order of samples is a pure function of (seed, epoch, rank, workers): both frameworks and every
worker compute it for themselves and agree without talking.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt

from raybench.data.inputs import Array as Array
from raybench.data.inputs import (
    Batch,
    Inputs,
    One,
    Rows,
    check_inputs,
    each,
    parts,
    read_one,
    sample_shape,
    select,
)
from raybench.spec.dataset_spec import Task
from raybench.spec.errors import UserError

SPLITS = ("train", "validation", "test")
LABEL_KINDS = (np.dtype(np.int64), np.dtype(np.float32))  # labels are classes or tokens, or numbers
IGNORED = -100
"""Label of a token that counts neither in the loss nor in a metric (language modelling)."""


@dataclass(frozen=True)
class Split:
    """Samples and their labels.

    Inputs are one array or a dict of arrays, which both frameworks get by the same names.
    `uint8` inputs are pixels: the backends scale them by 1/255 inside the training step, so
    that they travel and stay in memory as bytes. `float32` inputs are used as they are, and so
    are `int32` and `int64`: token ids, codes of categories, masks.

    Inputs may also be on demand: any object with `shape`, `dtype` and `[rows]` that reads or
    computes samples when a batch asks for them (`inputs.OnDemand`). Labels are an array always.
    """

    inputs: Inputs
    """(N, H, W, C), (N, features), (N, tokens), or (N,); uint8, float32, int32 or int64."""
    labels: Array
    """(N,) int64 classes from 0 to `num_classes - 1`; (N,) or (N, outputs) float32 numbers;
    (N, tokens) int64 tokens, of which those that are -100 do not count."""
    weights: Array | None = None
    """(N,) float32: weight of each sample in the training loss; none is 1 of each."""

    def __post_init__(self) -> None:
        number = check_inputs(self.inputs)
        if number != len(self.labels):
            raise UserError(
                f"A split needs one label per input, found {number} inputs and "
                f"{len(self.labels)} labels."
            )
        if self.labels.dtype not in LABEL_KINDS or self.labels.ndim not in (1, 2):
            raise UserError(
                "The labels of a split must be int64 (classes, tokens) or float32 (numbers), of "
                f"shape (N,) or (N, outputs), found {self.labels.dtype} {self.labels.shape}."
            )
        weights = self.weights
        if weights is not None and (weights.dtype != np.float32 or weights.shape != (number,)):
            raise UserError(
                f"The weights of a split must be float32 of shape ({number},), found "
                f"{weights.dtype} {weights.shape}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_on_demand(self) -> bool:
        """Whether inputs (some of a dict) are read when they are asked for; else arrays."""
        return not all(isinstance(one, np.ndarray) for one in parts(self.inputs))

    @property
    def arrays(self) -> Batch:
        """The inputs of a split that is not on demand: an array, or a dict of arrays."""
        assert not self.is_on_demand
        return self.inputs  # type: ignore[return-value]

    @property
    def array(self) -> Array:
        """The one array of inputs of a split that is not on demand."""
        assert isinstance(self.inputs, np.ndarray)
        return self.inputs

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the inputs, where they are one array."""
        assert not isinstance(self.inputs, dict)
        return np.dtype(self.inputs.dtype)

    def read(self, rows: Rows) -> Batch:
        """Return the inputs at `rows`, in that order, as arrays that can be written to."""
        return each(self.inputs, lambda one: read_one(one, rows))

    def take(self, indices: Rows | slice) -> "Split":
        """Return the samples at `indices`, in that order; of inputs on demand none is read."""
        weights = None if self.weights is None else self.weights[indices]
        return Split(select(self.inputs, indices), self.labels[indices], weights)


@dataclass(frozen=True)
class Dataset:
    """Three splits; the test split is for confirmed winners only."""

    name: str
    num_classes: int | None
    """Classes, or tokens of a vocabulary; None of numbers."""
    train: Split
    validation: Split
    test: Split
    repeat: int = 1
    """Repetitions of the training split in one epoch. The arrays are not copied: sample `i`
    of an epoch is `train[i % len(train)]`."""
    task: Task = "classification"
    """Task that is to be learnt."""
    class_names: tuple[str, ...] = ()
    """Names of the classes, by number; empty where they have none."""
    label_scale: npt.NDArray[np.float32] | None = field(default=None, compare=False)
    """() or (outputs,) float32: what labels of a regression were divided by, so that a metric is
    in their own unit; None is 1."""
    label_offset: npt.NDArray[np.float32] | None = field(default=None, compare=False)
    """Offset that was taken off them before; None is 0."""
    vocabulary: tuple[str, ...] = ()
    """The tokens of a text set by number; empty where there are none."""
    encoding: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """Recipe of the inputs, as JSON: `columns` of a table (`sources.encode`),
    `tokens` that texts are cut into, `white` of images of more than 8 bits; None where they are
    used as they are."""

    @property
    def splits(self) -> dict[str, Split]:
        """The splits by name: `train`, `validation`, `test`."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @property
    def num_train_samples(self) -> int:
        """Samples in one epoch, repeats included."""
        return len(self.train) * self.repeat

    @property
    def input_shape(self) -> "tuple[int, ...] | dict[str, tuple[int, ...]]":
        """Shape of one sample: (H, W, C), (features,), (tokens,); of a dict each by its name."""
        return sample_shape(self.train.inputs)

    @property
    def num_outputs(self) -> int:
        """Numbers that a model returns for a sample, or for a token of it."""
        if self.task == "regression":
            return 1 if self.train.labels.ndim == 1 else int(self.train.labels.shape[1])
        assert self.num_classes is not None
        return self.num_classes


_NOTHING = Split(np.zeros((0, 0), np.float32), np.zeros(0, np.int64))
NO_DATA = Dataset("workload", None, _NOTHING, _NOTHING, _NOTHING)
"""Dataset of a training loop of the user's own, which loads its data itself."""


def about_dataset(dataset: Dataset) -> dict[str, Any]:
    """Return all but the splits, as plain data for JSON."""
    about = {one.name: getattr(dataset, one.name) for one in fields(dataset)}
    for key in ("label_scale", "label_offset"):
        if about[key] is not None:
            about[key] = np.asarray(about[key], np.float32).tolist()
    for key in ("num_classes", "repeat"):  # may be numpy's
        about[key] = None if about[key] is None else int(about[key])
    return {key: about[key] for key in about if key not in SPLITS}


def dataset_of(about: Mapping[str, Any], arrays: Mapping[str, Any]) -> Dataset:
    """Return the dataset that `about_dataset` and `all_arrays` have described."""
    content = dict(about)
    for key in ("class_names", "vocabulary"):
        content[key] = tuple(content[key])
    for key in ("label_scale", "label_offset"):
        if content[key] is not None:
            content[key] = np.array(content[key], np.float32)
    content |= {part: split_of_arrays(arrays, part) for part in SPLITS}
    return Dataset(**content)


def all_arrays(dataset: Dataset) -> dict[str, Any]:
    """Return all that a dataset is made of, by the names that its files have."""
    found: dict[str, Any] = {}
    for name, split in dataset.splits.items():
        found |= named_arrays(split, name)
    return found


def named_arrays(split: Split, part: str) -> dict[str, One]:
    """Return all that a split is made of, by the names that its files have."""
    inputs = split.inputs
    if isinstance(inputs, dict):
        found = {f"{part}-input-{quote(name, safe='')}": one for name, one in inputs.items()}
    else:
        found = {f"{part}-inputs": inputs}
    found[f"{part}-labels"] = split.labels
    return found if split.weights is None else found | {f"{part}-weights": split.weights}


def split_of_arrays(arrays: Mapping[str, Any], part: str) -> Split:
    """Return the split that `named_arrays` has named."""
    begin = f"{part}-input-"
    inputs = arrays.get(f"{part}-inputs")
    if inputs is None:
        inputs = {
            unquote(name.removeprefix(begin)): one
            for name, one in arrays.items()
            if name.startswith(begin)
        }
    return Split(inputs, arrays[f"{part}-labels"], arrays.get(f"{part}-weights"))


def num_of(part: int | float | str | None, total: int, *, typical: int) -> int:
    """Return a part's samples: a number, a share of `total`, `none`, or the typical number."""
    if part is None or isinstance(part, str):
        return typical if part is None else 0
    return max(1, round(part * total)) if isinstance(part, float) else part


def hold_out(samples: Split, size: int, *, seed: int, source: str) -> tuple[Split, Split]:
    """Shuffle by `seed` and cut: (the first `size` samples, all others).

    Depends on nothing else, so every process of a study holds out the same samples. A size
    that leaves nothing to train on is a UserError naming `source`.
    """
    if size >= len(samples):
        raise UserError(
            f"dataset.validation_size {size} leaves nothing of the {len(samples)} samples of "
            f"{source} to train on; choose a smaller one."
        )
    order = np.random.default_rng(seed).permutation(len(samples))
    return samples.take(order[:size]), samples.take(order[size:])


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
