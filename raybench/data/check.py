"""Checks of a dataset before training, and warnings about the dataset.

A failed check raises UserError. Every search prints the warnings, such as the one about samples
that occur in two splits; equal samples are found by hashes of their inputs.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import IGNORED, SPLITS, Array, Dataset, One, Split, parts
from raybench.spec.dataset_spec import Task
from raybench.spec.errors import ErrorCode, UserError

Bools = npt.NDArray[np.bool_]
SAMPLES_TRIED = 8
"""Number of samples that `check_dataset` reads from a split that is read on demand. They are evenly
spaced, and the last one is read first. Other samples are checked when training reads them."""
VALUES_AT_ONCE = 2**24  # values checked together, so that an array of results has at most 16 MB


def check_dataset(dataset: Dataset, source: str, *, is_own: bool = False) -> None:
    """Check that a model can be trained and evaluated on a dataset.

    All samples of arrays are checked, but only a few samples of inputs that are read on demand.

    Args:
        dataset: The dataset.
        source: Start of error messages, such as "load_dataset of workload my:Net".
        is_own: Whether a user's workload loads the dataset. A dataset with a single class is then
            allowed, because the workload's own loss may ignore the labels.

    Raises:
        UserError: `num_classes` is missing, the training or validation split is empty, splits
            differ in shape or type, inputs, labels or weights have invalid values, or all training
            labels are the same.
    """
    if dataset.task != "regression" and not isinstance(dataset.num_classes, int | np.integer):
        raise UserError(
            f"{source}: num_classes is {dataset.num_classes}; set the number of classes or tokens, "
            'or task="regression".',
            ErrorCode.INVALID_DATA,
        )
    # Tokens among named inputs cannot be distinguished from codes and masks.
    num_tokens = None if isinstance(dataset.train.inputs, dict) else dataset.num_tokens
    for name, split in dataset.splits.items():
        where = f"{source}: the {name} split"
        if len(split) == 0 and name == "test":
            continue  # allowed: the winner is then not tested, and the report says so
        if len(split) == 0:
            raise UserError(
                f"{where} is empty; it needs at least one sample.", ErrorCode.INVALID_DATA
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
        for name_text, array in _named(split).items():
            if isinstance(array, np.ndarray):
                _check_values(array, num_tokens, f"{where}{name_text}")
    if is_own and dataset.num_classes == 1:
        return  # the user's own loss may ignore the labels, like the loss of an autoencoder
    labels, names = dataset.train.labels, dataset.class_names
    check_something_to_learn(dataset.task, labels, names, source)


def _named(split: Split) -> dict[str, One]:
    """Return the inputs, keyed by the text that names them in error messages.

    The text is, for example, " as input age"; it is empty for a single input.
    """
    if isinstance(split.inputs, dict):
        return {f" as input {name}": inputs for name, inputs in sorted(split.inputs.items())}
    return {"": split.inputs}


def _check_alike(split: Split, train: Split, where: str) -> None:
    """Raise UserError if inputs have an invalid shape, or if inputs or labels differ in shape or
    type from those of the training split."""
    for name, inputs in _named(split).items():
        if 0 in inputs.shape[1:] or not (inputs.shape[1:] or name):  # only named inputs may be (N,)
            raise UserError(
                f"{where}{name} has inputs of shape {inputs.shape}, not (N, features) or images.",
                ErrorCode.INVALID_DATA,
            )
    types, train_types = _types_of(split), _types_of(train)
    if types != train_types:
        raise UserError(
            f"{where} has {types}, but the train split has {train_types}; convert one of them.",
            ErrorCode.INVALID_DATA,
        )


def _types_of(split: Split) -> str:
    """Return the types and shapes of one sample's inputs and label, as text for a message."""
    arrays = _named(split) | {" as labels": split.labels}
    return ", ".join(
        f"{np.dtype(array.dtype)} {tuple(map(int, array.shape[1:]))}{name}"
        for name, array in arrays.items()
    )


def _require_none(wrong: Bools, what: str, advice: str) -> None:
    """Raise UserError if any value of an array is marked as wrong.

    Args:
        wrong: Whether each value is wrong, (N, ...).
        what: Start of the message: what is wrong.
        advice: End of the message: what the user can do.
    """
    if wrong.any():
        samples = wrong.reshape(len(wrong), -1).any(axis=1)
        raise UserError(
            f"{what}, first in sample {int(np.argmax(samples))} ({int(samples.sum()):,} such "
            f"samples); {advice}.",
            ErrorCode.INVALID_DATA,
        )


def _check_weights(split: Split, where: str) -> None:
    if split.weights is not None:
        wrong = ~(np.isfinite(split.weights) & (split.weights >= 0))
        what = f"{where} has the weight {split.weights[np.argmax(wrong)]}"
        _require_none(wrong, what, "weights must be 0 or larger")


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
        what, advice = "NaN or infinite inputs", "remove or replace them"
        if not is_float:
            what = f"the token or code {chunk.flat[first]}"
            advice = f"the smallest is 0{'' if num_tokens is None else f', the largest {most}'}"
        raise UserError(
            f"{where} has {what}, first in sample {sample}; {advice}.", ErrorCode.INVALID_DATA
        )


LABEL_FORMS: dict[Task, tuple[tuple[int, ...], str]] = {
    "classification": ((1,), "int64 classes of shape (N,)"),
    "regression": ((1, 2), "float32 numbers of shape (N,) or (N, outputs)"),
    "language_modelling": ((2,), "int64 tokens of shape (N, tokens)"),
}
"""Allowed numbers of dimensions of the labels, and a description of the labels, by task."""


