"""Loaders of arrays: `.npz` files, and datasets that torchvision or Keras has downloaded.

The downloaded files are read without importing these libraries.
"""

import itertools
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raybench.data.dataset import Array, Dataset, Split, each, named_arrays
from raybench.data.digits import (
    IDX_FILES,
    damaged_file_errors,
    find_complete_set,
    read_idx_files,
    read_mnist_npz,
)
from raybench.data.memory import require_memory
from raybench.data.sources.cut import mixed_order, stored_and_cut
from raybench.data.sources.files import LABEL, SPLIT_NAMES
from raybench.data.sources.images import ImageHead, fit, form_of
from raybench.data.sources.table import Labels, Table, read_labels, read_weights
from raybench.data.store import Source, Writer, file_at
from raybench.spec.dataset_spec import DatasetSpec, Task
from raybench.spec.errors import ErrorCode, UserError, did_you_mean

CHANNELS = (1, 3)  # allowed numbers of image channels
OPTIONS = ("task", "image_size", "resize", "channels", "split_seed", "columns", "label", "weight")
INPUTS, LABELS = "x", "y"  # default names of arrays


@dataclass(frozen=True)
class RawSplit:
    """Arrays of a split, as read from the files."""

    inputs: Array | dict[str, Array]
    labels: Array
    weights: Array | None = None


@dataclass(frozen=True)
class RawSet:
    """Arrays of a dataset, as read from the files."""

    splits: Mapping[str, RawSplit]
    """Splits by name: always `train`, optionally `validation` and `test`."""
    class_names: tuple[str, ...] = ()
    """Names of the classes in the order of their numbers; empty if the files have no names."""


def array_table(array: Array, name: str, source: str, class_names: Sequence[str] = ()) -> Table:
    """Convert an array of labels or weights to a table.

    The array then goes through the same code as a table file.

    Args:
        array: Labels or weights, (N,) or (N, columns).
        name: Column name; for several columns, the prefix of their names.
        source: How error messages refer to the data.
        class_names: Names of the classes in the order of class numbers; empty if labels are not
            class numbers.
    """
    kind = array.dtype.newbyteorder("=")  # Arrow has only the native byte order
    array = array.astype(str if kind.kind == "S" else kind, copy=False)
    columns = {name: array}
    if array.ndim > 1:
        columns = {f"{name}[:, {index}]": column for index, column in enumerate(array.T)}
    return Table(
        pa.table(columns),
        source,
        class_names={name: class_names} if class_names else None,
        place=lambda row: f"sample {row} of {source}",
    )


def as_inputs(array: Array, place: str) -> Array:
    """Convert an array to uint8, float32, int32 or int64, and images to (N, H, W, C).

    Raises:
        UserError: The array does not contain numbers, or contains images with channels first;
            `place` begins the message.
    """
    if array.ndim == 4 and array.shape[-1] not in CHANNELS and array.shape[1] in CHANNELS:
        raise UserError(
            f"{place}: images of shape {array.shape[1:]} have their channels first; save "
            "x.transpose(0, 2, 3, 1).",
            ErrorCode.INVALID_DATA,
        )
    if array.dtype == np.uint8:
        return array[..., None] if array.ndim == 3 else array
    if array.dtype.kind in "fb":
        return array.astype(np.float32, copy=False)
    if array.dtype.kind in "iu":
        is_small = array.size == 0 or (abs(int(array.min())) < 2**31 and int(array.max()) < 2**31)
        return array.astype(np.int32 if is_small else np.int64, copy=False)
    raise UserError(
        f"{place}: inputs of type {array.dtype} are not numbers; save uint8, float32 or int32.",
        ErrorCode.INVALID_DATA,
    )


def _scaled(inputs: Array, spec: DatasetSpec) -> Array:
    """Convert images to the size and the channels that a spec sets; raise UserError if the spec
    sets them for inputs that are not images."""
    if spec.image_size is None and spec.channels is None:
        return inputs
    if inputs.dtype != np.uint8 or inputs.ndim != 4 or inputs.shape[-1] not in CHANNELS:
        key = "image_size" if spec.image_size is not None else "channels"
        raise UserError(
            f"dataset.{key} is for uint8 images, but the inputs are {inputs.dtype} of shape "
            f"{inputs.shape[1:]}; remove the key.",
            ErrorCode.UNSUPPORTED,
        )
    height, width, channels = inputs.shape[1:]
    form = form_of(spec, [ImageHead(name="", width=width, height=height, is_grey=channels == 1)])
    return np.stack([fit(image, form) for image in inputs])


