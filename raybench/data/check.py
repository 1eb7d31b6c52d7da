"""Checks of a dataset before anything trains."""

from collections.abc import Sequence

import numpy as np

from raybench.data.dataset import IGNORED, Array, Dataset, Split
from raybench.data.inputs import One
from raybench.spec.dataset_spec import Task
from raybench.spec.errors import ErrorCode, UserError

SAMPLES_TRIED = 8
"""Samples of a split on demand that are read here, from its end to its start; all others are
checked when they are read for training."""
VALUES_AT_ONCE = 2**24  # values checked together: bounds the memory of the check to 16 MB


def check_dataset(dataset: Dataset, source: str, *, is_own: bool = False) -> None:
    """Check that a model can be trained on and judged by a dataset.

    All arrays are read once, and a few samples of inputs on demand.

    Args:
        dataset: the dataset.
        source: begins the sentence of an error: "load_dataset of workload my:Net".
        is_own: whether the user's own workload loads it, whose loss may ignore the labels.

    Raises:
        UserError: a split is empty, splits differ in shape or type, or inputs, labels or weights
            have values that they cannot have.
    """
    # Tokens among inputs by name cannot be told from codes and masks.
    num_tokens = None if isinstance(dataset.train.inputs, dict) else dataset.num_tokens
    for name, split in dataset.splits.items():
        where = f"{source}: the {name} split"
        if len(split) == 0 and name == "test":
            continue  # nothing is tested, and the answer says so
        if len(split) == 0:
            raise UserError(
                f"{where} is empty; give it at least one sample.", ErrorCode.INVALID_DATA
            )
        _check_alike(split, dataset.train, where)
        _check_labels(dataset, split, where)
        _check_weights(split, where)
        if split.is_on_demand:
            rows = np.linspace(len(split) - 1, 0, SAMPLES_TRIED).astype(np.int64)
            try:
                split.read(rows)
            except UserError as error:
                raise UserError(f"{where}: {error}", error.code) from error
        for of_input, one in _named(split).items():
            if isinstance(one, np.ndarray):
                _check_values(one, num_tokens, f"{where}{of_input}")
    if is_own and dataset.num_classes == 1:
        return  # labels that the user's own loss ignores, as of an autoencoder
    labels, names = dataset.train.labels, dataset.class_names
    check_something_to_learn(dataset.task, labels, names, source)


def _named(split: Split) -> dict[str, One]:
    """Return the inputs by the words that name them in a sentence: none for the only one."""
    if isinstance(split.inputs, dict):
        return {f"'s input {name}": one for name, one in sorted(split.inputs.items())}
    return {"": split.inputs}


def _check_alike(split: Split, train: Split, where: str) -> None:
    own, others = _named(split), _named(train)
    if list(own) != list(others):
        listed = [
            ", ".join(name.removeprefix("'s input ") or "one array" for name in one)
            for one in (own, others)
        ]
        raise UserError(
            f"{where} has other inputs than the train split ({'; '.join(listed)}); unite them.",
            ErrorCode.INVALID_DATA,
        )
    for name, one in own.items():
        if 0 in one.shape[1:] or not (one.shape[1:] or name):
            raise UserError(  # one number of a sample is an input by name, not the only one
                f"{where}{name} has inputs of shape {one.shape}; give (N, height, width, channels) "
                "or (N, features), none of them 0.",
                ErrorCode.INVALID_DATA,
            )
        _require_same(f"{where}{name} has samples", one, others[name])
    _require_same(f"{where} has labels", split.labels, train.labels)


def _require_same(what: str, found: One, wanted: One) -> None:
    own, others = (
        f"{np.dtype(one.dtype)} {tuple(map(int, one.shape[1:]))}" for one in (found, wanted)
    )
    if own != others:
        raise UserError(
            f"{what} of {own}, the train split of {others}; make them the same.",
            ErrorCode.INVALID_DATA,
        )


def _check_weights(split: Split, where: str) -> None:
    if split.weights is None:
        return
    wrong = ~(np.isfinite(split.weights) & (split.weights >= 0))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise UserError(
            f"{where} has the weight {split.weights[first]} at sample {first} "
            f"({int(wrong.sum()):,} such weights); weights are numbers from 0.",
            ErrorCode.INVALID_DATA,
        )


