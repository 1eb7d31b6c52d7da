"""Sets that torchvision or Keras has downloaded, read from their files without the libraries."""

import io
import json
import os
import pickle
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from raybench.data.dataset import Array, Dataset
from raybench.data.digits import IDX_FILES, find_files, read_idx_files
from raybench.data.sources.arrays import OPTIONS, RawSet, RawSplit, load_arrays
from raybench.data.sources.texts import PADDING, SPECIAL, UNKNOWN
from raybench.data.store.build import Source, file_at
from raybench.spec.errors import UserError, did_you_mean
from raybench.spec.run import DatasetSpec

FOLDERS = ("data", "datasets", "~/data", "~/datasets")
"""torchvision has no folder of its own: these are what its examples and users take as `root`."""
Read = Callable[[Sequence[Path], DatasetSpec], RawSet]


@dataclass(frozen=True)
class LibrarySet:
    """How a set is found and read."""

    places: Sequence[Sequence[str]]
    """Files from the library's folder, in one form or another; one that ends in * may end in .gz.
    The first of which all are there is read."""
    read: Read
    options: tuple[str, ...] = ()
    """Keys of the dataset that its arrays depend on, besides those of all arrays."""

    def find(self, folder: Path) -> list[Path] | None:
        """Return the set's files; None where it is not there."""
        found = (find_files(folder, names) for names in self.places)
        return next((files for files in found if files is not None), None)


def load_torchvision(spec: DatasetSpec) -> Dataset:
    """Return a set of torchvision, which was downloaded before; `path` is its `root`."""
    fetch = f"torchvision.datasets.{spec.set}(ROOT, download=True)"
    return _load(spec, TORCHVISION_SETS, FOLDERS, fetch)


def load_keras(spec: DatasetSpec) -> Dataset:
    """Return a set of `keras.datasets`, which was downloaded before; `path` is Keras's own
    `~/.keras/datasets`, or another folder that holds the same files."""
    home = os.environ.get("KERAS_HOME", "~/.keras")
    return _load(spec, KERAS_SETS, [f"{home}/datasets"], f"keras.datasets.{spec.set}.load_data()")


def _load(
    spec: DatasetSpec, sets: dict[str, LibrarySet], folders: Sequence[str], fetch: str
) -> Dataset:
    """Return set `spec.set`, from `spec.path` or else the first of `folders` that holds it.

    Nothing is downloaded: UserError with `fetch`, what a user does to get it.
    """
    assert spec.set is not None
    known = sets.get(spec.set)
    if known is None:
        raise UserError(
            f"dataset.set: {spec.set} is none of the sets of {spec.name} that are read here; "
            f"{did_you_mean(spec.set, sets)}"
        )
    looked = [Path(one).expanduser() for one in ([spec.path] if spec.path else folders)]
    for folder in looked:
        if files := known.find(folder):
            source = Source(
                name=spec.name,
                path=folder,
                files=[file_at(file, name=str(file.relative_to(folder))) for file in files],
                options=spec.model_dump(mode="json", include={*OPTIONS, *known.options, "set"}),
            )
            return load_arrays(source, partial(known.read, files, spec), spec)
    raise UserError(
        f"dataset.set: {spec.set} of {spec.name} is not on this machine (looked in "
        f"{', '.join(map(str, looked))}); fetch it with {fetch}, or say by dataset.path which "
        "folder it was fetched to."
    )


def _of_four(arrays: Sequence[Array], **known: Any) -> RawSet:
    """Return inputs and labels of the training split, then of the test split."""
    return RawSet({"train": RawSplit(*arrays[:2]), "test": RawSplit(*arrays[2:])}, **known)


def _read_idx(files: Sequence[Path], _: DatasetSpec) -> RawSet:
    return _of_four(read_idx_files(files))


def _idx(folder: str) -> LibrarySet:
    return LibrarySet([[f"{folder}/{name}*" for name in IDX_FILES]], _read_idx)


ARRAYS_ONLY = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


@contextmanager
def fetched_whole(file: Path) -> Iterator[None]:
    """Turn what numpy, scipy, zipfile and pickle raise for a damaged file into a UserError."""
    try:
        yield
    except (
        *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError),
        *(zipfile.BadZipFile, zlib.error, pickle.UnpicklingError),
    ) as error:
        raise UserError(f"{file} cannot be read whole ({error}); fetch it again.") from error


class ArraysOnly(pickle.Unpickler):
    """Reads arrays, texts and numbers; whatever else a file would have run is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what makes an array."""
        if (module, name) not in ARRAYS_ONLY:
            raise pickle.UnpicklingError(f"asks for {module}.{name}, which no set needs")
        return super().find_class(module, name)


