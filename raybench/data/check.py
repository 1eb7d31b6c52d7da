"""What can be wrong with the numbers of a dataset, found once and before anything trains."""

import numpy as np

from raybench.core.dataset_spec import TASKS
from raybench.core.errors import UserError
from raybench.data.dataset import SPLITS, Array, Dataset, Split
from raybench.data.inputs import One
from raybench.data.labels import check_labels, check_something_to_learn

TRIED = 8
"""Samples of a split on demand that are read: from its end to its begin, some twice of a short
one. All the others are checked when they are read for training."""
_CHUNK = 2**24  # values looked at together: bounds what the check itself takes to 16 MB


def check_dataset(dataset: Dataset, source: str) -> None:
    """Raise UserError for data that no model could be trained on or judged by.

    An empty split, labels outside 0 .. `num_classes - 1` or of one class alone, NaN or infinite
    numbers, tokens that are none, splits whose samples differ in shape or type. Reads all arrays
    once, and a few samples of what is on demand; `source` begins the sentence, as "load_dataset
    of workload my:Net".
    """
    _check_about(dataset, source)
    for name in SPLITS:
        split: Split = getattr(dataset, name)
        where = f"{source}: the {name} split"
        if len(split) == 0 and name == "test":
            continue  # nothing is tested, and the answer says so
        if len(split) == 0:
            raise UserError(f"{where} is empty; give it at least one sample.")
        _check_alike(split, dataset.train, where)
        check_labels(dataset, split, where)
        _check_weights(split, where)
        if split.is_on_demand:
            _try_to_read(split, where)
        for of_input, one in _named(split):
            if isinstance(one, np.ndarray):
                _check_values(one, _num_tokens(dataset), f"{where}{of_input}")
    check_something_to_learn(dataset, source)


def _check_about(dataset: Dataset, source: str) -> None:
    if dataset.task not in TASKS:
        raise UserError(
            f"{source}: task must be one of {', '.join(TASKS)} (found {dataset.task!r})."
        )
    needs_classes = dataset.task != "regression"
    if needs_classes and (not _is_whole(dataset.num_classes) or (dataset.num_classes or 0) < 1):
        raise UserError(
            f"{source}: num_classes must be a whole number from 1 (found {dataset.num_classes!r})."
        )
    if not _is_whole(dataset.repeat) or dataset.repeat < 1:
        raise UserError(
            f"{source}: repeat must be a whole number from 1 (found {dataset.repeat!r})."
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _named(split: Split) -> list[tuple[str, One]]:
    """Return the inputs, each with what a sentence says of it: nothing where it is the only one."""
    if isinstance(split.inputs, dict):
        return [(f"'s input {name}", one) for name, one in sorted(split.inputs.items())]
    return [("", split.inputs)]


def _check_alike(split: Split, train: Split, where: str) -> None:
    names, others = ([name for name, _ in _named(one)] for one in (split, train))
    if names != others:
        raise UserError(
            f"{where} has other inputs than the train split ({_list(names)}; {_list(others)}); "
            "make them the same."
        )
    for (name, one), (_, other) in zip(_named(split), _named(train), strict=True):
        shape, wanted = tuple(one.shape[1:]), tuple(other.shape[1:])
        if 0 in shape or not (shape or name):
            raise UserError(  # one number of a sample is an input by name, not the only one
                f"{where}{name} has inputs of shape {one.shape}; give (N, height, width, channels) "
                "or (N, features), none of them 0."
            )
        if (shape, np.dtype(one.dtype)) != (wanted, np.dtype(other.dtype)):
            raise UserError(
                f"{where}{name} has samples of {np.dtype(one.dtype)} {shape}, the train split of "
                f"{np.dtype(other.dtype)} {wanted}; make them the same."
            )
    kinds = [(one.labels.dtype, one.labels.shape[1:]) for one in (split, train)]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"{where} has labels of {kinds[0][0]} {kinds[0][1]}, the train split of {kinds[1][0]} "
            f"{kinds[1][1]}; make them the same."
        )


def _list(names: list[str]) -> str:
    return ", ".join(name.removeprefix("'s input ") or "one array" for name in names)


def _check_weights(split: Split, where: str) -> None:
    if split.weights is None:
        return
    wrong = ~(np.isfinite(split.weights) & (split.weights >= 0))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise UserError(
            f"{where} has the weight {split.weights[first]} at sample {first} "
            f"({int(wrong.sum()):,} such weights); weights are numbers from 0."
        )


def _num_tokens(dataset: Dataset) -> int | None:
    """Return what token ids must be below; None where nobody knows, or which input they are."""
    if isinstance(dataset.train.inputs, dict):
        return None
    if dataset.vocabulary:
        return len(dataset.vocabulary)
    return dataset.num_classes if dataset.task == "language_modelling" else None


def _try_to_read(split: Split, where: str) -> None:
    rows = np.linspace(len(split) - 1, 0, TRIED).astype(np.int64)
    try:
        split.read(rows)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _check_values(inputs: Array, num_tokens: int | None, where: str) -> None:
    if inputs.dtype == np.uint8:
        return
    is_float = inputs.dtype == np.float32
    rows = max(1, _CHUNK // max(1, int(np.prod(inputs.shape[1:]))))
    for start in range(0, len(inputs), rows):
        chunk = inputs[start : start + rows]
        fine: Array = np.isfinite(chunk) if is_float else _are_tokens(chunk, num_tokens)
        whole = np.asarray(fine.reshape(len(chunk), -1).all(axis=1))
        if whole.all():
            continue
        first = int(np.argmin(whole))
        if is_float:
            raise UserError(
                f"{where} has NaN or infinite inputs, first in sample {start + first}; remove or "
                "replace them."
            )
        values = chunk[first].ravel()
        wrong = values[~_are_tokens(values, num_tokens)][0]
        most = "" if num_tokens is None else f" to {num_tokens - 1}"
        raise UserError(
            f"{where} has the token or code {wrong} in sample {start + first}; they go from 0"
            f"{most}."
        )


def _are_tokens(values: Array, num_tokens: int | None) -> Array:
    most = np.iinfo(values.dtype).max if num_tokens is None else num_tokens - 1
    return np.asarray((values >= 0) & (values <= most))
