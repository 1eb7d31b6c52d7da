"""Workloads that raybench ships: parameter counts, shapes by the data, initial weights."""

from dataclasses import replace

import numpy as np
import pytest

from raybench.data.digits import resize
from raybench.data.load import load_dataset
from raybench.models import pictures
from raybench.models.base import DataShape
from raybench.models.find import load_workload_dataset
from raybench.models.layers import (
    Conv,
    Dense,
    Flatten,
    MaxPool,
    initial_weights,
    num_parameters,
    output_shapes,
    parameter_shapes,
)
from raybench.models.shipped import WORKLOADS, shipped_workload
from raybench.spec.errors import ErrorCode
from raybench.spec.run import DatasetSpec
from tests.data.making import dataset_of
from tests.refusals import refused


@pytest.mark.parametrize(
    ("name", "input_shape", "expected"),
    [
        ("mnist_small", (28, 28, 1), 402_442),
        ("mnist_large", (28, 28, 1), 2_636_554),
        ("mnist_large_dense", (28, 28, 1), 4_104_202),
        ("cnn7", (299, 299, 3), 910_922),
        ("cnn7", (32, 32, 3), 124_490),
        ("cifar_cnn", (32, 32, 3), 1_250_858),
        ("deep_mlp", (28, 28, 1), 75_850),
        ("small_resnet", (32, 32, 3), 413_514),
        ("mlp", (8,), 102_282),
        ("text_bag", (128,), 1_289_610),
        ("char_lm", (64,), 407_562),
    ],
)
def test_number_of_parameters(name, input_shape, expected):
    workload = WORKLOADS[name](input_shape, 10)
    assert num_parameters(workload.layers, workload.input_shape) == expected
    assert workload.name == name


def test_workload_adapts_to_task_and_shape_of_the_data():
    table = DataShape(input_shape=(5,), num_outputs=2, task="regression", kind="numbers")
    assert shipped_workload("mlp", table).task == "regression"
    assert output_shapes(shipped_workload("mlp", table).layers, (5,))[-1] == (2,)
    texts = DataShape(input_shape=(40,), num_outputs=3, kind="tokens", vocabulary_size=900)
    bag = shipped_workload("text_bag", texts)
    assert (bag.task, bag.num_classes) == ("classification", 3)
    assert num_parameters(bag.layers, (40,)) == 900 * 64 + 64 * 128 + 128 + 128 * 3 + 3
    prose = replace(texts, num_outputs=90, task="language_modelling", vocabulary_size=90)
    model = shipped_workload("char_lm", prose)
    assert model.task == "language_modelling"
    assert output_shapes(model.layers, (40,))[-1] == (40, 90)


@pytest.mark.parametrize(
    ("name", "changes", "code", "names"),
    [
        ("mlp", {"kind": "tokens"}, ErrorCode.INVALID_DATA, ["mlp", "text_bag"]),
        ("text_bag", {"kind": "numbers"}, ErrorCode.INVALID_DATA, ["mlp", "deep_mlp"]),
        ("text_bag", {"kind": "tokens", "vocabulary_size": None}, ErrorCode.MISSING, ["text_bag"]),
        ("mlp", {"input_shape": {"b": (3,), "a": (2,)}}, ErrorCode.INVALID_DATA, ["a, b"]),
    ],
)
def test_unsuitable_data_are_refused(name, changes, code, names):
    content = {"input_shape": (5,), "num_outputs": 2, "vocabulary_size": 9} | changes
    with refused(code, *names) as caught:
        shipped_workload(name, DataShape(**content))
    assert "\n" not in str(caught.value)


TOKENS = DataShape(input_shape=(4,), num_outputs=3, kind="tokens")
IDS = np.arange(24).reshape(6, 4)
FLOATS = np.zeros((6, 5), np.float32)
CLASSES = np.arange(6) % 3


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            dataset_of(np.zeros((6, 8, 8, 3), np.uint8), CLASSES, 3),
            DataShape(input_shape=(8, 8, 3), num_outputs=3, kind="pixels"),
        ),
        (
            dataset_of(FLOATS, FLOATS[:, :2], None, task="regression"),
            DataShape(input_shape=(5,), num_outputs=2, task="regression", kind="numbers"),
        ),
        (dataset_of(IDS, CLASSES, 3, vocabulary=("a",) * 30), replace(TOKENS, vocabulary_size=30)),
        (
            dataset_of(IDS, IDS, 40, task="language_modelling"),
            replace(TOKENS, num_outputs=40, task="language_modelling", vocabulary_size=40),
        ),
        (
            dataset_of({"ids": IDS, "age": FLOATS}, CLASSES, 3),
            DataShape(input_shape={"ids": (4,), "age": (5,)}, num_outputs=3),
        ),
    ],
    ids=["pictures", "table", "texts of a vocabulary", "language", "by name"],
)
def test_data_shape_of_a_dataset(data, expected):
    assert DataShape.of(data) == expected


def test_decoded_pictures_equal_the_scaled_stored_ones(monkeypatch):
    monkeypatch.setattr(pictures, "STORED_PIXELS", 40)
    _, dataset = load_workload_dataset(
        "raybench.models.pictures:DecodedDigits", DatasetSpec(name="workload")
    )
    digits = load_dataset(DatasetSpec(name="digits"))
    rows = np.array([5, 0, 5, 1256])
    decoded = dataset.train.read(rows)
    stored = resize(digits.train.array[rows, ..., 0], 40)
    np.testing.assert_array_equal(decoded[..., 0], resize(stored, 32))
    np.testing.assert_array_equal(dataset.train.labels, digits.train.labels)
    np.testing.assert_array_equal(decoded[0], decoded[2])
    pictures._compressed.cache_clear()


def test_initial_weights_have_torchs_default_distribution():
    layers = (Conv(64, kernel=3), Flatten(), Dense(50))
    weights = initial_weights(layers, (4, 4, 5), seed=0)
    assert [array.shape for array in weights] == parameter_shapes(layers, (4, 4, 5))
    assert all(array.dtype == np.float32 for array in weights)
    for weight, fan_in in zip(weights, (45, 45, 1024, 1024), strict=True):
        bound = fan_in**-0.5
        assert 0.9 * bound < np.abs(weight).max() <= bound
    # The standard deviation of a uniform distribution is its bound over the square root of 3.
    assert weights[2].std() == pytest.approx(1024**-0.5 / 3**0.5, rel=0.01)


def test_too_small_image_is_refused():
    with refused(ErrorCode.INVALID_MODEL, "(2, 2, 1)", "layer 2", "image_size"):
        output_shapes((MaxPool(), MaxPool()), (2, 2, 1))
