"""Loading of the dataset that a dataset spec describes, including limit, repetitions and class
weights."""

import dataclasses
import importlib
import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np

from raybench.data.dataset import Dataset, Split, num_of
from raybench.data.digits import load_digits, load_mnist
from raybench.data.memory import require_memory
from raybench.data.store import open_shared, pinning, shared_key
from raybench.spec.errors import ErrorCode, UserError, did_you_mean
from raybench.spec.run import DatasetSpec


def load_synthetic(spec: DatasetSpec) -> Dataset:
    """Return a dataset of random samples, seeded by `split_seed`.

    The training split has `num_samples` samples of shape `shape`, and the test split a quarter of
    this number. The validation split is as large as the test split, unless `validation_size` is
    set. Inputs are uint8 images. For a language model, inputs are int32 tokens, and labels are the
    next tokens. A label of a regression has `num_classes` numbers.

    Raises:
        UserError: The samples do not fit into memory.
    """
    if spec.image_size is not None and spec.shape[:2] != [spec.image_size, spec.image_size]:
        raise UserError(
            f"dataset.image_size {spec.image_size} contradicts dataset.shape {spec.shape}; remove "
            "image_size.",
            ErrorCode.CONFLICT,
        )
    quarter = max(1, spec.num_samples // 4)
    held_out = num_of(spec.validation_size, spec.num_samples, typical=quarter)
    sizes = (spec.num_samples, held_out, quarter)
    num_bytes = sum(sizes) * (math.prod(spec.shape) + 8)  # 8 bytes for the label
    require_memory(num_bytes, f"{sum(sizes):,} synthetic samples of shape {spec.shape}")
    rng = np.random.default_rng(spec.split_seed)
    train, validation, test = (_random_split(rng, num_samples, spec) for num_samples in sizes)
    task = spec.task or "classification"
    classes = None if task == "regression" else spec.num_classes
    return Dataset("synthetic", classes, train, validation, test, task=task)


def _random_split(rng: np.random.Generator, num_samples: int, spec: DatasetSpec) -> Split:
    """Return a split of the dataset `synthetic` with the given number of samples."""
    classes, shape = spec.num_classes, (num_samples, *spec.shape)
    if spec.task == "language_modelling":
        tokens = rng.integers(0, classes, size=shape, dtype=np.int32)
        return Split(tokens, np.roll(tokens, -1, axis=1).astype(np.int64))
    inputs = rng.integers(0, 256, size=shape, dtype=np.uint8)
    if spec.task == "regression":
        size = num_samples if classes == 1 else (num_samples, classes)
        return Split(inputs, rng.standard_normal(size, np.float32))
    return Split(inputs, rng.integers(0, classes, size=num_samples, dtype=np.int64))


def weighted(dataset: Dataset, spec: DatasetSpec) -> Dataset:
    """Return a dataset in which the weights of training samples include `spec.class_weights`.

    Each weight is multiplied by the weight of the sample's class. The products are scaled to mean
    1, so that the best learning rate does not depend on their scale.

    Raises:
        UserError: A class is unknown, the task has no classes, or all weights are 0.
    """
    train, class_weights = dataset.train, spec.class_weights
    if class_weights is None and train.weights is None:
        return dataset
    weights = np.ones(len(train)) if train.weights is None else train.weights.astype(np.float64)
    if class_weights is not None:
        if dataset.task != "classification":
            raise UserError(
                f"dataset.class_weights: {dataset.name} has no classes ({dataset.task}); remove "
                "the key.",
                ErrorCode.UNSUPPORTED,
            )
        assert dataset.num_classes is not None
        by_class, names = np.ones(dataset.num_classes), dataset.names_of_classes
        if class_weights == "balanced":
            counts = np.bincount(train.labels, minlength=dataset.num_classes)
            by_class = 1.0 / np.maximum(counts, 1)
        else:
            assert not isinstance(class_weights, str)
            for name, weight in class_weights.items():
                if name not in names:
                    listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else ".")
                    raise UserError(
                        f"dataset.class_weights: {dataset.name} has no class '{name}'; "
                        f"{did_you_mean(name, names, f'there are {listed}')}",
                        ErrorCode.UNKNOWN_NAME,
                    )
                by_class[names.index(name)] = weight
        weights *= by_class[train.labels]
    mean = weights.mean()
    if mean == 0:
        raise UserError(
            f"dataset.weight: all training samples of {dataset.name} have weight 0.",
            ErrorCode.INVALID_DATA,
        )
    scaled = (weights / mean).astype(np.float32)
    return dataclasses.replace(dataset, train=dataclasses.replace(train, weights=scaled))


