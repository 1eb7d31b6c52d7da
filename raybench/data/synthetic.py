"""Random images and labels of any shape: for throughput, there is nothing to learn."""

import math

import numpy as np

from raybench.core.errors import UserError
from raybench.core.spec import DatasetSpec
from raybench.data.dataset import Dataset, Split, num_of
from raybench.data.memory import require_memory

LABEL_BYTES = 8


def load_synthetic(spec: DatasetSpec) -> Dataset:
    """Return `num_samples` training samples of `shape`, uint8; a function of `split_seed`.

    Of a regression labels are `num_classes` numbers each; of a language model the inputs are
    tokens, and labels the tokens that follow them.

    Validation and test have a quarter of `num_samples` each, or `validation_size`. More than
    this machine's memory holds is a UserError.
    """
    if spec.image_size is not None and spec.shape[:2] != [spec.image_size, spec.image_size]:
        raise UserError(
            f"dataset.image_size {spec.image_size} and dataset.shape {spec.shape} disagree; "
            "synthetic images take their size from dataset.shape, so set image_size to null."
        )
    quarter = max(1, spec.num_samples // 4)
    sizes = (
        spec.num_samples,
        num_of(spec.validation_size, spec.num_samples, usual=quarter),
        quarter,
    )
    num_bytes = sum(sizes) * (math.prod(spec.shape) + LABEL_BYTES)
    require_memory(num_bytes, f"{sum(sizes):,} synthetic samples of shape {spec.shape}")
    rng = np.random.default_rng(spec.split_seed)
    train, validation, test = (_random_split(rng, num_samples, spec) for num_samples in sizes)
    task = spec.task or "classification"
    classes = None if task == "regression" else spec.num_classes
    return Dataset("synthetic", classes, train=train, validation=validation, test=test, task=task)


def _random_split(rng: np.random.Generator, num_samples: int, spec: DatasetSpec) -> Split:
    classes, shape = spec.num_classes, (num_samples, *spec.shape)
    if spec.task == "language_modelling":
        tokens = rng.integers(0, classes, size=shape, dtype=np.int32)
        return Split(tokens, np.roll(tokens, -1, axis=1).astype(np.int64))
    inputs = rng.integers(0, 256, size=shape, dtype=np.uint8)
    if spec.task == "regression":
        size = num_samples if classes == 1 else (num_samples, classes)
        return Split(inputs, rng.standard_normal(size, np.float32))
    return Split(inputs, rng.integers(0, classes, size=num_samples, dtype=np.int64))
