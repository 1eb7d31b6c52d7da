"""Datasets that come as arrays, of a library or an `.npz` file: checked, mixed, stored."""

import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raybench.data.dataset import Array, Dataset, Split, named_arrays
from raybench.data.inputs import each
from raybench.data.memory import require_memory
from raybench.data.sources.cut import dataset_of_stored, held_out_line, mixed_order
from raybench.data.sources.files import SPLIT_NAMES
from raybench.data.sources.images import ImageForm, ImageHead, fit, form_of
from raybench.data.sources.label_columns import Labels, read_labels, read_weights
from raybench.data.sources.table import MemoryTable, require_columns
from raybench.data.store.build import Source, Writer, file_at, stored
from raybench.data.store.entries import tell
from raybench.spec.dataset_spec import Task
from raybench.spec.errors import UserError, did_you_mean
from raybench.spec.run import DatasetSpec

CHANNELS = (1, 3)
CHUNK = 2**26  # bytes copied at a time
OPTIONS = ("task", "image_size", "resize", "channels", "split_seed", "columns", "label", "weight")
INPUTS, LABELS = "x", "y"  # what arrays are called, where `columns` and `label` do not say
LABEL = "label"


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


class ArrayTable(MemoryTable):
    """Labels or weights of an array as a table, so that they are read as those of tables are."""

    is_written = False

    def __init__(
        self, array: Array, name: str, source: str, class_names: Sequence[str] = ()
    ) -> None:
        """`array`: (N,), or (N, columns); `class_names`: by number, where they are known."""
        array = array.astype(str) if array.dtype.kind == "S" else array
        columns = {name: array}
        if array.ndim > 1:
            columns = {f"{name}[:, {place}]": one for place, one in enumerate(array.T)}
        super().__init__(pa.table(columns), source)
        self.class_names = {name: class_names} if class_names else {}

    def place(self, row: int) -> str:
        """See `Table`."""
        return f"sample {row} of {self.source}"


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
    if array.dtype.kind in "fb":
        return array.astype(np.float32, copy=False)
    if array.dtype.kind in "iu":
        is_small = array.size == 0 or (abs(int(array.min())) < 2**31 and int(array.max()) < 2**31)
        return array.astype(np.int32 if is_small else np.int64, copy=False)
    raise UserError(
        f"{place}: inputs of type {array.dtype} are no numbers; save them as uint8 (pixels), "
        "float32 or int32 (tokens)."
    )


