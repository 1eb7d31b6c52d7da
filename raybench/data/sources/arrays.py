"""Datasets that come as arrays, of a library's set or a user's npz: checked, mixed, stored.

A user's arrays in an `.npz` file: `x_train`, `y_train` and so on, or by names of their own.

Arrays of labels as a split takes them: classes, numbers or tokens.

Arrays of inputs as a split takes them: pixels, numbers or tokens.
"""

import difflib
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import Array, Dataset, Split
from raybench.data.memory import require_memory
from raybench.data.sources.cut import cut, dataset_of_parts, held_out_line, mixed_order
from raybench.data.sources.images import ImageForm, fit
from raybench.data.store.build import split_of_arrays, stored
from raybench.data.store.place import Writer, tell
from raybench.data.store.source import Source, file_at
from raybench.spec.dataset_spec import Task
from raybench.spec.errors import UserError
from raybench.spec.run import DatasetSpec

CHANNELS = (1, 3)
_CHUNK = 2**26  # bytes copied at a time


def as_inputs(array: Array, place: str) -> Array:
    """Return an array as uint8, float32, int32 or int64; images as (N, H, W, C).

    UserError naming `place` for text and objects, and for images whose channels come first.
    """
    if array.ndim == 4 and array.shape[-1] not in CHANNELS and array.shape[1] in CHANNELS:
        raise UserError(
            f"{place}: images of shape {array.shape[1:]} have their channels first; transpose them "
            "to (height, width, channels): x.transpose(0, 2, 3, 1)."
        )
    if array.dtype == np.uint8:
        return array[..., None] if array.ndim == 3 else array
    if array.dtype.kind == "f":
        return array.astype(np.float32, copy=False)
    if array.dtype.kind == "b":
        return array.astype(np.float32)
    if array.dtype.kind in "iu":
        is_small = array.size == 0 or (abs(int(array.min())) < 2**31 and int(array.max()) < 2**31)
        return array.astype(np.int32 if is_small else np.int64, copy=False)
    raise UserError(
        f"{place}: inputs of type {array.dtype} are no numbers; save them as uint8 (pixels), "
        "float32 or int32 (tokens)."
    )