LOADERS: dict[str, Callable[[DatasetSpec], Dataset]] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "synthetic": load_synthetic,
}
STORED = {
    **dict.fromkeys(("image_folder", "csv", "parquet", "text", "huggingface"), "tables"),
    **dict.fromkeys(("npz", "keras", "torchvision"), "arrays"),
}
"""Module of `sources` that loads each dataset, keyed by name of the dataset. The arrays of these
datasets are memory-mapped from the store of decoded datasets (`data/store.py`). The modules are
imported only when they are needed, since importing pyarrow is slow."""
NOT_USED = {
    "image_folder": ("label", "columns", "categories", "image", "text", "weight"),
    "text": ("label", "columns", "categories", "image", "text", "weight", "image_size", "channels"),
    "npz": ("categories", "image", "text"),
    **dict.fromkeys(("digits", "mnist", "synthetic"), ("test_size",)),
}
"""Keys that have no effect on a dataset, keyed by name of the dataset. To set one is an error."""


def load_dataset(spec: DatasetSpec, shared: Path | None = None) -> Dataset:
    """Load, scale and split the dataset that a spec describes.

    The datasets loaded last are cached, so a call with an equal spec returns the same object, whose
    arrays must not be changed.

    Args:
        spec: Spec of any dataset except `workload`, for which
            `raybench.models.find.load_workload_dataset` is used.
        shared: A folder on this machine through which the processes of a session (one raybench
            command) share the arrays; None if arrays are not shared.

    Raises:
        UserError: Files are missing or damaged, or the dataset has fewer samples than the spec
            requires.
    """
    # The spec is passed to the cache as JSON, because it contains lists and so cannot be hashed.
    return _load(spec.model_dump_json(), shared)


@lru_cache(maxsize=4)
def _load(spec_json: str, shared: Path | None) -> Dataset:
    spec = DatasetSpec.model_validate_json(spec_json)
    if shared is None:
        return build_dataset(spec)
    if spec.name in STORED:
        with pinning(shared):
            return build_dataset(spec)
    return open_shared(shared / shared_key("", spec), lambda: build_dataset(spec))


def build_dataset(spec: DatasetSpec) -> Dataset:
    """Load, scale and split the dataset that a spec describes.

    Unlike `load_dataset`, it caches nothing in this process.
    """
    for key in NOT_USED.get(spec.name, ()):
        if getattr(spec, key) is not None:
            raise UserError(
                f"dataset.{key} has no effect on {spec.name}; remove it.", ErrorCode.UNSUPPORTED
            )
    load = LOADERS.get(spec.name)
    if load is None:
        module = importlib.import_module(f"raybench.data.sources.{STORED[spec.name]}")
        load = getattr(module, f"load_{spec.name}")
    return limit_and_repeat(load(spec), spec)


def limit_and_repeat(dataset: Dataset, spec: DatasetSpec) -> Dataset:
    """Return a dataset with `spec.limit`, `spec.repeat` and `spec.class_weights` applied to its
    training split.

    Raises:
        UserError: The limit exceeds the number of samples, or the order of the samples in an epoch
            does not fit into memory.
    """
    train = dataset.train
    if spec.limit is not None:
        if spec.limit > len(train):
            raise UserError(
                f"dataset.limit {spec.limit} exceeds the {len(train)} training samples of "
                f"{dataset.name}; choose a smaller limit.",
                ErrorCode.TOO_FEW,
            )
        train = train.take(slice(spec.limit))
    number = len(train) * spec.repeat
    require_memory(16 * number, f"dataset.repeat {spec.repeat} (the order of {number:,} samples)")
    return weighted(dataclasses.replace(dataset, train=train, repeat=spec.repeat), spec)