def _write_inputs(
    writer: Writer, name: str, inputs: Array, order: npt.NDArray[np.int64], spec: DatasetSpec
) -> None:
    """Write the samples in `order`, some at a time; images in the size that is asked for."""
    form = _form(inputs, spec)
    shape = inputs.shape[1:] if form is None else form.shape
    target = writer.array(name, (len(inputs), *shape), inputs.dtype)
    rows = max(1, CHUNK // max(1, target[:1].nbytes))
    for start in range(0, len(order), rows):
        chunk = inputs[order[start : start + rows]]
        target[start : start + rows] = chunk if form is None else [fit(one, form) for one in chunk]


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
    head = ImageHead(name="", width=width, height=height, is_grey=channels == 1)
    form = form_of(spec, [head])
    return None if form.shape == inputs.shape[1:] else form


def labels_of(raw: RawSet, asked: Task | None, where: str) -> tuple[Labels, int | None]:
    """Return the labels of all splits, and the number of classes or tokens; whole numbers and
    texts are classes. UserError for what can be no labels."""
    places = {split: f"{where}, {split} split" for split in raw.splits}
    found = {split: _flat(one.labels, asked, places[split]) for split, one in raw.splits.items()}
    train = found["train"]
    task = asked or ("regression" if train.dtype.kind == "f" else "classification")
    if task == "language_modelling":
        return Labels(task, found), 1 + max(int(one.max()) for one in found.values())
    for split, one in found.items():
        if task == "classification" and one.ndim != 1:
            raise UserError(
                f"{places[split]}: labels of shape {one.shape} are not one class for each sample; "
                "of rows with a 1 for the class save y.argmax(axis=1), or set dataset.task: "
                "regression."
            )
        if one.shape[1:] != train.shape[1:]:
            raise UserError(
                f"{places[split]}: labels of shape {one.shape}, and {train.shape} to train on; "
                "make them alike."
            )
    tables = {
        split: ArrayTable(one, LABEL, places[split], raw.class_names)
        for split, one in found.items()
    }
    labels = read_labels(tables, tables["train"].schema.names, task, are_pictures=True)
    if task == "regression":
        return labels, None
    number = len(labels.class_names)
    if labels.class_names == tuple(map(str, range(number))):
        labels = replace(labels, class_names=())  # they are their numbers
    return labels, number


def _flat(labels: Array, task: Task | None, place: str) -> Array:
    """Return the labels without a last axis of 1, as Keras has them."""
    if labels.ndim == 2 and labels.shape[1] == 1 and task != "language_modelling":
        labels = labels[:, 0]
    if labels.ndim not in (1, 2) or labels.dtype.kind not in "fiubUS" or len(labels) == 0:
        raise UserError(
            f"{place}: labels of type {labels.dtype} and shape {labels.shape} cannot be used; save "
            "one number or name for each sample."
        )
    return labels.astype(np.int64) if task == "language_modelling" else labels


def load_arrays(source: Source, read: Callable[[], RawSet], spec: DatasetSpec) -> Dataset:
    """Return the set that `read` reads, from the store where it is there.

    What has no split of its own is cut from the training samples, see `cut.cut`.
    """
    found = stored(source, lambda writer: _build(writer, read(), spec, str(source.path)))
    return dataset_of_stored(found, spec, source.path)


def _build(writer: Writer, raw: RawSet, spec: DatasetSpec, where: str) -> dict[str, Any]:
    found, num_classes = labels_of(raw, spec.task, where)
    total = sum(len(one.labels) for one in raw.splits.values())
    if line := held_out_line(len(raw.splits["train"].labels), spec, raw.splits):
        tell(f"{where}: {line}")
    with writer.progress(f"storing {total:,} samples", total) as advance:
        for part, one in raw.splits.items():
            inputs: Any = each(one.inputs, partial(as_inputs, place=f"{where}, {part} split"))
            labels = found.values[part]
            classes = labels if found.task == "classification" else None
            labels = labels.astype(np.float32) if found.task == "regression" else labels
            order = mixed_order(classes, len(labels), seed=spec.split_seed)
            for name, array in named_arrays(Split(inputs, labels, one.weights), part).items():
                assert isinstance(array, np.ndarray)
                if name.startswith(f"{part}-input"):
                    _write_inputs(writer, name, array, order, spec)
                else:
                    writer.save(name, array[order])
            advance(len(labels))
    return {
        "task": found.task,
        "num_classes": num_classes,
        "class_names": list(found.class_names),
        "vocabulary": raw.vocabulary,
        "standardise_inputs": raw.standardise_inputs,
    }


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


def _read(path: Path, spec: DatasetSpec) -> RawSet:
    # numpy and zipfile raise half a dozen kinds for a damaged archive; all mean the same here.
    try:
        with zipfile.ZipFile(path) as archive:
            num_bytes = sum(member.file_size for member in archive.infolist())
        require_memory(num_bytes, f"{path}, which is read whole,")
        with np.load(path, allow_pickle=False) as opened:
            arrays = {name: opened[name] for name in opened.files}
    except UserError:
        raise
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        if "allow_pickle" in str(error):
            raise UserError(
                f"{path} holds Python objects, which are not read; save arrays of numbers (of "
                "texts of several lengths, padded token ids)."
            ) from error
        raise UserError(f"{path} is no whole .npz file ({error}); save it again.") from error
    if isinstance(spec.label, list):
        raise UserError(
            f"dataset.label: {spec.label}: labels of an npz are one array, of shape (N, outputs) "
            "where they are several; name that one."
        )
    label = spec.label or LABELS
    splits = {}
    for part, suffixes in SPLIT_NAMES.items():
        ends = [end for end in (f"_{suffix}" for suffix in suffixes) if f"{label}{end}" in arrays]
        if ends:
            splits[part] = _split(arrays, spec, label, ends[0], path, part)
    if not splits:
        splits["train"] = _split(arrays, spec, label, "", path, "train")
    if "train" not in splits:
        raise _missing(f"{label}_train", arrays, path)
    return RawSet(splits)


def _split(
    arrays: dict[str, Array], spec: DatasetSpec, label: str, end: str, path: Path, part: str
) -> RawSplit:
    columns = spec.columns or [INPUTS]
    weight = [spec.weight] if spec.weight is not None and part == "train" else []
    wanted = [f"{name}{end}" for name in (*columns, label, *weight)]
    for name in wanted:
        if name not in arrays:
            others = {one: arrays[one] for one in arrays if one not in wanted}
            raise _missing(name, others or arrays, path)
    found = {name: np.atleast_1d(arrays[name]) for name in wanted}
    inputs, labels = {name: found[f"{name}{end}"] for name in columns}, found[f"{label}{end}"]
    for name, one in found.items():
        if len(one) != len(labels):
            raise UserError(
                f"{path}, {part} split: {name} has {len(one):,} samples and {label}{end} "
                f"{len(labels):,}; give one label for each."
            )
    weights = None
    if weight:
        table = ArrayTable(found[wanted[-1]], wanted[-1], str(path))
        require_columns(table, wanted[-1:], "weight")  # an array of several is other columns
        weights = read_weights(table, wanted[-1])
    return RawSplit(inputs if len(columns) > 1 else inputs[columns[0]], labels, weights)


def _missing(name: str, arrays: dict[str, Array], path: Path) -> UserError:
    hint = did_you_mean(name, arrays, "name yours by dataset.columns and label.")
    return UserError(f"{path} has no array {name}, but {', '.join(arrays) or 'none'}; {hint}")
