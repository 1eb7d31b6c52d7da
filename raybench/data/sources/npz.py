"""A user's arrays in an `.npz` file: `x_train`, `y_train` and so on, or by names of their own."""

import difflib
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.core.errors import UserError
from raybench.core.spec import DatasetSpec
from raybench.data.dataset import Dataset
from raybench.data.memory import require_memory
from raybench.data.sources.arrays import OPTIONS, RawSet, RawSplit, load_arrays
from raybench.data.store.source import Source, file_at

SUFFIXES = {
    "train": ("train",),
    "validation": ("val", "valid", "validation"),
    "test": ("test",),
}
INPUTS, LABELS = "x", "y"
"""What arrays are called, where `columns` and `label` do not say."""


def load_npz(spec: DatasetSpec) -> Dataset:
    """Return the arrays of `spec.path`: `x_train`, `y_train`, and where they are there `x_val`,
    `y_val`, `x_test`, `y_test`; or `x` and `y` alone, which are cut by `spec.split_seed`.

    `columns` are other names than `x` (several are inputs by name), `label` another than `y`,
    and `weight` names weights of training samples. Pickled arrays are refused.
    """
    assert spec.path is not None
    path = Path(spec.path).expanduser()
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"dataset.path: {path} {what}; name the .npz file.")
    options = spec.model_dump(mode="json", include=set(OPTIONS))
    source = Source(name="npz", path=path, files=[file_at(path)], options=options)
    return load_arrays(source, lambda: _read(path, spec), spec)


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a file that is read whole; UserError for one that is damaged."""
    # numpy and zipfile raise half a dozen kinds for a damaged archive; all mean the same here.
    try:
        with zipfile.ZipFile(path) as archive:
            num_bytes = sum(member.file_size for member in archive.infolist())
        require_memory(num_bytes, f"{path}, which is read whole,")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except UserError:
        raise
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        if "allow_pickle" in str(error):
            raise UserError(
                f"{path} holds Python objects, which are not read; save arrays of numbers (of "
                "texts of several lengths, padded token ids)."
            ) from error
        raise UserError(f"{path} is no whole .npz file ({error}); save it again.") from error


def _read(path: Path, spec: DatasetSpec) -> RawSet:
    arrays = read_npz(path)
    if isinstance(spec.label, list):
        raise UserError(
            f"dataset.label: {spec.label}: labels of an npz are one array, of shape (N, outputs) "
            "where they are several; name that one."
        )
    label = spec.label or LABELS
    columns = spec.columns or [INPUTS]
    splits = {}
    for part, suffixes in SUFFIXES.items():
        ends = [end for end in (f"_{suffix}" for suffix in suffixes) if f"{label}{end}" in arrays]
        if ends:
            splits[part] = _split(arrays, columns, label, spec.weight, ends[0], path, part)
    if not splits:
        splits["train"] = _split(arrays, columns, label, spec.weight, "", path, "train")
    if "train" not in splits:
        raise _missing(f"{label}_train", arrays, path)
    return RawSet(splits)


def _split(
    arrays: dict[str, npt.NDArray[Any]],
    columns: list[str],
    label: str,
    weight: str | None,
    end: str,
    path: Path,
    part: str,
) -> RawSplit:
    wanted = [f"{name}{end}" for name in (*columns, label)]
    if weight is not None and part == "train":
        wanted.append(f"{weight}{end}")
    for name in wanted:
        if name not in arrays:
            others = {one: arrays[one] for one in arrays if one not in wanted}
            raise _missing(name, others or arrays, path)
    inputs = {name: arrays[f"{name}{end}"] for name in columns}
    weights = arrays[wanted[-1]] if weight is not None and part == "train" else None
    if weights is not None and weights.shape != (len(arrays[f"{label}{end}"]),):
        raise UserError(
            f"{path}: the weights {wanted[-1]} are of shape {weights.shape}; give one for each of "
            f"the {len(arrays[f'{label}{end}']):,} training samples."
        )
    if weights is not None:
        _require_weights(weights, wanted[-1], path)
    return RawSplit(
        inputs if len(columns) > 1 else inputs[columns[0]], arrays[f"{label}{end}"], weights
    )


def _require_weights(weights: npt.NDArray[Any], name: str, path: Path) -> None:
    if weights.dtype.kind not in "fiub":
        raise UserError(f"{path}: the weights {name} are {weights.dtype}; save numbers from 0.")
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise UserError(
            f"{path}: the weight {name}[{first}] is {weights[first]:g} ({int(wrong.sum()):,} such "
            "weights); weights are finite numbers from 0."
        )


def _missing(name: str, arrays: dict[str, npt.NDArray[Any]], path: Path) -> UserError:
    close = difflib.get_close_matches(name, arrays, n=1)
    hint = f"did you mean {close[0]}?" if close else "name yours by dataset.columns and label."
    return UserError(f"{path} has no array {name}, but {', '.join(arrays) or 'none'}; {hint}")
