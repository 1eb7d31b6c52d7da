"""MNIST of any form and place, and digits that are scaled."""

import gzip
import hashlib
import io
import os
import struct
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from raybench.data import digits as mnist
from raybench.data.digits import IDX_FILES, load_mnist, resize
from raybench.spec.errors import ErrorCode
from raybench.spec.run import DatasetSpec
from tests.data.making import sizes
from tests.refusals import refused

SPEC = DatasetSpec(name="mnist", validation_size=10)
SIZES = (40, 15)  # of the small stand-ins for training and test files
HAS_MNIST = "RAYBENCH_DATA" in os.environ


def _pairs() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        (rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), rng.integers(0, 10, n, dtype=np.uint8))
        for n in SIZES
    ]


def idx_bytes(array: np.ndarray) -> bytes:
    header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def _write_idx(folder: Path, *, compressed: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(IDX_FILES, [one for pair in _pairs() for one in pair], strict=True):
        content = idx_bytes(array)
        end, content = (".gz", gzip.compress(content)) if compressed else ("", content)
        (folder / f"{name}{end}").write_bytes(content)


def npz_bytes(**arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _write_npz(folder: Path) -> None:
    (x_train, y_train), (x_test, y_test) = _pairs()
    folder.mkdir(parents=True, exist_ok=True)
    content = npz_bytes(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    (folder / "mnist.npz").write_bytes(content)


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
def test_all_forms_and_places_give_the_same(folder, place, form):
    if form == "npz":
        _write_npz(folder / place)
    else:
        _write_idx(folder / place, compressed=form == "idx.gz")
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
    _write_idx(folder, compressed=True)
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with refused(ErrorCode.NOT_FOUND, "t10k-labels-idx1-ubyte"):
        load_mnist(SPEC)


def _cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize(
    "damage", [_cut, lambda old: old + b"x", lambda _: b"", lambda _: b"<html>not found</html>"]
)
def test_a_damaged_idx_file_is_named(folder, compressed, damage):
    _write_idx(folder, compressed=compressed)
    file = folder / ("train-images-idx3-ubyte" + (".gz" if compressed else ""))
    file.write_bytes(damage(file.read_bytes()))
    with refused(ErrorCode.INVALID_FILE, file):
        load_mnist(SPEC)


def test_labels_that_do_not_match_the_images_are_refused(folder):
    _write_idx(folder, compressed=False)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(39, np.uint8)))
    with refused(ErrorCode.INVALID_DATA, "40 ", "39 "):
        load_mnist(SPEC)


@pytest.mark.parametrize(
    "damage", [_cut, lambda _: b"", lambda _: b"not a zip file", lambda _: npz_bytes(images=[3])]
)
def test_a_damaged_npz_is_named(folder, damage):
    _write_npz(folder)
    file = folder / "mnist.npz"
    file.write_bytes(damage(file.read_bytes()))
    with refused(ErrorCode.INVALID_FILE, file):
        load_mnist(SPEC)


def test_without_network_the_error_says_what_to_provide(cache, monkeypatch):
    monkeypatch.setattr(mnist, "URL", "http://127.0.0.1:9/mnist.npz")
    with refused(ErrorCode.NOT_FOUND, "RAYBENCH_DATA", "mnist.npz"):
        load_mnist(SPEC)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serve a small mnist.npz over HTTP in place of the real address."""
    _write_npz(tmp_path / "served")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = partial(Quiet, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        monkeypatch.setattr(mnist, "URL", f"http://127.0.0.1:{http.server_port}/mnist.npz")
        yield tmp_path / "served" / "mnist.npz"
        http.shutdown()
        thread.join()


def test_a_download_lands_in_the_cache_if_its_checksum_is_right(cache, server, monkeypatch):
    with refused(ErrorCode.NOT_FOUND, "RAYBENCH_DATA"):
        load_mnist(SPEC)
    assert not (cache / "mnist.npz").exists()
    monkeypatch.setattr(mnist, "SHA256", hashlib.sha256(server.read_bytes()).hexdigest())
    assert len(load_mnist(SPEC).test) == 15
    server.unlink()
    assert len(load_mnist(SPEC).test) == 15


@pytest.mark.skipif(not HAS_MNIST, reason="set RAYBENCH_DATA to a folder with MNIST")
def test_the_real_mnist():
    dataset = load_mnist(DatasetSpec(name="mnist"))
    assert sizes(dataset) == [55_000, 5_000, 10_000]
    counts = sum(np.bincount(split.labels) for split in (dataset.train, dataset.validation))
    # The class counts of the 60,000, and the first answers of the official test set.
    assert counts.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert dataset.test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    pixels = np.concatenate([dataset.train.inputs, dataset.validation.inputs]) / 255
    assert pixels.mean() == pytest.approx(0.1307, abs=5e-5)


def test_pixels_lie_between_centres_and_are_averages():
    row = np.array([[[0, 200], [0, 200]]], np.uint8)
    np.testing.assert_array_equal(resize(row, 4)[0, 0], [0, 50, 150, 200])
    halved = resize(np.tile(np.array([0, 0, 200, 200], np.uint8), (1, 4, 1)), 2)[0]
    assert (halved[:, 0] < 50).all()
    assert (halved[:, 1] > 150).all()
