"""A whole `Dataset` in the store: for loaders that make one in memory, or with a `Writer`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from raybench.data.dataset import SPLITS, Dataset, Split
from raybench.data.store.build import Stored
from raybench.data.store.writer import Array, Writer

_NAMES = ("class_names", "vocabulary")
_SCALES = ("label_scale", "label_offset")


def write_dataset(writer: Writer, dataset: Dataset) -> dict[str, Any]:
    """Write a dataset's arrays; return what `read_dataset` needs besides, as `build` does."""
    for part in SPLITS:
        split: Split = getattr(dataset, part)
        inputs = split.arrays
        for name, array in _named(part, inputs).items():
            writer.save(name, array)
        writer.save(f"{part}-labels", split.labels)
        if split.weights is not None:
            writer.save(f"{part}-weights", split.weights)
    description: dict[str, Any] = {
        "name": dataset.name,
        "num_classes": None if dataset.num_classes is None else int(dataset.num_classes),
        "repeat": int(dataset.repeat),
        "task": dataset.task,
        "encoding": dataset.encoding,
    }
    description |= {name: list(getattr(dataset, name)) for name in _NAMES}
    for name in _SCALES:
        scale = getattr(dataset, name)
        description[name] = None if scale is None else np.asarray(scale).tolist()
    return description


def read_dataset(stored: Stored) -> Dataset:
    """Return the dataset that `write_dataset` wrote, its arrays mapped."""
    content = dict(stored.about)
    for name in _NAMES:
        content[name] = tuple(content[name])
    for name in _SCALES:
        if content[name] is not None:
            content[name] = np.asarray(content[name], np.float32)
    for part in SPLITS:
        content[part] = _split(stored.arrays, part)
    return Dataset(**content)


def _named(part: str, inputs: Array | dict[str, Array]) -> dict[str, Array]:
    if isinstance(inputs, dict):
        return {f"{part}-input-{name}": array for name, array in inputs.items()}
    return {f"{part}-inputs": inputs}


def _split(arrays: Mapping[str, Array], part: str) -> Split:
    begin = f"{part}-input-"
    inputs: Any = arrays.get(f"{part}-inputs")
    if inputs is None:
        inputs = {name[len(begin) :]: arrays[name] for name in arrays if name.startswith(begin)}
    return Split(inputs, arrays[f"{part}-labels"], arrays.get(f"{part}-weights"))
