"""A set that a library has downloaded before: found by its name, and read by its own files.

Files of well-known sets, as their libraries keep them; read without the libraries.

Sets that torchvision has downloaded: `set: CIFAR10`, read from its files, without torch.

Sets that Keras has downloaded: `set: cifar10`, read from its files, without TensorFlow.
"""

import difflib
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raybench.data.dataset import Array, Dataset
from raybench.data.digits import read_idx
from raybench.data.sources.arrays import OPTIONS, RawSet, RawSplit, load_arrays
from raybench.data.store.source import Source, file_at
from raybench.spec.errors import UserError
from raybench.spec.run import DatasetSpec


@dataclass(frozen=True)
class LibrarySet:
    """How a set is found and read."""

    find: Callable[[Path], list[Path] | None]
    """Folder of the library -> the set's files, all of them there or not; None: not there."""
    read: Callable[[Sequence[Path], DatasetSpec], RawSet]
    """Those files -> arrays."""
    options: tuple[str, ...] = ()
    """Keys of the dataset that its arrays depend on, besides those of all arrays."""


def load_library_set(
    spec: DatasetSpec, sets: Mapping[str, LibrarySet], folders: Sequence[Path], *, fetch: str
) -> Dataset:
    """Return set `spec.set`, from `spec.path` or else the first of `folders` that holds it.

    Nothing is downloaded: UserError that says where was looked, with `fetch`, what a user does
    to get it.
    """
    assert spec.set is not None
    known = sets.get(spec.set)
    if known is None:
        close = difflib.get_close_matches(spec.set, sets, n=1, cutoff=0.4)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise UserError(
            f"dataset.set: {spec.set} is none of the sets of {spec.name} that are read here: "
            f"{', '.join(sets)}{hint}"
        )
    if spec.path is not None:
        folders = [Path(spec.path).expanduser()]
    for folder in folders:
        files = known.find(folder)
        if files is not None and all(file.is_file() for file in files):
            return _load(spec, known, folder, files)
    looked = ", ".join(map(str, folders))
    raise UserError(
        f"dataset.set: {spec.set} of {spec.name} is not on this machine (looked in {looked}); "
        f"fetch it with {fetch}, or say by dataset.path which folder it was fetched to."
    )


def _load(spec: DatasetSpec, known: LibrarySet, folder: Path, files: Sequence[Path]) -> Dataset:
    include = {*OPTIONS, *known.options, "set"}
    source = Source(
        name=spec.name,
        path=folder,
        files=[file_at(file, name=str(file.relative_to(folder))) for file in files],
        options=spec.model_dump(mode="json", include=include),
    )
    return load_arrays(source, lambda: known.read(files, spec), spec)


IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_ARRAYS_ONLY = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


class ArraysOnly(pickle.Unpickler):
    """Reads arrays, texts and numbers; whatever else a file would have run is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what makes an array."""
        if (module, name) not in _ARRAYS_ONLY:
            raise pickle.UnpicklingError(f"asks for {module}.{name}, which no set needs")
        return super().find_class(module, name)


def find_idx(folder: Path) -> list[Path] | None:
    """Return the four files of a set like MNIST, gzipped or not; None where one is missing."""
    found = [
        next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
        for name in IDX
    ]
    files = [path for path in found if path is not None]
    return files if len(files) == len(IDX) else None


def read_idx_set(files: Sequence[Path]) -> RawSet:
    """Read the files that `find_idx` found."""
    arrays = [
        read_idx(file, num_dimensions=dimensions)
        for file, dimensions in zip(files, (3, 1, 3, 1), strict=True)
    ]
    splits = {"train": RawSplit(arrays[0], arrays[1]), "test": RawSplit(arrays[2], arrays[3])}
    return RawSet(splits)


def cifar_files(folder: Path, *, fine: bool) -> list[Path]:
    """Return the files of CIFAR-100 (`fine`) or CIFAR-10 in their folder; the last is of names."""
    if fine:
        return [folder / name for name in ("train", "test", "meta")]
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    return [folder / name for name in (*batches, "test_batch", "batches.meta")]


