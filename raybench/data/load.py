"""From a `DatasetSpec` to arrays."""

import dataclasses
import importlib
from collections.abc import Callable
from functools import lru_cache

from raybench.core.errors import UserError
from raybench.core.spec import DatasetSpec
from raybench.data.dataset import Dataset
from raybench.data.digits import load_digits
from raybench.data.memory import require_memory
from raybench.data.mnist import load_mnist
from raybench.data.synthetic import load_synthetic
from raybench.data.weights import weighted


def _later(module: str, name: str) -> Callable[[DatasetSpec], Dataset]:
    """Return a loader of `sources`, imported when it is needed: PIL and pyarrow take a while."""

    def load(spec: DatasetSpec) -> Dataset:
        loader = getattr(importlib.import_module(f"raybench.data.sources.{module}"), name)
        dataset: Dataset = loader(spec)
        return dataset

    return load


ORDER_BYTES = 16
"""Of each sample of an epoch in memory: its place in the order, and in the arrays."""
LOADERS: dict[str, Callable[[DatasetSpec], Dataset]] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "synthetic": load_synthetic,
    "image_folder": _later("image_folder", "load_image_folder"),
    "csv": _later("tables", "load_csv"),
    "parquet": _later("tables", "load_parquet"),
    "text": _later("tables", "load_text"),
    "huggingface": _later("tables", "load_huggingface"),
    "npz": _later("npz", "load_npz"),
    "keras": _later("keras_sets", "load_keras"),
    "torchvision": _later("torchvision_sets", "load_torchvision"),
}
STORED = frozenset(
    ("image_folder", "csv", "parquet", "text", "huggingface", "npz", "keras", "torchvision")
)
"""Datasets whose arrays are mapped from the store of the machine already: nothing copies them."""


NOT_USED = {
    "image_folder": ("columns", "categories", "image", "text", "weight"),
    "text": ("label", "columns", "categories", "image", "text", "weight", "image_size", "channels"),
    "npz": ("categories", "image", "text"),
}
"""Keys that such files have nothing for: whoever sets one believes that it does something."""


def load_dataset(spec: DatasetSpec) -> Dataset:
    """Load, scale and split the dataset; a second call with an equal spec costs nothing.

    The arrays are shared between callers: do not write to them. Name `workload` is not for
    here, see `raybench.workloads.find.load_workload_dataset`. Missing or damaged files, and
    sizes that the dataset cannot give, are UserErrors.
    """
    # A spec holds a list, so it cannot be hashed: its JSON is the key.
    return _load(spec.model_dump_json())


@lru_cache(maxsize=4)
def _load(spec_json: str) -> Dataset:
    return build_dataset(DatasetSpec.model_validate_json(spec_json))


def build_dataset(spec: DatasetSpec) -> Dataset:
    """Load, scale and split anew: as `load_dataset`, and nothing of it is kept here."""
    for key in NOT_USED.get(spec.name, ()):
        if getattr(spec, key) is not None:
            raise UserError(
                f"dataset.{key} is not for {spec.name}, which has no use for it; leave it out."
            )
    return limit_and_repeat(LOADERS[spec.name](spec), spec)


def limit_and_repeat(dataset: Dataset, spec: DatasetSpec) -> Dataset:
    """Keep the first `spec.limit` training samples, `spec.repeat` times an epoch; weigh them.

    A limit above what there is, and an epoch whose order fills the memory, are UserErrors.
    """
    train = dataset.train
    if spec.limit is not None:
        if spec.limit > len(train):
            raise UserError(
                f"dataset.limit {spec.limit} is more than the {len(train)} training samples of "
                f"{dataset.name}; choose a smaller one, or leave it out to use all."
            )
        train = train.take(slice(spec.limit))
    require_memory(
        ORDER_BYTES * len(train) * spec.repeat,
        f"dataset.repeat {spec.repeat} (the order of {len(train) * spec.repeat:,} samples)",
    )
    return weighted(dataclasses.replace(dataset, train=train, repeat=spec.repeat), spec)
