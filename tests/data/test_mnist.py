"""MNIST in every file form and place, and scaled digits."""

import gzip
import os
import struct

import numpy as np
import pytest

from raybench.data import digits as mnist
from raybench.data.digits import IDX_FILES, load_mnist, resize
from raybench.spec.errors import ErrorCode
from raybench.spec.run import DatasetSpec
from tests.data.making import sizes
from tests.refusals import refused

SPEC = DatasetSpec(name="mnist", validation_size=10)
SIZES = (40, 15)  # samples of the small training and test files
HAS_MNIST = "RAYBENCH_DATA" in os.environ


def _pairs():
    rng = np.random.default_rng(0)
    return [
        (rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), rng.integers(0, 10, n, dtype=np.uint8))
        for n in SIZES
    ]


def idx_bytes(array):
    header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def write_mnist(folder, form):
    """Write MNIST as idx, idx.gz or npz."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = [array for pair in _pairs() for array in pair]
    if form == "npz":
        names = ("x_train", "y_train", "x_test", "y_test")
        np.savez(folder / "mnist.npz", **dict(zip(names, arrays, strict=True)))
        return
    for name, array in zip(IDX_FILES, arrays, strict=True):
        content = idx_bytes(array)
        end, content = (".gz", gzip.compress(content)) if form == "idx.gz" else ("", content)
        (folder / f"{name}{end}").write_bytes(content)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYBENCH_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.delenv("RAYBENCH_DATA", raising=False)
    monkeypatch.setattr(mnist.pooch, "os_cache", lambda _: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.mark.parametrize("place", [".", "mnist"])
@pytest.mark.parametrize("form", ["idx", "idx.gz", "npz"])
def test_all_file_forms_and_places_give_equal_data(folder, place, form):
    write_mnist(folder / place, form)
    dataset = load_mnist(SPEC)
    assert sizes(dataset) == [30, 10, 15]
    assert dataset.input_shape == (28, 28, 1)
    assert dataset.test.inputs.flags.writeable
    images, labels = _pairs()[1]
    np.testing.assert_array_equal(dataset.test.inputs[..., 0], images)
    np.testing.assert_array_equal(dataset.test.labels, labels)


def test_an_empty_or_incomplete_folder_is_refused(folder):
    with refused(ErrorCode.NOT_FOUND, f"RAYBENCH_DATA={folder}", "mnist.npz"):
        load_mnist(SPEC)
    write_mnist(folder, "idx.gz")
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with refused(ErrorCode.NOT_FOUND, "t10k-labels-idx1-ubyte"):
        load_mnist(SPEC)


def _cut(content):
    return content[: len(content) // 2]


DAMAGES = [_cut, lambda _: b"", lambda _: b"<html>not found</html>", lambda old: old + b"x"]


@pytest.mark.parametrize(
    ("form", "damage"),
    [*((form, damage) for form in ("idx", "idx.gz") for damage in DAMAGES)]
    + [("npz", damage) for damage in DAMAGES[:3]],
)
def test_a_damaged_file_is_refused(folder, form, damage):
    write_mnist(folder, form)
    file = next(folder.glob("mnist.npz" if form == "npz" else "train-images*"))
    file.write_bytes(damage(file.read_bytes()))
    with refused(ErrorCode.INVALID_FILE, file):
        load_mnist(SPEC)


def test_labels_that_do_not_match_the_images_are_refused(folder):
    write_mnist(folder, "idx")
    (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(39, np.uint8)))
    with refused(ErrorCode.INVALID_DATA, "40 ", "39 "):
        load_mnist(SPEC)


def test_without_a_network_the_error_names_the_missing_file(cache, monkeypatch):
    monkeypatch.setattr(mnist, "URL", "http://127.0.0.1:9/mnist.npz")
    with refused(ErrorCode.NOT_FOUND, "RAYBENCH_DATA", "mnist.npz"):
        load_mnist(SPEC)


def test_a_downloaded_file_is_read_and_checked(cache, tmp_path, monkeypatch):
    write_mnist(tmp_path, "npz")
    requests = []

    def retrieve(*arguments, **_):
        requests.append(arguments)
        return str(tmp_path / "mnist.npz")

    monkeypatch.setattr(mnist.pooch, "retrieve", retrieve)
    assert len(load_mnist(SPEC).test) == 15
    assert requests == [(mnist.URL, mnist.SHA256)]


@pytest.mark.skipif(not HAS_MNIST, reason="set RAYBENCH_DATA to a folder with MNIST")
def test_the_real_mnist_has_known_counts_and_labels():
    dataset = load_mnist(DatasetSpec(name="mnist"))
    assert sizes(dataset) == [55_000, 5_000, 10_000]
    counts = sum(np.bincount(split.labels) for split in (dataset.train, dataset.validation))
    # The class counts of the 60,000 images, and the first labels of the official test set.
    assert counts.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert dataset.test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    pixels = np.concatenate([dataset.train.inputs, dataset.validation.inputs])
    assert pixels.mean() / 255 == pytest.approx(0.1307, abs=5e-5)


def test_resizing_interpolates_and_averages_pixels():
    row = np.array([[[0, 200], [0, 200]]], np.uint8)
    np.testing.assert_array_equal(resize(row, 4)[0, 0], [0, 50, 150, 200])
    halved = resize(np.tile(np.array([0, 0, 200, 200], np.uint8), (1, 4, 1)), 2)[0]
    assert (halved[:, 0] < 50).all()
    assert (halved[:, 1] > 150).all()
