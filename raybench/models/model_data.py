"""Description of the training data, which is saved with a model and used to encode new samples."""

from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import ValidationError

from raybench.data.dataset import Array, Batch, Dataset, InputShape, about_dataset, each, shown
from raybench.models.base import DataShape, Kind
from raybench.spec.dataset_spec import DatasetSpec, Task
from raybench.spec.documents import Document
from raybench.spec.errors import ErrorCode, UserError

DTYPES = {"pixels": np.uint8, "numbers": np.float32, "tokens": np.int32}
"""NumPy data types of input arrays, by meaning of the inputs (see `Kind`)."""


class ModelData(Document):
    """Description of the data that a model was trained on, without the samples."""

    name: str
    """Name of the dataset."""
    task: Task
    """Task of the model."""
    num_classes: int | None
    """Number of classes, or of token ids of a language model; None for regression."""
    class_names: tuple[str, ...]
    """Names of the classes, in the order of their numbers; empty if classes have no names."""
    vocabulary: tuple[str, ...]
    """Tokens, in the order of their ids; empty if unknown, or if the inputs are not tokens."""
    label_scale: float | list[float] | None
    """Number by which regression labels were divided to standardize them; None means 1."""
    label_offset: float | list[float] | None
    """Number that was subtracted from the labels before the division; None means 0."""
    encoding: dict[str, Any] | None
    """Encoding of raw samples as inputs; see `Dataset.encoding`."""
    input_shape: tuple[int, ...] | dict[str, tuple[int, ...]]
    """Shape of one sample; see `DataShape`."""
    num_outputs: int
    """Number of outputs of the model for one sample, or for one token of a language model."""
    vocabulary_size: int | None
    """Number of token ids; None if unknown, or if the inputs are not tokens."""
    kind: Kind | None
    """Meaning of the inputs (pixels, numbers or tokens); None for named inputs."""
    resize: Literal["stretch", "crop"]
    """How images that are not square were resized; see `DatasetSpec.resize`."""

    @classmethod
    def of(cls, dataset: Dataset, spec: DatasetSpec) -> Self:
        """Return the description of a dataset, given the spec with which it was loaded."""
        facts = about_dataset(dataset) | vars(DataShape.of(dataset)) | {"resize": spec.resize}
        facts |= {key: tuple(facts[key]) for key in ("class_names", "vocabulary")}
        return cls(**{key: facts[key] for key in cls.model_fields})

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the description from the file that is stored next to a saved model.

        Raises:
            UserError: The file is damaged.
        """
        try:
            return cls.model_validate_json(file.read_bytes())
        except ValidationError as error:
            detail = error.errors()[0]
            key = ".".join(map(str, detail["loc"])) or "the whole file"
            raise UserError(
                f"{file}: '{key}': {detail['msg']}; remove the file, and the dataset is read "
                "instead.",
                ErrorCode.INVALID_FILE,
            ) from None

    @property
    def shape(self) -> DataShape:
        """Shape of the data that the model was built for."""
        return DataShape(**{field.name: getattr(self, field.name) for field in fields(DataShape)})

    def inputs(self, samples: Any) -> Batch:
        """Encode new samples in the same way as the training data: as pixels, features or token
        ids.

        Args:
            samples: Rows of a table (a data frame, a dict of columns, or a list of dicts), a list
                of texts, a list of images (paths or bytes), or arrays that need no encoding.

        Returns:
            An array (N, *input_shape), or a dict of arrays for named inputs.

        Raises:
            UserError: The model does not accept such samples.
        """
        encoding = self.encoding or {}
        length = self.input_shape[0] if isinstance(self.input_shape, tuple) else 0
        is_raw = not isinstance(samples, np.ndarray) or samples.dtype.kind in "OSU"
        if "columns" in encoding and is_raw:
            from raybench.data.sources.encode import rows_as_inputs  # slow to import

            return rows_as_inputs(samples, encoding["columns"])
        if "tokens" in encoding and is_raw:
            from raybench.data.sources.texts import texts_as_inputs

            return texts_as_inputs(samples, encoding["tokens"], self.vocabulary, length)
        if self.kind == "pixels" and isinstance(samples, str | bytes | Path):
            raise UserError(
                "A single image was passed; pass a list: [image].", ErrorCode.INVALID_DATA
            )
        if self.kind == "pixels" and is_raw and _are_files(samples):
            assert isinstance(self.input_shape, tuple)
            from raybench.data.sources.images import files_as_inputs

            pixels: Batch = files_as_inputs(
                samples, self.input_shape, self.resize, encoding.get("white")
            )
            return pixels
        arrays = self._checked_arrays(samples)
        return each(arrays, self._converted)

    def _checked_arrays(self, samples: Any) -> Batch:
        """Convert samples to arrays; raise UserError if they do not have the shape of the training
        data."""
        try:
            arrays: Batch = each(samples, np.asarray)
            arrays = each(
                arrays, lambda array: array if array.dtype.kind in "buif" else array.astype(float)
            )
        except (TypeError, ValueError) as error:
            raise UserError(
                f"The samples are not arrays of numbers ({error}); pass samples like the training "
                "data.",
                ErrorCode.INVALID_DATA,
            ) from error
        shape: InputShape = each(arrays, lambda array: tuple(array.shape[1:]))
        if shape != self.input_shape:
            raise UserError(
                f"The model takes samples of shape {shown(self.input_shape)}, but these have "
                f"{shown(shape)}; use the same shape.",
                ErrorCode.INVALID_DATA,
            )
        return arrays

    def _converted(self, array: Array) -> Array:
        """Convert an array to the data type of the training data; raise UserError if it contains
        invalid values."""
        if self.kind is None:  # named inputs keep their types
            return array.astype(np.float32) if array.dtype.kind == "f" else array
        with np.errstate(invalid="ignore", over="ignore"):
            converted: Array = array.astype(DTYPES[self.kind])
        if self.kind == "numbers":
            is_valid = np.isfinite(converted)
            requirement = "finite numbers"
        else:
            is_valid, requirement = converted == array, "whole numbers from 0 to 255"
        if self.kind == "tokens":
            # As in training, a user's own model may take any id if the vocabulary is unknown.
            size = len(self.vocabulary) or np.iinfo(np.int32).max
            is_valid &= (converted >= 0) & (converted < size)
            requirement = f"token ids, whole numbers from 0 to {size - 1:,}"
        if not is_valid.all():
            row = int(np.argwhere(~is_valid)[0][0])
            raise UserError(
                f"The model takes {requirement}, but sample {row} has other values; correct them.",
                ErrorCode.INVALID_DATA,
            )
        return converted

    def answers(self, outputs: Array) -> Array:
        """Convert outputs of the model, shape (N, ...), to predictions.

        Returns:
            For a regression, numbers in the original unit of the labels. Otherwise, the names of
            the most likely classes or tokens, or the class numbers if the classes have no names.
        """
        if self.task != "regression":
            best: Array = outputs.argmax(axis=-1)
            is_text = self.task == "language_modelling"
            names = self.class_names or (self.vocabulary if is_text else ())
            return np.asarray(names)[best] if names else best
        if outputs.ndim == 2 and outputs.shape[1] == 1 and np.ndim(self.label_scale or 0.0) == 0:
            outputs = outputs[:, 0]
        scale = 1.0 if self.label_scale is None else np.asarray(self.label_scale)
        offset = 0.0 if self.label_offset is None else np.asarray(self.label_offset)
        return np.asarray(outputs * scale + offset, np.float32)


def _are_files(samples: Any) -> bool:
    if not isinstance(samples, Collection) or isinstance(samples, dict) or not len(samples):
        return False
    return all(isinstance(sample, str | bytes | Path) for sample in samples)