def _read_cifar(files: Sequence[Path], _: DatasetSpec, *, fine: bool) -> RawSet:
    """Read the files of CIFAR-100 (`fine`) or CIFAR-10: batches, the test split, and names."""
    label, names = ("fine_labels", "fine_label_names") if fine else ("labels", "label_names")
    parts = []
    for file in files:
        with fetched_whole(file), file.open("rb") as opened:
            content = ArraysOnly(opened, encoding="bytes").load()
            named = {_text_of(key): value for key, value in content.items()}
            wanted = [names] if file is files[-1] else ["data", label]
            parts.append([named[one] for one in wanted])
    arrays = []
    for own in (parts[:-2], parts[-2:-1]):
        images = np.concatenate([one[0] for one in own]).reshape(-1, 3, 32, 32)
        labels = np.concatenate([np.asarray(one[1], np.int64) for one in own])
        arrays += [images.transpose(0, 2, 3, 1), labels]
    return _of_four(arrays, class_names=tuple(map(_text_of, parts[-1][0])))


def _text_of(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _cifar(folders: Sequence[str], *, fine: bool) -> LibrarySet:
    names: tuple[str, ...] = ("train", "test", "meta")
    if not fine:
        batches = (f"data_batch_{number}" for number in range(1, 6))
        names = (*batches, "test_batch", "batches.meta")
    places = [[f"{folder}/{name}" for name in names] for folder in folders]
    return LibrarySet(places, partial(_read_cifar, fine=fine))


def _read_svhn(files: Sequence[Path], _: DatasetSpec) -> RawSet:
    from scipy.io import loadmat  # takes a quarter of a second

    arrays = []
    for file in files:
        with fetched_whole(file):
            content = loadmat(file)
            # (32, 32, 3, N) in the file; a zero is written as class 10.
            arrays.append(content["X"].transpose(3, 0, 1, 2))
            arrays.append(content["y"].ravel().astype(np.int64) % 10)
    return _of_four(arrays)


def _arrays(file: Path, *names: str) -> list[Array]:
    """Return arrays of an npz of Keras, lists of several lengths among them."""
    found = []
    with fetched_whole(file), zipfile.ZipFile(file) as archive:
        for name in names:
            content = io.BytesIO(archive.read(f"{name}.npy"))
            major, _ = np.lib.format.read_magic(content)
            read_header = getattr(np.lib.format, f"read_array_header_{major}_0")
            if read_header(content)[2].hasobject:
                found.append(ArraysOnly(content).load())
            else:
                content.seek(0)
                found.append(np.lib.format.read_array(content, allow_pickle=False))
    return found


FOUR = ("x_train", "y_train", "x_test", "y_test")


def _read_mnist(files: Sequence[Path], _: DatasetSpec) -> RawSet:
    return _of_four(_arrays(files[0], *FOUR))


def _read_housing(files: Sequence[Path], _: DatasetSpec) -> RawSet:
    inputs, prices = (one.astype(np.float32) for one in _arrays(files[0], "x", "y"))
    return RawSet({"train": RawSplit(inputs, prices)}, standardise_inputs=True)


def _read_imdb(files: Sequence[Path], spec: DatasetSpec) -> RawSet:
    texts, labels, others, their = _arrays(files[0], *FOUR)
    return _of_four(
        [_tokens(texts, spec), labels.astype(int), _tokens(others, spec), their.astype(int)],
        class_names=("negative", "positive"),
        vocabulary=_vocabulary(files[1], spec),
    )


def _read_reuters(files: Sequence[Path], spec: DatasetSpec) -> RawSet:
    texts, topics = _arrays(files[0], "x", "y")
    split = RawSplit(_tokens(texts, spec), topics.astype(np.int64))
    return RawSet({"train": split}, vocabulary=_vocabulary(files[1], spec))


def _tokens(texts: Array, spec: DatasetSpec) -> Array:
    """Return (N, tokens) ids: the first ones of a text, and padding behind a short one.

    Word number w of a set, the most frequent is 1, is token w + 1.
    """
    tokens = np.full((len(texts), spec.sequence_length), PADDING, np.int32)
    for row, text in enumerate(texts):
        words = np.asarray(text[: spec.sequence_length], np.int32) + 1
        tokens[row, : len(words)] = np.where(words < spec.vocabulary_size, words, UNKNOWN)
    return tokens


def _vocabulary(file: Path, spec: DatasetSpec) -> tuple[str, ...]:
    """Return the words by token id."""
    with fetched_whole(file):
        places: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))
    size = min(spec.vocabulary_size, 2 + max(places.values()))
    words = [*SPECIAL, *[""] * (size - 2)]
    for word, place in places.items():
        if place + 1 < size:
            words[place + 1] = word
    return tuple(words)


def _text(name: str, read: Read) -> LibrarySet:
    files = [f"{name}.npz", f"{name}_word_index.json"]
    return LibrarySet([files], read, ("vocabulary_size", "sequence_length"))


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
    "mnist": LibrarySet([["mnist.npz"]], _read_mnist),
    "fashion_mnist": _idx("fashion-mnist"),
    # Unpacked in a folder of the archive's name.
    "cifar10": _cifar([f"{C10}-target/{C10}", f"{C10}_extracted/{C10}", C10], fine=False),
    "cifar100": _cifar([f"{C100}-target/{C100}", f"{C100}_extracted/{C100}", C100], fine=True),
    "imdb": _text("imdb", _read_imdb),
    "reuters": _text("reuters", _read_reuters),
    "california_housing": LibrarySet([["california_housing.npz"]], _read_housing),
    "boston_housing": LibrarySet([["boston_housing.npz"]], _read_housing),
}
