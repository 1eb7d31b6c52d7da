"""Labels as they are written, as numbers: classes by name, or values of a regression."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.core.dataset_spec import Task
from raybench.core.errors import UserError
from raybench.data.dataset import Split

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Labelled:
    """A sample's label, and where it was found."""

    name: str
    """Of the sample: an image's path."""
    labels: tuple[str, ...]
    """One, or one of each output of a regression."""
    where: str
    """Begins a sentence about it: a file, or file and line."""


def task_of(samples: Sequence[Labelled], asked: Task | None) -> Task:
    """Return `asked`, else what the labels say: numbers with a fraction, or several, are a
    regression, and all others classes."""
    if asked is not None:
        return asked
    if len(samples[0].labels) > 1:
        return "regression"
    numbers = [_number(sample.labels[0]) for sample in samples]
    if any(number is None for number in numbers):
        return "classification"
    is_whole = all(float(number).is_integer() for number in numbers if number is not None)
    return "classification" if is_whole else "regression"


def class_names(train: Sequence[Labelled], source: str) -> tuple[str, ...]:
    """Return the names of the classes in order: as numbers where all are; UserError for one."""
    names = {sample.labels[0] for sample in train}
    if len(names) < 2:
        raise UserError(
            f"{source} holds one class only ({next(iter(names))}), so there is nothing to tell "
            "apart; add the others."
        )
    if all(_is_whole(name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def as_classes(samples: Sequence[Labelled], names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the number of each sample's class; UserError for one that training does not know."""
    numbers = {name: number for number, name in enumerate(names)}
    for sample in samples:
        name = sample.labels[0]
        if name not in numbers:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f": did you mean {close[0]}?" if close else "; add it there, or remove it here."
            raise UserError(f"{sample.where}: the class {name} is none of the training split{hint}")
    return np.array([numbers[sample.labels[0]] for sample in samples], np.int64)


def as_numbers(samples: Sequence[Labelled]) -> npt.NDArray[np.float32]:
    """Return (N,) numbers, or (N, outputs); UserError for what is no finite number."""
    for sample in samples:
        for text in sample.labels:
            number = _number(text)
            if number is None or not np.isfinite(np.float32(number)):
                raise UserError(
                    f"{sample.where}: the label {text} is no number, and the task is regression; "
                    "mend it, or set dataset.task: classification."
                )
    found = np.array([[float(text) for text in sample.labels] for sample in samples], np.float32)
    return found[:, 0] if found.shape[1] == 1 else found


def standardise(
    splits: Sequence[Split], source: str
) -> tuple[list[Split], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the splits with labels of mean 0 and deviation 1 over the first, which is trained on.

    With them what they were divided by, and what was taken off before; () or (outputs,). Labels
    that are all the same are a UserError.
    """
    train = splits[0].labels.astype(np.float64)
    offset, scale = train.mean(axis=0), train.std(axis=0)
    if not np.all(scale > 0):
        raise UserError(
            f"{source}: all labels of the training split are the same, so there is nothing to "
            "learn; name another column."
        )
    scaled = [
        replace(split, labels=((split.labels - offset) / scale).astype(np.float32))
        for split in splits
    ]
    return scaled, np.asarray(scale, np.float32), np.asarray(offset, np.float32)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal()