def labels_of(raw: RawSet, given_task: Task | None, where: str) -> tuple[Labels, int | None]:
    """Return the labels of all splits, and the number of classes or token ids.

    Args:
        raw: Arrays of the dataset.
        given_task: Task that the user has set. By default, labels of type float are for a
            regression, and integers and strings are classes.
        where: Start of error messages.

    Returns:
        The labels, and the number of classes or token ids, which is None for a regression.

    Raises:
        UserError: The type or shape of the labels is invalid for the task.
    """
    places = {split: f"{where}, {split} split" for split in raw.splits}
    arrays = {
        name: _checked_labels(split.labels, given_task, places[name])
        for name, split in raw.splits.items()
    }
    train = arrays["train"]
    task = given_task or ("regression" if train.dtype.kind == "f" else "classification")
    if task == "language_modelling":
        return Labels(task, arrays), 1 + max(int(array.max()) for array in arrays.values())
    for split, array in arrays.items():
        if array.shape[1:] != train.shape[1:] or (task == "classification" and array.ndim != 1):
            raise UserError(
                f"{places[split]}: labels of shape {array.shape} (training labels: {train.shape}) "
                f"do not fit a {task}; save one class per sample (for one-hot rows: "
                "y.argmax(axis=1)), or set dataset.task: regression.",
                ErrorCode.INVALID_DATA,
            )
    tables = {
        split: array_table(array, LABEL, places[split], raw.class_names)
        for split, array in arrays.items()
    }
    labels = read_labels(tables, tables["train"].schema.names, task, allow_many_classes=True)
    if task == "regression":
        return labels, None
    number = len(labels.class_names)
    if labels.class_names == tuple(map(str, range(number))):
        labels = replace(labels, class_names=())  # the names are just the numbers
    return labels, number


def _checked_labels(labels: Array, task: Task | None, place: str) -> Array:
    """Check labels, and return them; labels (N, 1), as in datasets of Keras, become (N,)."""
    if labels.ndim == 2 and labels.shape[1] == 1 and task != "language_modelling":
        labels = labels[:, 0]
    kinds = "iu" if task == "language_modelling" else "fiubUS"
    if labels.ndim not in (1, 2) or labels.dtype.kind not in kinds or labels.size == 0:
        one = "token ids" if task == "language_modelling" else "one label per sample"
        raise UserError(
            f"{place}: labels are {labels.dtype} {labels.shape}; save {one}.",
            ErrorCode.INVALID_DATA,
        )
    return labels.astype(np.int64) if task == "language_modelling" else labels


def load_arrays(source: Source, read: Callable[[], RawSet], spec: DatasetSpec) -> Dataset:
    """Return the dataset of a source, after storing it if it is not in the store yet.

    Missing splits are cut from the training samples (see `cut.cut`).

    Args:
        source: Files and options of the dataset.
        read: Function that reads the arrays from the files.
        spec: The dataset spec.
    """
    return stored_and_cut(
        source, lambda writer: _store(writer, read(), spec, str(source.path)), spec
    )


def _store(writer: Writer, raw: RawSet, spec: DatasetSpec, where: str) -> dict[str, Any]:
    """Write the samples of each split in random order.

    Returns:
        The task, the number of classes and the class names, as JSON values.
    """
    all_labels, num_classes = labels_of(raw, spec.task, where)
    for part, raw_split in raw.splits.items():
        inputs = each(raw_split.inputs, partial(as_inputs, place=f"{where}, {part} split"))
        labels = all_labels.values[part]
        order = mixed_order(
            labels if all_labels.task == "classification" else None,
            len(labels),
            seed=spec.split_seed,
        )
        labels = labels.astype(np.float32 if all_labels.task == "regression" else np.int64)
        split = Split(each(inputs, partial(_scaled, spec=spec)), labels, raw_split.weights)
        for name, array in named_arrays(split, part).items():
            assert isinstance(array, np.ndarray)
            writer.save(name, array[order])
    return {
        "task": all_labels.task,
        "num_classes": num_classes,
        "class_names": list(all_labels.class_names),
    }


def load_npz(spec: DatasetSpec) -> Dataset:
    """Load an `.npz` file.

    The file has the arrays `x_train`, `y_train` and optionally `x_val`, `y_val`, `x_test`,
    `y_test`; or only `x` and `y`, which are split at random. Other names of arrays are set by keys
    of the spec: `columns` replaces `x` (several names become named inputs), `label` replaces `y`,
    and `weight` is the array of sample weights. Pickled arrays are rejected.
    """
    assert spec.path is not None
    path = Path(spec.path).expanduser()
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(
            f"dataset.path: {path} {what}; write the path of an .npz file.", ErrorCode.NOT_FOUND
        )
    options = spec.model_dump(mode="json", include=set(OPTIONS))
    source = Source(name="npz", path=path, files=[file_at(path)], options=options)
    return load_arrays(source, lambda: _read(path, spec), spec)


