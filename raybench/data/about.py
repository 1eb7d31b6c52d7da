"""What is known of a dataset beside its arrays, as plain data for a file of JSON."""

from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import Dataset, Split


def about_dataset(dataset: Dataset) -> dict[str, Any]:
    """Return all but the arrays of the splits; `input_names` in the order of `inputs.parts`."""
    inputs = dataset.train.inputs
    return {
        "name": dataset.name,
        "num_classes": None if dataset.num_classes is None else int(dataset.num_classes),
        "repeat": int(dataset.repeat),
        "task": dataset.task,
        "class_names": list(dataset.class_names),
        "vocabulary": list(dataset.vocabulary),
        "label_scale": _listed(dataset.label_scale),
        "label_offset": _listed(dataset.label_offset),
        "encoding": dataset.encoding,
        "input_names": sorted(inputs) if isinstance(inputs, dict) else None,
    }


def dataset_of(about: dict[str, Any], splits: dict[str, Split]) -> Dataset:
    """Return the dataset that `about_dataset` has described, of these splits."""
    return Dataset(
        about["name"],
        about["num_classes"],
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        repeat=about["repeat"],
        task=about["task"],
        class_names=tuple(about["class_names"]),
        label_scale=_array(about["label_scale"]),
        label_offset=_array(about["label_offset"]),
        vocabulary=tuple(about["vocabulary"]),
        encoding=about["encoding"],
    )


def _listed(array: npt.NDArray[np.float32] | None) -> float | list[float] | None:
    return None if array is None else np.asarray(array, np.float32).tolist()


def _array(values: float | list[float] | None) -> npt.NDArray[np.float32] | None:
    return None if values is None else np.array(values, np.float32)
