"""Samples in an order that any part of is alike, and the splits that are cut from it.

Arrays of the store are written in this order, so every split is a slice of one file: no copy, and
other sizes of splits need no other file.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import Array, Dataset, Split, num_of
from raybench.spec.errors import UserError
from raybench.spec.run import DatasetSpec

Floats = npt.NDArray[np.float32]


def standardised(labels: Sequence[Array], source: str) -> tuple[list[Array], Floats, Floats]:
    """Return labels by split, of mean 0 and deviation 1 over the first, which is trained on.

    With them what they were divided by, and what was taken off before; () or (outputs,). Labels
    that are all the same are a UserError.
    """
    train = labels[0].astype(np.float64)
    offset, scale = train.mean(axis=0), train.std(axis=0)
    if not np.all(scale > 0):
        raise UserError(
            f"{source}: all labels of the training split are the same, so there is nothing to "
            "learn; name another column."
        )
    scaled = [((one - offset) / scale).astype(np.float32) for one in labels]
    return scaled, np.asarray(scale, np.float32), np.asarray(offset, np.float32)


def dataset_of_parts(
    name: str, parts: Sequence[Split], about: Mapping[str, Any], source: str, **known: Any
) -> Dataset:
    """Return the dataset of its three splits; labels of a regression are standardised.

    `about` has the task and the names of the classes, `known` more of the dataset's fields.
    """
    names = tuple(about["class_names"])
    if about["task"] == "regression":
        labels, known["label_scale"], known["label_offset"] = standardised(
            [part.labels for part in parts], source
        )
        parts = [replace(part, labels=one) for part, one in zip(parts, labels, strict=True)]
    content = {"num_classes": len(names) or None, "task": about["task"], "class_names": names}
    train, validation, test = parts
    return Dataset(name, train=train, validation=validation, test=test, **content | known)


TYPICAL_SHARE = 0.1
"""Of all samples, for validation where nothing is said; for the test as many."""


def mixed_order(
    labels: npt.NDArray[np.int64] | None, number: int, *, seed: int
) -> npt.NDArray[np.int64]:
    """Return a permutation of `number` samples that depends on `seed` alone.

    With labels (N,) every class is spread evenly over it: of any part of the order each class has
    its share of that part, to within one sample.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(number)
    if labels is None:
        return order
    shuffled = labels[order]
    by_class = np.argsort(shuffled, kind="stable")
    counts = np.bincount(shuffled)
    starts = np.cumsum(counts) - counts
    rank = np.arange(number) - starts[shuffled[by_class]]
    place = np.empty(number)
    place[by_class] = (rank + 0.5) / counts[shuffled[by_class]]
    # Of equal places the order that the seed gave decides.
    return order[np.argsort(place, kind="stable")]


def held_out_line(num_train: int, spec: DatasetSpec, parts: Container[str]) -> str | None:
    """Say that the test takes training rows of a user who brought a validation split alone."""
    if "validation" not in parts or "test" in parts or spec.test_size is not None:
        return None
    number = max(1, round(TYPICAL_SHARE * num_train))
    return (
        f"{number:,} of the {num_train:,} training rows are held out to test the winner, since "
        "there is no test split of their own; bring one (a file or folder named test), or say how "
        "many with dataset.test_size (none: nothing is held out, nothing tested)."
    )


def cut(
    train: Split, validation: Split | None, test: Split | None, spec: DatasetSpec, *, source: str
) -> tuple[Split, Split, Split]:
    """Return (train, validation, test); what is not there is cut from the begin of `train`.

    Shares are of the samples that are cut. A size that leaves nothing to train on, and a size of
    a split that the data bring themselves, are UserErrors naming `source`.
    """
    for key, size, own in (
        ("validation_size", spec.validation_size, validation),
        ("test_size", spec.test_size, test),
    ):
        if size is not None and own is not None:
            raise UserError(
                f"dataset.{key} {size}: {source} has a split of its own for it, of {len(own):,} "
                "samples; leave the key out."
            )
    total = len(train)
    typical = max(1, round(TYPICAL_SHARE * total))
    num_validation = 0
    if validation is None:
        num_validation = num_of(spec.validation_size, total, typical=typical)
    num_test = 0
    if test is None:
        num_test = num_of(spec.test_size, total, typical=num_validation or typical)
    if num_validation + num_test >= total:
        raise UserError(
            f"dataset: {num_validation:,} samples for validation and {num_test:,} for the test "
            f"leave nothing of the {total:,} samples of {source} to train on; choose a smaller "
            "validation_size or test_size."
        )
    if test is None:
        test = train.take(slice(num_test))
    if validation is None:
        validation = train.take(slice(num_test, num_test + num_validation))
    return train.take(slice(num_test + num_validation, None)), validation, test