def _check_values(inputs: Array, num_tokens: int | None, where: str) -> None:
    if inputs.dtype == np.uint8:
        return
    is_float = inputs.dtype == np.float32
    most = np.inf if num_tokens is None else num_tokens - 1
    rows = max(1, VALUES_AT_ONCE // max(1, int(np.prod(inputs.shape[1:]))))
    for start in range(0, len(inputs), rows):
        chunk = inputs[start : start + rows]
        wrong = ~np.isfinite(chunk) if is_float else (chunk < 0) | (chunk > most)
        if not wrong.any():
            continue
        first = int(np.argmax(wrong))
        sample = start + int(np.unravel_index(first, wrong.shape)[0])
        if is_float:
            raise UserError(
                f"{where} has NaN or infinite inputs, first in sample {sample}; remove or replace "
                "them.",
                ErrorCode.INVALID_DATA,
            )
        range_ = "0" if num_tokens is None else f"0 to {num_tokens - 1}"
        raise UserError(
            f"{where} has the token or code {chunk.flat[first]} in sample {sample}; they go from "
            f"{range_}.",
            ErrorCode.INVALID_DATA,
        )


LABEL_FORMS = {
    "classification": "int64 classes of shape (N,)",
    "regression": "float32 numbers of shape (N,) or (N, outputs)",
    "language_modelling": "int64 tokens of shape (N, tokens)",
}
_DIMENSIONS = {"classification": (1,), "regression": (1, 2), "language_modelling": (2,)}


def _check_labels(dataset: Dataset, split: Split, where: str) -> None:
    """Raise UserError for labels that the task cannot have; `where` begins the sentence."""
    labels, task = split.labels, dataset.task
    is_number = labels.dtype == np.float32 and task != "regression"
    if is_number or labels.ndim not in _DIMENSIONS[task]:
        raise UserError(
            f"{where} has labels of {labels.dtype} {labels.shape}; of task {task} they are "
            f"{LABEL_FORMS[task]}.",
            ErrorCode.INVALID_DATA,
        )
    if task == "regression":
        wrong = ~np.isfinite(labels).reshape(len(labels), -1).all(axis=1)
        if wrong.any():
            raise UserError(
                f"{where} has NaN or infinite labels, first at sample {int(np.argmax(wrong))} "
                f"({int(wrong.sum()):,} such samples); remove or replace them.",
                ErrorCode.INVALID_DATA,
            )
        return
    assert dataset.num_classes is not None
    wrong = (labels < 0) | (labels >= dataset.num_classes)
    if task == "language_modelling":
        wrong &= labels != IGNORED
    if wrong.any():
        first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        raise UserError(
            f"{where} has the label {labels[first]} at sample {first[0]} ({int(wrong.sum()):,} "
            f"such labels); with num_classes {dataset.num_classes} they go from 0 to "
            f"{dataset.num_classes - 1}.",
            ErrorCode.INVALID_DATA,
        )
    is_uncounted = (labels == IGNORED).reshape(len(labels), -1).all(axis=1)
    if is_uncounted.any():  # they would count as samples without a mistake
        raise UserError(
            f"{where} has no token that counts in sample {int(np.argmax(is_uncounted))} "
            f"({int(is_uncounted.sum()):,} such samples), all its labels are {IGNORED}; leave them "
            "out.",
            ErrorCode.INVALID_DATA,
        )


def check_something_to_learn(
    task: Task, labels: Array, class_names: Sequence[str], source: str
) -> None:
    """Raise UserError if all training samples have one label; `source` begins the sentence."""
    counted = labels[labels != IGNORED] if task == "language_modelling" else labels
    if not len(counted) or not (counted == counted[0]).all():
        return
    first = counted[0]
    if task == "regression":
        raise UserError(
            f"{source}: all {len(labels):,} training labels are {first}; there is nothing to "
            "learn.",
            ErrorCode.INVALID_DATA,
        )
    shown = f"'{class_names[first]}'" if class_names else f"{first}"
    what = "tokens" if task == "language_modelling" else "samples"
    raise UserError(
        f"{source}: all training {what} are of one class, {shown}; there is nothing to tell apart.",
        ErrorCode.INVALID_DATA,
    )
