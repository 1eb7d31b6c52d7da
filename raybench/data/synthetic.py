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
    return Dataset("synthetic", spec.num_classes, train=train, validation=validation, test=test)


def _random_split(rng: np.random.Generator, num_samples: int, spec: DatasetSpec) -> Split:
    inputs = rng.integers(0, 256, size=(num_samples, *spec.shape), dtype=np.uint8)
    return Split(inputs, rng.integers(0, spec.num_classes, size=num_samples, dtype=np.int64))
