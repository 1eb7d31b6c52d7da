"""Conversion of Python objects that users pass as data: they are written to files, which are then
read like any other dataset."""

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from raybench.data.dataset import Array, Dataset, Split
from raybench.spec.errors import ErrorCode, UserError, did_you_mean

FOLDER = "raybench-data"  # name of the folder for these files, next to the results folder
INPUTS, LABELS, WEIGHTS = "x", "y", "weight"
PARTS = {"train": "train", "validation": "val", "test": "test"}
"""Suffix of the array names of each split, such as `val` in `x_val`."""
SUPPORTED = (  # for an error message
    "a raybench.Dataset, arrays by name (x_train, y_train, ... or x, y), a DataFrame, a Dataset of "
    "torch or of Hugging Face"
)


def spec_of(data: Any, label: str | list[str] | None, folder: Path) -> dict[str, Any]:
    """Write data to a file, and return the value of `dataset` for a run spec that reads the file.

    Args:
        data: A Dataset, arrays by name, a DataFrame, or a dataset of torch or Hugging Face.
        label: Label column, or several label columns, of a table.
        folder: Folder for the file. The name of the file is a digest of its content.

    Raises:
        UserError: The data have another type, samples differ in type or shape, or the name of a
            split is unknown.
    """
    named: dict[str, Any] = {} if label is None else {"label": label}
    if hasattr(data, "save_to_disk"):  # Hugging Face: a Dataset, or a DatasetDict of splits
        splits = data.values() if isinstance(data, Mapping) else [data]
        name = "-".join(str(split._fingerprint) for split in splits)  # noqa: SLF001
        if not (path := folder / name).exists():
            with _partial(folder, "") as partial:
                data.save_to_disk(str(partial))
                try:
                    partial.replace(path)
                except OSError:
                    if not path.exists():  # else another process has written it in the meantime
                        raise
        return {"name": "huggingface", "path": str(path.resolve())} | named
    if hasattr(data, "to_parquet") and hasattr(data, "columns"):
        return {"name": "parquet", "path": _written(folder, ".parquet", _table(data))} | named
    arrays: dict[str, Array] = {}
    if isinstance(data, Dataset):
        arrays, named = _dataset_arrays(data)
    elif _is_map_style(data):
        arrays = _sample_arrays(data, "")
    elif isinstance(data, Mapping) and data and all(map(_is_map_style, data.values())):
        for part, samples in data.items():
            if part not in PARTS:
                raise UserError(
                    f"data: split '{part}': {did_you_mean(part, PARTS)}", ErrorCode.UNKNOWN_NAME
                )
            arrays |= _sample_arrays(samples, f"_{PARTS[part]}")
    elif isinstance(data, Mapping) and data:
        arrays = {str(name): _array(values, str(name)) for name, values in data.items()}
    else:
        raise UserError(
            f"data: {type(data).__name__} is not supported; pass {SUPPORTED}.",
            ErrorCode.INVALID_VALUE,
        )
    written = _written(folder, ".npz", lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
    return {"name": "npz", "path": written} | named


def _array(values: Any, name: str) -> Array:
    """Convert the values of `name` to an array; raise UserError if they differ in type or shape."""
    try:
        array = np.asarray(values)
    except ValueError:  # samples of several lengths
        array = np.empty(0, object)
    if array.dtype.kind == "O":
        raise UserError(
            f"data: the samples of {name} differ in type or shape.", ErrorCode.INVALID_DATA
        )
    return array


def _table(frame: Any) -> Callable[[Any], None]:
    """Return a function that writes a data frame to an open file in the Parquet format."""
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, OverflowError) as error:
        raise UserError(
            f"data: the table cannot be written ({error}).", ErrorCode.INVALID_DATA
        ) from None
    return lambda file: pyarrow.parquet.write_table(table, file)


def _written(folder: Path, end: str, write: Callable[[Any], None]) -> str:
    """Write a file whose name is a digest of its content, and return its path.

    `write` writes the content to an open file; `end` is the suffix of the name.
    """
    with _partial(folder, end) as partial:
        with partial.open("wb") as file:
            write(file)
        with partial.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
        return str(partial.replace(folder / f"{digest}{end}").resolve())


@contextlib.contextmanager
def _partial(folder: Path, end: str) -> Iterator[Path]:
    """Context manager that yields a path in a temporary folder below `folder`, to write data to.

    The caller renames the data once they are complete, so that an interrupted call leaves no data
    that look complete.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as temporary:
        yield Path(temporary, f"data{end}")


def _dataset_arrays(data: Dataset) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays of a `Dataset` by name, and the keys of `DatasetSpec` for reading them."""
    arrays: dict[str, Array] = {}
    spec: dict[str, Any] = {"task": data.task, "repeat": data.repeat}
    for part, end in PARTS.items():
        split: Split = getattr(data, part)
        if split.is_on_demand:
            raise UserError(
                "data: inputs that are read on demand are not supported here; return the dataset "
                "from load_dataset of a workload.",
                ErrorCode.UNSUPPORTED,
            )
        if not len(split):
            continue
        inputs = split.arrays if isinstance(split.arrays, dict) else {INPUTS: split.array}
        arrays |= {f"{name}_{end}": array for name, array in inputs.items()}
        labels = split.labels
        if data.class_names and labels.ndim == 1:
            labels = np.array(data.class_names)[labels]
        if data.task == "regression":
            labels = data.original_labels(labels)
        arrays[f"{LABELS}_{end}"] = labels
        if split.weights is not None and part == "train":
            arrays[f"{WEIGHTS}_{end}"], spec["weight"] = split.weights, WEIGHTS
        if isinstance(split.arrays, dict):
            spec["columns"] = list(inputs)
    return arrays, spec if len(data.test) else spec | {"test_size": "none"}


def _is_map_style(data: Any) -> bool:
    """Return whether an object is a map-style dataset of torch, which returns samples by index."""
    is_plain = isinstance(data, Mapping | list | tuple | str | bytes) or hasattr(data, "dtype")
    return not is_plain and hasattr(data, "__getitem__") and hasattr(data, "__len__")


def _sample_arrays(samples: Any, end: str) -> dict[str, Array]:
    """Return the inputs and labels of a map-style dataset of pairs as arrays, keyed by name.

    `end` is the suffix of the names. Images with channels first are converted to channels last.
    """
    pairs = [samples[number] for number in range(len(samples))]
    if not pairs or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise UserError(
            "data: every sample must be a pair of an input and a label.", ErrorCode.INVALID_DATA
        )
    inputs = _array([np.asarray(sample) for sample, _ in pairs], "inputs")
    labels = _array([np.asarray(label) for _, label in pairs], "labels")
    if inputs.ndim == 4 and inputs.shape[1] in (1, 3) and inputs.shape[-1] not in (1, 3):
        inputs = np.ascontiguousarray(inputs.transpose(0, 2, 3, 1))
    return {f"{INPUTS}{end}": inputs, f"{LABELS}{end}": labels}
