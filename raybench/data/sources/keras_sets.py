"""Sets that Keras has downloaded: `set: cifar10`, read from its files, without TensorFlow."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.core.errors import UserError
from raybench.core.spec import DatasetSpec
from raybench.data.dataset import Dataset
from raybench.data.sources.arrays import RawSet, RawSplit
from raybench.data.sources.library_set import LibrarySet, load_library_set
from raybench.data.sources.set_files import (
    cifar_files,
    find_idx,
    read_cifar,
    read_idx_set,
    read_object_npz,
)

Array = npt.NDArray[Any]
PADDING, UNKNOWN = 0, 1
"""Token ids that are no word; word number w of a set, the most frequent is 1, is token w + 1."""


def load_keras(spec: DatasetSpec) -> Dataset:
    """Return a set of `keras.datasets`, which was downloaded before; `path` is Keras's own
    `~/.keras/datasets`, or another folder that holds the same files."""
    home = Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser()
    fetch = f"keras.datasets.{spec.set}.load_data()"
    return load_library_set(spec, SETS, [home / "datasets"], fetch=fetch)


def _cifar(name: str, *, fine: bool) -> LibrarySet:
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


SETS = {
    "mnist": LibrarySet(lambda folder: [folder / "mnist.npz"], _read_mnist),
    "fashion_mnist": LibrarySet(
        lambda folder: find_idx(folder / "fashion-mnist"),
        lambda files, spec: read_idx_set(files),
    ),
    "cifar10": _cifar("cifar-10-batches-py", fine=False),
    "cifar100": _cifar("cifar-100-python", fine=True),
    "imdb": _text("imdb", _read_imdb),
    "reuters": _text("reuters", _read_reuters),
    "california_housing": LibrarySet(
        lambda folder: [folder / "california_housing.npz"], _read_housing
    ),
    "boston_housing": LibrarySet(lambda folder: [folder / "boston_housing.npz"], _read_housing),
}
