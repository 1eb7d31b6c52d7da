"""What a saved model must be told of its data, so that it can be used on new samples."""

from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import ValidationError

from raybench.core.dataset_spec import DatasetSpec, Task
from raybench.core.documents import Document
from raybench.core.errors import UserError
from raybench.data.about import about_dataset
from raybench.data.dataset import Array, Dataset
from raybench.data.inputs import Batch, InputShape, each, shown
from raybench.workloads.shape import DataShape, Kind

DTYPES = {"pixels": np.uint8, "numbers": np.float32, "tokens": np.int32}
"""Of one array of inputs, by what it holds."""


class ModelData(Document):
    """Of the data that a model was trained on: all but the samples."""

    name: str
    """Of the dataset."""
    task: Task
    """What was learnt."""
    num_classes: int | None
    """Classes, or tokens of a vocabulary; None of numbers."""
    class_names: tuple[str, ...]
    """By number; empty where classes have none."""
    vocabulary: tuple[str, ...]
    """Tokens by number; empty where there are none, or nobody knows them."""
    label_scale: float | list[float] | None
    """What labels of a regression were divided by; None is 1."""
    label_offset: float | list[float] | None
    """What was taken off them before; None is 0."""
    encoding: dict[str, Any] | None
    """See `Dataset.encoding`."""
    input_shape: tuple[int, ...] | dict[str, tuple[int, ...]]
    """See `DataShape`, as for the next ones."""
    num_outputs: int
    """Numbers that the model returns for a sample, of a language model for a token of it."""
    vocabulary_size: int | None
    """Token ids are below it; None where nobody knows."""
    kind: Kind | None
    """What the inputs are; None for inputs by name."""
    resize: Literal["stretch", "crop"]
    """What became of images that were not square."""

    @classmethod
    def of(cls, dataset: Dataset, spec: DatasetSpec) -> Self:
        """Return what is to be known of a dataset; `spec` is what it was loaded by."""
        about = about_dataset(dataset)
        shape = DataShape.of(dataset)
        return cls(
            **{key: about[key] for key in ("name", "task", "num_classes", "encoding")},
            class_names=dataset.class_names,
            vocabulary=dataset.vocabulary,
            label_scale=about["label_scale"],
            label_offset=about["label_offset"],
            input_shape=each_tuple(shape.input_shape),
            num_outputs=shape.num_outputs,
            vocabulary_size=shape.vocabulary_size,
            kind=shape.kind,
            resize=spec.resize,
        )

    @classmethod
    def read(cls, file: Path) -> Self:
        """Return what was saved beside a model; UserError where the file is damaged."""
        try:
            return cls.model_validate_json(file.read_bytes())
        except ValidationError as error:
            detail = error.errors()[0]
            key = ".".join(map(str, detail["loc"])) or "the whole file"
            raise UserError(
                f"{file}: '{key}': {detail['msg']}; remove the file, then the dataset is read."
            ) from None

    @property
    def shape(self) -> DataShape:
        """What the model was built for."""
        return DataShape(
            input_shape=self.input_shape,
            num_outputs=self.num_outputs,
            task=self.task,
            vocabulary_size=self.vocabulary_size,
            kind=self.kind,
        )

    def inputs(self, samples: Any) -> Batch:
        """Return new samples as the arrays that a dataset has: pixels, features, token ids.

        Of a table `samples` are rows (a data frame, a dict of columns, a list of dicts), of texts
        a list of them, of images paths of files (or what is in them), and of all others, and
        where they are made already, arrays. UserError for what the model cannot take.
        """
        # pyarrow and PIL are imported where a model is used alone.
        from raybench.data.sources import new_samples

        encoding = self.encoding or {}
        length = self.input_shape[0] if isinstance(self.input_shape, tuple) else 0
        is_raw = not isinstance(samples, np.ndarray)
        if "columns" in encoding and is_raw:
            return new_samples.rows_as_inputs(samples, encoding["columns"])
        if "tokens" in encoding and is_raw:
            return new_samples.texts_as_inputs(samples, encoding["tokens"], self.vocabulary, length)
        if self.kind == "pixels" and is_raw and _are_files(samples):
            assert isinstance(self.input_shape, tuple)
            return new_samples.files_as_inputs(samples, self.input_shape, self.resize)
        if "scale" in encoding:
            samples = (np.asarray(samples, np.float64) - encoding["offset"]) / encoding["scale"]
        return self._checked(samples)

    def _checked(self, samples: Any) -> Batch:
        dtype = None if self.kind is None else DTYPES[self.kind]
        found: Batch = each(samples, lambda one: np.asarray(one, dtype))
        shape: InputShape = each(found, lambda one: tuple(one.shape[1:]))
        if shape != self.input_shape:
            raise UserError(
                f"The model takes samples of shape {shown(self.input_shape)}, and these are of "
                f"{shown(shape)}; make them alike."
            )
        return found

    def answers(self, outputs: Array) -> Array:
        """Return what a model's outputs (N, ...) say, in the user's own terms.

        Of a regression numbers in the labels' own unit; else the names of the likeliest classes
        or tokens, or their numbers where they have no names.
        """
        if self.task != "regression":
            best = outputs.argmax(axis=-1)
            names = self.class_names or self.vocabulary
            found: Array = np.asarray(names)[best] if names else best
            return found
        if outputs.ndim == 2 and outputs.shape[1] == 1 and np.ndim(self.label_scale or 0.0) == 0:
            outputs = outputs[:, 0]
        scale = 1.0 if self.label_scale is None else np.asarray(self.label_scale)
        offset = 0.0 if self.label_offset is None else np.asarray(self.label_offset)
        return np.asarray(outputs * scale + offset, np.float32)


def each_tuple(shape: Any) -> "tuple[int, ...] | dict[str, tuple[int, ...]]":
    """Return a shape with tuples where lists stand, of inputs by name each."""
    if isinstance(shape, dict):
        return {name: tuple(one) for name, one in shape.items()}
    return tuple(shape)


def _are_files(samples: Any) -> bool:
    return bool(samples) and all(isinstance(one, str | bytes | Path) for one in samples)
