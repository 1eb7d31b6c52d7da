"""npz files, and datasets that Keras and torchvision have downloaded."""

import pickle

import numpy as np
import pytest

from raybench.data.dataset import all_arrays
from raybench.data.load import build_dataset
from raybench.spec.errors import ErrorCode
from raybench.spec.run import DatasetSpec
from tests.data.making import sizes
from tests.data.test_mnist import write_mnist
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("own_store")


def load(**keys):
    return build_dataset(DatasetSpec(**keys))


def pixels(number, *shape):
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, (number, *shape), dtype=np.uint8)


def write_cifar(folder):
    """Write five batches of four images and a test batch of ten; return the 30 images."""
    folder.mkdir(parents=True)
    images, labels = pixels(30, 3072), np.arange(30) % 10
    names = {b"label_names": [f"class {number}".encode() for number in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names))
    for number in range(6):
        rows, file = slice(4 * number, 4 * number + 4), f"data_batch_{number + 1}"
        if number == 5:
            rows, file = slice(20, 30), "test_batch"
        batch = {b"data": images[rows], b"labels": labels[rows].tolist()}
        (folder / file).write_bytes(pickle.dumps(batch))
    return images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def rows_of(split):
    return {row.tobytes() for row in split.array}


@pytest.mark.parametrize("name", ["keras", "torchvision"])
def test_cifar_of_keras_and_torchvision_is_read(tmp_path, name):
    inner = "cifar-10-batches-py"
    below = {"keras": f"{inner}-target/{inner}", "torchvision": inner}
    images = write_cifar(tmp_path / "sets" / below[name])
    dataset_name = {"keras": "cifar10", "torchvision": "CIFAR10"}[name]
    keys = {"name": name, "set": dataset_name, "path": str(tmp_path / "sets")}
    dataset = load(**keys, validation_size=4)
    assert sizes(dataset) == [16, 4, 10]
    assert dataset.input_shape == (32, 32, 3)
    assert dataset.class_names[3] == "class 3"
    assert rows_of(dataset.train) | rows_of(dataset.validation) == {
        i.tobytes() for i in images[:20]
    }
    place = [image.tobytes() for image in images].index(dataset.test.array[0].tobytes())
    assert dataset.test.labels[0] == (place - 20) % 10
    assert load(**keys, validation_size=4, image_size=8, channels=1).input_shape == (8, 8, 1)


def test_datasets_in_mnist_format_are_read(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    for folder in ("keras/datasets/fashion-mnist", "root/FashionMNIST/raw"):
        write_mnist(tmp_path / folder, "idx.gz")
    keras = load(name="keras", set="fashion_mnist", validation_size=5)
    root = str(tmp_path / "root")
    torch = load(name="torchvision", set="FashionMNIST", path=root, validation_size=5)
    assert keras.input_shape == torch.input_shape == (28, 28, 1)
    for name, array in all_arrays(keras).items():
        np.testing.assert_array_equal(array, all_arrays(torch)[name])


def npz(path, **arrays):
    np.savez(path / "data.npz", **arrays)
    return {"name": "npz", "path": str(path / "data.npz")}


def test_arrays_of_an_npz_file_are_read(tmp_path):
    keys = npz(
        tmp_path,
        image_train=pixels(8, 4, 4),
        mask_train=np.ones((8, 3), np.int64),
        kind_train=np.array(["b", "a"] * 4),
        heavy_train=np.arange(8),
        image_val=pixels(2, 4, 4),
        mask_val=np.zeros((2, 3), np.int64),
        kind_val=np.array(["a", "a"]),
    )
    dataset = load(**keys, columns=["image", "mask"], label="kind", weight="heavy", test_size=2)
    assert dataset.input_shape == {"image": (4, 4, 1), "mask": (3,)}
    assert dataset.class_names == ("a", "b")
    assert dataset.validation.labels.tolist() == [0, 0]
    assert dataset.train.inputs["mask"].dtype == np.int32
    assert dataset.train.weights.shape == (6,)
    assert dataset.train.weights.mean() == pytest.approx(1)


X, Y = pixels(6, 2), np.arange(6) % 2
OBJECTS = np.array([{}] * 6, object)
LATER = {"x_train": X, "y_train": Y, "x_test": pixels(2, 2), "y_test": np.array([1, 2])}
NAN = np.array([1.5, 2, np.nan, 1, 2, 3])
DATES = np.ones(6).astype("M8[s]")
TOKENS = {"task": "language_modelling"}
ALL_HELD_OUT = {"validation_size": 4, "test_size": 2}
BROKEN = {
    "damaged": (None, {}, "INVALID_FILE", []),
    "objects": ({"x": OBJECTS, "y": Y}, {}, "INVALID_FILE", []),
    "names": ({"x_trian": X, "y_train": Y}, {}, "UNKNOWN_NAME", ["x_train", "'x_trian'"]),
    "one hot": ({"x": X, "y": np.eye(6, dtype=int)}, {}, "INVALID_DATA", ["(6, 6)"]),
    "token names": ({"x": X, "y": OBJECTS.astype(str)}, TOKENS, "INVALID_DATA", ["<U", "train"]),
    "channels first": ({"x": pixels(6, 3, 8, 8), "y": Y}, {}, "INVALID_DATA", ["(3, 8, 8)"]),
    "unknown class": (LATER, {}, "INVALID_DATA", ["sample 1", "test", "'2'"]),
    "NaN label": ({"x": X, "y": NAN}, {}, "INVALID_DATA", ["sample 2", "train"]),
    "NaN weight": ({"x": X, "y": Y, "w": NAN}, {"weight": "w"}, "INVALID_DATA", ["2", "nan"]),
    "weights of dates": ({"x": X, "y": Y, "w": DATES}, {"weight": "w"}, "INVALID_DATA", ["w"]),
    "nothing to train on": ({"x": X, "y": Y}, ALL_HELD_OUT, "TOO_FEW", ["4", "2", "6"]),
}


@pytest.mark.parametrize("what", BROKEN)
def test_invalid_arrays_are_refused(tmp_path, what):
    arrays, keys, code, names = BROKEN[what]
    if arrays is None:
        (tmp_path / "data.npz").write_bytes(b"PK no")
    else:
        npz(tmp_path, **arrays)
    with refused(ErrorCode[code], "data.npz", *names):
        load(name="npz", path=str(tmp_path / "data.npz"), **keys)


@pytest.mark.parametrize(
    ("name", "set_name", "code"),
    [("keras", "cifar", "UNKNOWN_NAME"), ("torchvision", "SVHN", "NOT_FOUND")],
)
def test_missing_library_datasets_are_not_downloaded(tmp_path, monkeypatch, name, set_name, code):
    monkeypatch.chdir(tmp_path)
    with refused(ErrorCode[code], name, set_name):
        load(name=name, set=set_name)


def test_pickled_code_is_not_executed(tmp_path):
    class Attack:
        def __reduce__(self):
            return (tmp_path.joinpath("ran").write_text, ("x",))

    write_cifar(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps({b"data": Attack()}))
    with refused(ErrorCode.INVALID_FILE, "test_batch"):
        load(name="torchvision", set="CIFAR10", path=str(tmp_path))
    assert not (tmp_path / "ran").exists()