def _check_labels(dataset: Dataset, split: Split, where: str) -> None:
    """Raise UserError if labels of a split are invalid for the task; `where` begins the message."""
    labels, task = split.labels, dataset.task
    dimensions, description = LABEL_FORMS[task]
    is_number = labels.dtype == np.float32 and task != "regression"
    if is_number or labels.ndim not in dimensions:
        raise UserError(
            f"{where} has labels of {labels.dtype} {labels.shape}, but task {task} needs "
            f"{description}.",
            ErrorCode.INVALID_DATA,
        )
    if task == "regression":
        wrong = ~np.isfinite(labels)
        _require_none(wrong, f"{where} has NaN or infinite labels", "remove or replace them")
        return
    assert dataset.num_classes is not None
    wrong = (labels < 0) | (labels >= dataset.num_classes)
    if task == "language_modelling":
        wrong &= labels != IGNORED
    _require_none(
        wrong,
        f"{where} has the label {labels.flat[np.argmax(wrong)]}",
        f"with num_classes {dataset.num_classes}, labels range from 0 to {dataset.num_classes - 1}",
    )
    # Samples whose labels are all ignored would count as samples without errors.
    is_uncounted = (labels == IGNORED).reshape(len(labels), -1).all(axis=1)
    what = f"{where} has samples whose labels are all {IGNORED}"
    _require_none(is_uncounted, what, "remove these samples")


def check_something_to_learn(
    task: Task, labels: Array, class_names: Sequence[str], source: str
) -> None:
    """Raise UserError if all training samples have the same label; `source` begins the message."""
    counted = labels[labels != IGNORED] if task == "language_modelling" else labels
    if not len(counted) or not (counted == counted[0]).all():
        return
    first = counted[0]
    if task == "regression":
        what = f"labels are {first}"
    else:
        shown = f"'{class_names[first]}'" if class_names else f"{first}"
        what = f"{'tokens' if task == 'language_modelling' else 'samples'} are of class {shown}"
    raise UserError(
        f"{source}: all {len(labels):,} training {what}; there is nothing to learn.",
        ErrorCode.INVALID_DATA,
    )


MAX_BYTES_HASHED = 2**30  # only the first samples of a split, up to this size, are compared
REPEATED = 50
"""Mean number of copies of a training sample above which equal samples in two splits are to be
expected and are not reported."""
Codes = npt.NDArray[np.int64]


def dataset_warnings(dataset: Dataset) -> list[str]:
    """Return warnings about a dataset, one sentence for each problem.

    The problems are training inputs that are all equal, samples that occur in two splits,
    validation or test splits with a single class, and classes without training samples.
    """
    splits = dataset.splits.items()
    keys = {name: _keys(split) for name, split in splits if len(split) and not split.is_on_demand}
    return [*_duplicate_warnings(keys), *_class_warnings(dataset)]


def _keys(split: Split) -> Codes:
    """Return the hash of each sample's inputs, for the first MAX_BYTES_HASHED bytes of a split."""
    arrays = parts(split.arrays)
    row_bytes = sum(array.nbytes for array in arrays) // len(split)
    keys = np.zeros(min(len(split), MAX_BYTES_HASHED // max(1, row_bytes)), np.int64)
    for array in arrays:
        keys ^= np.array([hash(row.tobytes()) for row in array[: len(keys)]], np.int64)
    return keys


def _duplicate_warnings(keys: Mapping[str, Codes]) -> Iterator[str]:
    """Yield warnings about samples with equal inputs; `keys` are their hashes, keyed by split."""
    if "train" in keys:
        num_train, num_distinct = len(keys["train"]), len(np.unique(keys["train"]))
        if num_distinct == 1 < num_train:
            yield (
                f"all {num_train:,} training samples have the same inputs, from which nothing can "
                "be learned; check how they are read."
            )
        if num_distinct * REPEATED < num_train:
            return
    for other, name in itertools.combinations(keys, 2):
        same = np.flatnonzero(np.isin(keys[name], keys[other]))
        if len(same):
            first = int(same[0])
            first_other = int(np.flatnonzero(keys[other] == keys[name][first])[0])
            shown, harm = other, "the winner was selected on these samples"
            if other == "train":
                shown, harm = "training", "a model may have memorized them"
            yield (
                f"{len(same):,} of {len(keys[name]):,} {name} samples also occur in the {shown} "
                f"split (first pair with equal inputs: {name} sample {first:,}, {shown} sample "
                f"{first_other:,}): {harm}; remove duplicates."
            )


def _class_warnings(dataset: Dataset) -> Iterator[str]:
    """Yield warnings about splits with a single class, and about classes without training
    samples."""
    labels = [split.labels for split in dataset.splits.values()]
    if dataset.task != "classification" or labels[0].ndim > 1 or dataset.num_classes is None:
        return
    names = dataset.names_of_classes
    counts = np.array([np.bincount(part, minlength=dataset.num_classes) for part in labels])
    for split, class_counts in zip(SPLITS[1:], counts[1:], strict=True):
        if class_counts.sum() > 1 and class_counts.max() == class_counts.sum():
            yield (
                f"all {class_counts.sum():,} {split} samples belong to one class, "
                f"'{names[class_counts.argmax()]}', so they do not show whether the model "
                "distinguishes classes."
            )
    unknown = np.flatnonzero((counts[0] == 0) & (counts.sum(axis=0) > 0))
    if len(unknown):
        shown = ", ".join(f"'{names[number]}'" for number in unknown[:5])
        more = ", ..." if len(unknown) > 5 else ""
        yield (
            f"classes without training samples ({shown}{more}; {len(unknown):,} in all) have "
            f"{counts[1:, unknown].sum():,} validation and test samples."
        )