def read_cifar(files: Sequence[Path], *, fine: bool) -> RawSet:
    """Read the files of CIFAR, whose last but one is the test split."""
    label, names = ("fine_labels", "fine_label_names") if fine else ("labels", "label_names")
    *batches, test, about = [_read_pickle(file) for file in files]
    class_names = tuple(
        one.decode() if isinstance(one, bytes) else str(one)
        for one in _item(about, names, files[-1])
    )

    def split(parts: Sequence[dict[Any, Any]], found: Sequence[Path]) -> RawSplit:
        pixels = [_item(one, "data", file) for one, file in zip(parts, found, strict=True)]
        labels = [
            np.asarray(_item(one, label, file)) for one, file in zip(parts, found, strict=True)
        ]
        images = np.concatenate(pixels).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return RawSplit(images, np.concatenate(labels).astype(np.int64))

    splits = {"train": split(batches, files[:-2]), "test": split([test], files[-2:-1])}
    return RawSet(splits, class_names)


def read_object_npz(path: Path) -> dict[str, Array]:
    """Return the arrays of a library's npz, lists of several lengths among them."""
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                content = io.BytesIO(archive.read(member))
                arrays[member.removesuffix(".npy")] = _read_array(content)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise UserError(f"{path} is no whole set ({error}); fetch it again.") from error
    return arrays


def _read_array(content: io.BytesIO) -> Array:
    version = np.lib.format.read_magic(content)
    read_head = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    _, _, dtype = read_head(content)
    if not dtype.hasobject:
        content.seek(0)
        array: Array = np.lib.format.read_array(content, allow_pickle=False)
        return array
    found: Array = ArraysOnly(content).load()
    return found


def _read_pickle(file: Path) -> dict[Any, Any]:
    try:
        with file.open("rb") as opened:
            found = ArraysOnly(opened, encoding="bytes").load()
    except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise UserError(f"{file} cannot be read ({error}); fetch it again.") from error
    if not isinstance(found, dict):
        raise UserError(f"{file} is no file of CIFAR; fetch it again.")
    return found


def _item(content: dict[Any, Any], name: str, file: Path) -> Any:
    for key in (name, name.encode()):
        if key in content:
            return content[key]
    raise UserError(f"{file} has no {name}, so it is no file of CIFAR; fetch it again.")


FOLDERS = ("data", "datasets", "~/data", "~/datasets")
"""torchvision has no folder of its own: these are what its examples and users take as `root`."""


def load_torchvision(spec: DatasetSpec) -> Dataset:
    """Return a set of torchvision, which was downloaded before; `path` is its `root`."""
    folders = [Path(folder).expanduser() for folder in FOLDERS]
    fetch = f"torchvision.datasets.{spec.set}(ROOT, download=True)"
    return load_library_set(spec, TORCHVISION_SETS, folders, fetch=fetch)


def _idx(name: str) -> LibrarySet:
    return LibrarySet(
        lambda folder: find_idx(folder / name / "raw"), lambda files, spec: read_idx_set(files)
    )


def _cifar(folder_name: str, *, fine: bool) -> LibrarySet:
    return LibrarySet(
        lambda folder: cifar_files(folder / folder_name, fine=fine),
        lambda files, spec: read_cifar(files, fine=fine),
    )


def _read_svhn(files: Sequence[Path], spec: DatasetSpec) -> RawSet:
    from scipy.io import loadmat  # takes a quarter of a second

    splits = {}
    for part, file in zip(("train", "test"), files, strict=True):
        try:
            content = loadmat(file)
            images, labels = content["X"], content["y"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{file} is no whole file of SVHN ({error}); fetch it again."
            ) from error
        # (32, 32, 3, N) in the file; a zero is written as class 10.
        splits[part] = RawSplit(images.transpose(3, 0, 1, 2), labels.ravel().astype(np.int64) % 10)
    return RawSet(splits)


TORCHVISION_SETS = {
    "MNIST": _idx("MNIST"),
    "FashionMNIST": _idx("FashionMNIST"),
    "KMNIST": _idx("KMNIST"),
    "CIFAR10": _cifar("cifar-10-batches-py", fine=False),
    "CIFAR100": _cifar("cifar-100-python", fine=True),
    "SVHN": LibrarySet(
        lambda folder: [folder / "train_32x32.mat", folder / "test_32x32.mat"], _read_svhn
    ),
}


PADDING, UNKNOWN = 0, 1
"""Token ids that are no word; word number w of a set, the most frequent is 1, is token w + 1."""