def _read(path: Path, spec: DatasetSpec) -> RawSet:
    with damaged_file_errors(path):
        with zipfile.ZipFile(path) as archive:
            num_bytes = sum(member.file_size for member in archive.infolist())
        require_memory(num_bytes, f"{path}, which is read whole,")
        with np.load(path, allow_pickle=False) as opened:
            arrays = {name: opened[name] for name in opened.files}
    if isinstance(spec.label, list):
        raise UserError(
            f"dataset.label: {spec.label}: name one array, of shape (N, outputs).",
            ErrorCode.INVALID_VALUE,
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
        raise _missing_array(f"{label}_train", arrays, path)
    return RawSet(splits)


def _split(
    arrays: dict[str, Array], spec: DatasetSpec, label: str, end: str, path: Path, part: str
) -> RawSplit:
    """Return the arrays of a split; `end` is the suffix of their names, such as `_train`."""
    columns = spec.columns or [INPUTS]
    weight = [spec.weight] if spec.weight is not None and part == "train" else []
    wanted = [f"{name}{end}" for name in (*columns, label, *weight)]
    for name in wanted:
        if name not in arrays:
            others = {other: arrays[other] for other in arrays if other not in wanted}
            raise _missing_array(name, others or arrays, path)
    by_name = {name: np.atleast_1d(arrays[name]) for name in wanted}
    inputs, labels = {name: by_name[f"{name}{end}"] for name in columns}, by_name[f"{label}{end}"]
    for name, array in by_name.items():
        if len(array) != len(labels):
            raise UserError(
                f"{path}: {name} has {len(array):,} samples, but {label}{end} has {len(labels):,}.",
                ErrorCode.INVALID_DATA,
            )
    weights = None
    if weight:
        name, array = wanted[-1], by_name[wanted[-1]]
        if array.dtype.kind not in "fiub" or array.ndim != 1:
            raise UserError(
                f"{path}: weights {name} are {array.dtype} {array.shape}; save one number per "
                "sample.",
                ErrorCode.INVALID_DATA,
            )
        weights = read_weights(array_table(array, name, str(path)), name)
    return RawSplit(inputs if len(columns) > 1 else inputs[columns[0]], labels, weights)


def _missing_array(name: str, arrays: dict[str, Array], path: Path) -> UserError:
    """Return the error for an array that an `.npz` file does not have."""
    hint = did_you_mean(name, arrays, "set dataset.columns and dataset.label to its names.")
    return UserError(
        f"{path} has no array {name} (other arrays: {', '.join(arrays) or 'none'}); {hint}",
        ErrorCode.UNKNOWN_NAME,
    )


FOLDERS = ("data", "datasets", "~/data", "~/datasets")
"""Folders that are searched for torchvision's datasets, since torchvision has no default folder."""


@dataclass(frozen=True)
class LibrarySet:
    """A dataset of torchvision or Keras: its files, and the function that reads them."""

    places: Sequence[Sequence[str]]
    """Alternative lists of files, relative to the folder of the library's datasets. The first list
    whose files all exist is read. If a name ends in `*`, the file may also have the suffix
    `.gz`."""
    read: Callable[[Sequence[Path]], RawSet]
    """Function that reads the files of a list, in their order."""


def load_torchvision(spec: DatasetSpec) -> Dataset:
    """Load a dataset that torchvision has downloaded; `path` is torchvision's `root`."""
    fetch = f"torchvision.datasets.{spec.set}(ROOT, download=True)"
    return _load(spec, TORCHVISION_SETS, FOLDERS, fetch)


def load_keras(spec: DatasetSpec) -> Dataset:
    """Load a dataset that `keras.datasets` has downloaded.

    The folder is `path` or, by default, `datasets` in `$KERAS_HOME` or `~/.keras`.
    """
    home = os.environ.get("KERAS_HOME", "~/.keras")
    return _load(spec, KERAS_SETS, [f"{home}/datasets"], f"keras.datasets.{spec.set}.load_data()")


def _load(
    spec: DatasetSpec, sets: dict[str, LibrarySet], folders: Sequence[str], fetch: str
) -> Dataset:
    """Load the dataset `spec.set` of a library from `spec.path` or, by default, one of the folders.

    Raises:
        UserError: The dataset is not one of `sets`, or is not on this machine; the message then
            shows the code `fetch`, which downloads the dataset.
    """
    assert spec.set is not None
    known = sets.get(spec.set)
    if known is None:
        raise UserError(
            f"dataset.set: {spec.name} {spec.set} is not supported; {did_you_mean(spec.set, sets)}",
            ErrorCode.UNKNOWN_NAME,
        )
    paths = [Path(folder).expanduser() for folder in ([spec.path] if spec.path else folders)]
    for folder, names in itertools.product(paths, known.places):
        if files := find_complete_set(folder, names):
            source = Source(
                name=spec.name,
                path=folder,
                files=[file_at(file, name=str(file.relative_to(folder))) for file in files],
                options=spec.model_dump(mode="json", include={*OPTIONS, "set"}),
            )
            return load_arrays(source, partial(known.read, files), spec)
    raise UserError(
        f"dataset.set: {spec.set} of {spec.name} is not in {', '.join(map(str, paths))}; download "
        f"it with {fetch}, or set dataset.path to its folder.",
        ErrorCode.NOT_FOUND,
    )


def _train_and_test(arrays: Sequence[Array], **known: Any) -> RawSet:
    """Return a `RawSet` of four arrays: training inputs and labels, test inputs and labels."""
    return RawSet({"train": RawSplit(*arrays[:2]), "test": RawSplit(*arrays[2:])}, **known)


def _idx(folder: str) -> LibrarySet:
    """Return a dataset that consists of IDX files in a folder."""
    places = [[f"{folder}/{name}*" for name in IDX_FILES]]
    return LibrarySet(places, lambda files: _train_and_test(read_idx_files(files)))


ARRAYS_ONLY = {  # modules and functions that build arrays from a pickle file
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


class ArraysOnly(pickle.Unpickler):
    """Unpickler that accepts only arrays, strings and numbers, so that a file cannot run any
    code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a function that builds arrays; raise UnpicklingError for any other function."""
        if (module, name) not in ARRAYS_ONLY:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in this file")
        return super().find_class(module, name)


def _read_cifar(files: Sequence[Path], *, fine: bool) -> RawSet:
    """Read CIFAR-10, or CIFAR-100 if `fine` is true.

    Args:
        files: Files of the training batches, then the file of the test split, then the file of the
            class names.
        fine: Whether the files are those of CIFAR-100, whose fine labels are read.
    """
    label, names = ("fine_labels", "fine_label_names") if fine else ("labels", "label_names")
    parts = []
    for file in files:
        with damaged_file_errors(file), file.open("rb") as opened:
            content = ArraysOnly(opened, encoding="bytes").load()
            named = {_text_of(key): value for key, value in content.items()}
            wanted = [names] if file is files[-1] else ["data", label]
            parts.append([named[key] for key in wanted])
    arrays = []
    for batches in (parts[:-2], parts[-2:-1]):
        images = np.concatenate([batch[0] for batch in batches]).reshape(-1, 3, 32, 32)
        labels = np.concatenate([np.asarray(batch[1], np.int64) for batch in batches])
        arrays += [images.transpose(0, 2, 3, 1), labels]
    return _train_and_test(arrays, class_names=tuple(map(_text_of, parts[-1][0])))


def _text_of(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _cifar(folders: Sequence[str], *, fine: bool) -> LibrarySet:
    """Return CIFAR-10, or CIFAR-100 if `fine` is true; its files are in one of the folders."""
    names: tuple[str, ...] = ("train", "test", "meta")
    if not fine:
        batches = (f"data_batch_{number}" for number in range(1, 6))
        names = (*batches, "test_batch", "batches.meta")
    places = [[f"{folder}/{name}" for name in names] for folder in folders]
    return LibrarySet(places, partial(_read_cifar, fine=fine))


def _read_svhn(files: Sequence[Path]) -> RawSet:
    """Read the dataset SVHN from the files of its training and test split."""
    from scipy.io import loadmat  # imported here because it takes 0.25 s

    arrays = []
    for file in files:
        with damaged_file_errors(file):
            content = loadmat(file)
            # In the file, images are (32, 32, 3, N), and the digit 0 is class 10.
            arrays.append(content["X"].transpose(3, 0, 1, 2))
            arrays.append(content["y"].ravel().astype(np.int64) % 10)
    return _train_and_test(arrays)


C10, C100 = "cifar-10-batches-py", "cifar-100-python"
TORCHVISION_SETS = {
    "MNIST": _idx("MNIST/raw"),
    "FashionMNIST": _idx("FashionMNIST/raw"),
    "KMNIST": _idx("KMNIST/raw"),
    "CIFAR10": _cifar([C10], fine=False),
    "CIFAR100": _cifar([C100], fine=True),
    "SVHN": LibrarySet([["train_32x32.mat", "test_32x32.mat"]], _read_svhn),
}
KERAS_SETS = {
    "mnist": LibrarySet([["mnist.npz"]], lambda files: _train_and_test(read_mnist_npz(files[0]))),
    "fashion_mnist": _idx("fashion-mnist"),
    # Versions of Keras unpack the archive into different folders.
    "cifar10": _cifar([f"{C10}-target/{C10}", f"{C10}_extracted/{C10}", C10], fine=False),
    "cifar100": _cifar([f"{C100}-target/{C100}", f"{C100}_extracted/{C100}", C100], fine=True),
}