def write_inputs(
    writer: Writer, name: str, inputs: Array, order: npt.NDArray[np.int64], spec: DatasetSpec
) -> None:
    """Write the samples in `order`, a part at a time; images in the size that is asked for."""
    form = _form(inputs, spec)
    shape = inputs.shape[1:] if form is None else form.shape
    target = writer.array(name, (len(inputs), *shape), inputs.dtype)
    rows = max(1, _CHUNK // max(1, int(np.prod(shape)) * inputs.dtype.itemsize))
    for start in range(0, len(order), rows):
        chunk = inputs[order[start : start + rows]]
        if form is not None:
            chunk = np.stack([fit(image, form) for image in chunk])
        target[start : start + rows] = chunk


def _form(inputs: Array, spec: DatasetSpec) -> ImageForm | None:
    """Return what images become; None where they stay as they are."""
    if spec.image_size is None and spec.channels is None:
        return None
    if inputs.dtype != np.uint8 or inputs.ndim != 4 or inputs.shape[-1] not in CHANNELS:
        key = "image_size" if spec.image_size is not None else "channels"
        raise UserError(
            f"dataset.{key}: the inputs are {inputs.dtype} of shape {inputs.shape[1:]}, and only "
            "uint8 images (height, width, 1 or 3) can be changed; leave the key out."
        )
    height, width, channels = inputs.shape[1:]
    form = ImageForm(
        height=spec.image_size or height,
        width=spec.image_size or width,
        channels=spec.channels or channels,
        is_scaled=spec.image_size is not None,
        is_greyed=spec.channels is not None,
        resize=spec.resize,
    )
    return None if form.shape == inputs.shape[1:] else form


@dataclass(frozen=True)
class LabelKind:
    """What labels are, told from those of training."""

    task: Task
    names: tuple[str, ...]
    """Names of classes by number; empty where they are numbers from 0 already."""
    num_classes: int | None
    values: Array | None
    """Of each class, as it stands in the file, in rising order; None where it is its number."""


def kind_of(labels: Mapping[str, Array], asked: Task | None, place: str) -> LabelKind:
    """Return what the labels of the splits are; whole numbers and texts are classes.

    UserError for one class alone, and for shapes that are no labels.
    """
    train = _flat(labels["train"], asked, place)
    task = asked or ("regression" if train.dtype.kind == "f" else "classification")
    if task == "regression":
        if train.dtype.kind not in "fiub":
            raise UserError(
                f"{place}: labels of type {train.dtype} are no numbers, and the task is "
                "regression; set dataset.task: classification."
            )
        return LabelKind(task, (), None, None)
    if task == "language_modelling":
        return LabelKind(task, (), 1 + max(int(one.max()) for one in labels.values()), None)
    if train.ndim != 1:
        raise UserError(
            f"{place}: labels of shape {train.shape} are not one class for each sample; of rows "
            "with a 1 for the class save y.argmax(axis=1), or set dataset.task: regression."
        )
    values = np.unique(train)
    if len(values) < 2:
        raise UserError(
            f"{place} holds one class only ({values[0]}), so there is nothing to tell apart."
        )
    if train.dtype.kind in "iu" and np.array_equal(values, np.arange(len(values))):
        return LabelKind(task, (), len(values), None)
    return LabelKind(task, tuple(str(value) for value in values), len(values), values)


def as_labels(labels: Array, kind: LabelKind, place: str) -> Array:
    """Return the labels of a split as int64 classes or tokens, or float32 numbers."""
    flat = _flat(labels, kind.task, place)
    if kind.task == "regression":
        if not np.all(np.isfinite(flat)):
            first = int(np.argmin(np.isfinite(flat).reshape(len(flat), -1).all(axis=1)))
            raise UserError(f"{place}: the label of sample {first} is NaN or infinite; mend it.")
        return flat.astype(np.float32)
    if kind.values is None:
        unknown = (flat < 0) | (flat >= kind.num_classes) if kind.names or flat.ndim == 1 else None
        numbers = flat.astype(np.int64)
    else:
        places = np.minimum(np.searchsorted(kind.values, flat), len(kind.values) - 1)
        unknown = kind.values[places] != flat
        numbers = places.astype(np.int64)
    if unknown is not None and unknown.any():
        first = int(np.argmax(unknown))
        raise UserError(
            f"{place}: the label {flat[first]} of sample {first} is no class of the training "
            f"split ({int(unknown.sum()):,} such labels); correct or remove it."
        )
    return numbers


def _flat(labels: Array, task: Task | None, place: str) -> Array:
    """Return the labels without a last axis of 1, as Keras has them."""
    if labels.ndim == 2 and labels.shape[1] == 1 and task != "language_modelling":
        labels = labels[:, 0]
    if labels.ndim not in (1, 2) or labels.dtype.kind not in "fiubUS" or len(labels) == 0:
        raise UserError(
            f"{place}: labels of type {labels.dtype} and shape {labels.shape} cannot be used; save "
            "one number or name for each sample."
        )
    if task == "classification" and labels.dtype.kind == "f" and np.all(labels == labels.round()):
        return labels.astype(np.int64)
    return labels


OPTIONS = ("task", "image_size", "resize", "channels", "split_seed", "columns", "label", "weight")
PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class RawSplit:
    """Arrays as they were found."""

    inputs: Array | dict[str, Array]
    labels: Array
    weights: Array | None = None


@dataclass(frozen=True)
class RawSet:
    """What a reader returns."""

    splits: Mapping[str, RawSplit]
    """By `train`, `validation`, `test`; `train` is always there."""
    class_names: tuple[str, ...] = ()
    """Of the classes by number, where the files tell them."""
    vocabulary: tuple[str, ...] = field(default=(), repr=False)
    """Of token ids, where the inputs are such."""
    standardise_inputs: bool = False
    """Whether columns of the inputs are scaled to mean 0 and deviation 1 over training."""


def load_arrays(source: Source, read: Callable[[], RawSet], spec: DatasetSpec) -> Dataset:
    """Return the set that `read` reads, from the store where it is there.

    What has no split of its own is cut from the training samples, see `cut.cut`.
    """
    where = str(source.path)
    found = stored(source, lambda writer: _build(writer, read(), spec, where))
    about = found.about
    splits = {part: split_of_arrays(found.arrays, part) for part in about["parts"]}
    parts = cut(splits["train"], splits.get("validation"), splits.get("test"), spec, source=where)
    known: dict[str, Any] = {
        "num_classes": about["num_classes"],
        "vocabulary": tuple(about["vocabulary"]),
    }
    if about["standardise_inputs"]:
        parts, known["encoding"] = _standardise_inputs(parts)
    return dataset_of_parts(source.name, parts, about, where, **known)


def _build(writer: Writer, raw: RawSet, spec: DatasetSpec, where: str) -> dict[str, Any]:
    kind = kind_of({part: one.labels for part, one in raw.splits.items()}, spec.task, where)
    if raw.class_names:
        kind = LabelKind("classification", raw.class_names, len(raw.class_names), None)
    if told := held_out_line(len(raw.splits["train"].labels), spec, raw.splits):
        tell(f"{where}: {told}")
    total = sum(len(one.labels) for one in raw.splits.values())
    with writer.progress(f"storing {total:,} samples", total) as progress:
        for part, one in raw.splits.items():
            place = f"{where}, {part} split"
            labels = as_labels(one.labels, kind, place)
            classes = labels if kind.task == "classification" else None
            order = mixed_order(classes, len(labels), seed=spec.split_seed)
            writer.save(f"{part}-labels", labels[order])
            if one.weights is not None:
                writer.save(f"{part}-weights", one.weights[order].astype(np.float32))
            named = one.inputs if isinstance(one.inputs, dict) else {"": one.inputs}
            for name, array in named.items():
                if len(array) != len(labels):
                    raise UserError(
                        f"{place}: {len(array):,} inputs and {len(labels):,} labels; give one "
                        "label for each."
                    )
                inputs = as_inputs(array, f"{place} {name}".rstrip())
                target = f"{part}-input-{name}" if name else f"{part}-inputs"
                write_inputs(writer, target, inputs, order, spec)
            progress.advance(len(labels))
    return {
        "task": kind.task,
        "num_classes": kind.num_classes,
        "class_names": list(kind.names),
        "vocabulary": list(raw.vocabulary),
        "standardise_inputs": raw.standardise_inputs,
        "parts": list(raw.splits),
    }


def _standardise_inputs(
    parts: tuple[Split, Split, Split],
) -> tuple[tuple[Split, Split, Split], dict[str, Any]]:
    """Scale the columns by the training split alone; one that is constant becomes 0.

    With them how, as `Dataset.encoding` has it.
    """
    train = parts[0].array.astype(np.float64)
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1.0)

    def scaled(split: Split) -> Split:
        inputs = ((split.array - mean) / scale).astype(np.float32)
        return Split(inputs, split.labels, split.weights)

    encoding = {"offset": mean.tolist(), "scale": scale.tolist()}
    return (scaled(parts[0]), scaled(parts[1]), scaled(parts[2])), encoding


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
            splits[part] = _split_npz(arrays, columns, label, spec.weight, ends[0], path, part)
    if not splits:
        splits["train"] = _split_npz(arrays, columns, label, spec.weight, "", path, "train")
    if "train" not in splits:
        raise _missing(f"{label}_train", arrays, path)
    return RawSet(splits)


def _split_npz(
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