def load_keras(spec: DatasetSpec) -> Dataset:
    """Return a set of `keras.datasets`, which was downloaded before; `path` is Keras's own
    `~/.keras/datasets`, or another folder that holds the same files."""
    home = Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser()
    fetch = f"keras.datasets.{spec.set}.load_data()"
    return load_library_set(spec, KERAS_SETS, [home / "datasets"], fetch=fetch)


def _cifar_keras_sets(name: str, *, fine: bool) -> LibrarySet:
    """Return CIFAR as Keras unpacks it: in a folder of the archive's name."""

    def find(folder: Path) -> list[Path] | None:
        for place in (folder / f"{name}-target" / name, folder / f"{name}_extracted" / name):
            if place.is_dir():
                return cifar_files(place, fine=fine)
        return cifar_files(folder / name, fine=fine)

    return LibrarySet(find, lambda files, spec: read_cifar(files, fine=fine))


def _read_mnist(files: Sequence[Path], spec: DatasetSpec) -> RawSet:
    arrays = _arrays(files[0], "x_train", "y_train", "x_test", "y_test")
    return RawSet({"train": RawSplit(*arrays[:2]), "test": RawSplit(*arrays[2:])})


def _read_housing(files: Sequence[Path], spec: DatasetSpec) -> RawSet:
    inputs, prices = _arrays(files[0], "x", "y")
    split = RawSplit(inputs.astype(np.float32), prices.astype(np.float32))
    return RawSet({"train": split}, standardise_inputs=True)


def _read_imdb(files: Sequence[Path], spec: DatasetSpec) -> RawSet:
    arrays = _arrays(files[0], "x_train", "y_train", "x_test", "y_test")
    splits = {
        "train": RawSplit(_tokens(arrays[0], spec), arrays[1].astype(np.int64)),
        "test": RawSplit(_tokens(arrays[2], spec), arrays[3].astype(np.int64)),
    }
    return RawSet(splits, ("negative", "positive"), _vocabulary(files[1], spec))


def _read_reuters(files: Sequence[Path], spec: DatasetSpec) -> RawSet:
    texts, topics = _arrays(files[0], "x", "y")
    split = RawSplit(_tokens(texts, spec), topics.astype(np.int64))
    return RawSet({"train": split}, vocabulary=_vocabulary(files[1], spec))


def _arrays(file: Path, *names: str) -> list[Array]:
    arrays = read_object_npz(file)
    missing = [name for name in names if name not in arrays]
    if missing:
        raise UserError(f"{file} has no array {missing[0]}; fetch it again.")
    return [arrays[name] for name in names]


def _tokens(texts: Array, spec: DatasetSpec) -> Array:
    """Return (N, tokens) ids: the first ones of a text, and padding behind a short one."""
    tokens = np.full((len(texts), spec.sequence_length), PADDING, np.int32)
    for row, text in enumerate(texts):
        words = np.asarray(text[: spec.sequence_length], np.int32) + 1
        tokens[row, : len(words)] = np.where(words < spec.vocabulary_size, words, UNKNOWN)
    return tokens


def _vocabulary(file: Path, spec: DatasetSpec) -> tuple[str, ...]:
    """Return the words by token id."""
    try:
        places: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file} is no whole word index ({error}); fetch it again.") from error
    size = min(spec.vocabulary_size, 2 + max(places.values()))
    words = ["<padding>", "<unknown>"] + [""] * (size - 2)
    for word, place in places.items():
        if place + 1 < size:
            words[place + 1] = word
    return tuple(words)


def _text(name: str, read: Any) -> LibrarySet:
    return LibrarySet(
        lambda folder: [folder / f"{name}.npz", folder / f"{name}_word_index.json"],
        read,
        options=("vocabulary_size", "sequence_length"),
    )


KERAS_SETS = {
    "mnist": LibrarySet(lambda folder: [folder / "mnist.npz"], _read_mnist),
    "fashion_mnist": LibrarySet(
        lambda folder: find_idx(folder / "fashion-mnist"),
        lambda files, spec: read_idx_set(files),
    ),
    "cifar10": _cifar_keras_sets("cifar-10-batches-py", fine=False),
    "cifar100": _cifar_keras_sets("cifar-100-python", fine=True),
    "imdb": _text("imdb", _read_imdb),
    "reuters": _text("reuters", _read_reuters),
    "california_housing": LibrarySet(
        lambda folder: [folder / "california_housing.npz"], _read_housing
    ),
    "boston_housing": LibrarySet(lambda folder: [folder / "boston_housing.npz"], _read_housing),
}
