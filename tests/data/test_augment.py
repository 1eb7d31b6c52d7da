"""The augmenter: what a sample becomes depends on seed, round and row alone."""

import subprocess
import sys

import numpy as np
import pytest
from pydantic import TypeAdapter

from raybench.data.augment import Augmenter, check_augment
from raybench.data.dataset import Dataset, Split
from raybench.data.image_changes import Draws, sample_keys
from raybench.spec.dataset_spec import KINDS, Augmentation
from raybench.spec.errors import UserError

ALL = ["random_resized_crop", "random_crop", "flip", "color_jitter", "mixup", "cutout"]


def augmentations(*content):
    return TypeAdapter(list[Augmentation]).validate_python(list(content))


def split_of(shape=(9, 7, 3), kind="uint8", number=50):
    pixels = np.random.default_rng(0).integers(0, 256, (number, *shape), dtype=np.uint8)
    inputs = pixels if kind == "uint8" else (pixels / 100).astype(np.float32)
    return Split(inputs, np.arange(number) % 3)


def augmented(split, rows, rounds, names=ALL, seed=0):
    augmenter = Augmenter(augmentations(*names), split, seed)
    rows, rounds = np.asarray(rows, np.int64), np.asarray(rounds, np.int64)
    return augmenter(split.read(rows), rows, rounds)


@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_a_sample_is_the_same_in_any_batch(kind, monkeypatch):
    split = split_of(kind=kind)
    kept = split.array.copy()
    rows, rounds = np.tile(np.arange(50), 2), np.repeat([0, 1], 50)
    together = augmented(split, rows, rounds)
    assert (together.inputs.dtype, together.inputs.shape) == (split.dtype, (100, 9, 7, 3))
    np.testing.assert_array_equal(split.array, kept)
    order = np.random.default_rng(1).permutation(100)
    for cut in ([order[:1]], np.split(order, [1, 3, 40])):
        for part in cut:
            again = augmented(split, rows[part], rounds[part])
            np.testing.assert_array_equal(again.inputs, together.inputs[part])
            np.testing.assert_array_equal(again.other_rows, together.other_rows[part])
            np.testing.assert_array_equal(again.shares, together.shares[part])
    monkeypatch.setattr("raybench.data.augment.CHUNK", 9 * 7 * 3 * 7)
    np.testing.assert_array_equal(augmented(split, rows, rounds).inputs, together.inputs)
    # The other round and another seed are other images.
    assert (together.inputs[:50] != together.inputs[50:]).any(axis=(1, 2, 3)).mean() > 0.9
    other = augmented(split, rows, rounds, seed=1)
    assert (other.inputs != together.inputs).any(axis=(1, 2, 3)).mean() > 0.9


def test_keys_are_chained_splitmix64():
    def output(value):
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
        return value ^ (value >> 31)

    golden = 0x9E3779B97F4A7C15
    assert output(golden) == 0xE220A8397B1DCDAF  # the first number of seed 0, as published
    keys = sample_keys(7, np.array([2, 0]), np.array([5, 2**40]))
    for key, (of_round, row) in zip(keys.tolist(), [(2, 5), (0, 2**40)], strict=True):
        expected = 7
        for part in (golden, of_round * golden, row * golden):
            expected = output((expected + part) % 2**64)
        assert key == expected
    draws = Draws(keys, 3)(1).tolist()
    offset = output((3 * 64 + 1 + 1) * golden % 2**64)
    assert draws == [(output((key + offset) % 2**64) >> 11) / 2**53 for key in keys.tolist()]


def test_what_a_sample_becomes_is_pinned():
    # Another numpy, scipy or platform must give the same pixels, or records cannot be compared.
    found = augmented(split_of(number=4), [1, 2], [0, 5])
    assert found.other_rows.tolist() == [2, 1]
    assert found.shares.tolist() == [0.90625, 0.9921875]
    assert found.inputs[0, 1, 1:, 0].tolist() == [83, 148, 15, 21, 6, 6]
    assert found.inputs[1, 1, 1:, 0].tolist() == [45, 157, 9, 254, 49, 232]


def test_draws_are_uniform_and_of_their_own():
    rows = np.arange(2000)
    draws = []
    for seed, of_round, place, number in [(0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0), (0, 1, 0, 0)]:
        keys = sample_keys(seed, np.full(2000, of_round), rows)
        draws.append(Draws(keys, place)(number))
    draws.append(Draws(sample_keys(1, np.zeros(2000, np.int64), rows), 0)(0))
    for one in draws:
        counts = np.histogram(one, bins=20, range=(0, 1))[0]
        assert ((counts - 100) ** 2 / 100).sum() < 43.8  # chi square of 19, 0.1 %
    between = np.corrcoef([*draws, np.roll(draws[0], 1)])
    assert abs(between - np.eye(6)).max() < 0.08
    assert len(set(sample_keys(3, np.zeros(2000, np.int64), rows).tolist())) == 2000
    largest = sample_keys(2**32 - 1, np.array([2**40]), np.array([2**40]))
    assert 0 <= Draws(largest, 9)(63)[0] < 1


def test_mixup_mixes_with_samples_that_are_changed_alike():
    split = split_of()
    rows, rounds = np.arange(50), np.full(50, 3)
    alone = augmented(split, rows, rounds, names=["flip"])
    assert alone.other_rows is None
    assert alone.shares is None
    mixed = augmented(split, rows, rounds, names=["flip", {"mixup": {"alpha": 1.0}}])
    shares = mixed.shares[:, None, None, None]
    expected = shares * alone.inputs + (1 - shares) * alone.inputs[mixed.other_rows]
    assert abs(mixed.inputs - expected).max() < 0.51
    assert mixed.shares.dtype == np.float32
    assert 0 <= mixed.shares.min() < mixed.shares.max() <= 1
    # What stands after mixup is done to the mixture.
    after = augmented(split, rows, rounds, names=["flip", {"mixup": {"alpha": 1.0}}, "cutout"])
    same = after.inputs == mixed.inputs
    assert same.any()
    assert ((after.inputs == 0) | same).all()
    assert not same.all()


def test_inputs_by_name_change_alike_and_tokens_stay():
    images, numbers = split_of(number=6).array, np.random.default_rng(0).random((6, 4))
    inputs = {"left": images, "right": images.copy(), "table": numbers.astype(np.float32)}
    split = Split(inputs | {"tokens": np.arange(6)}, np.zeros(6, np.int64))
    found = augmented(split, range(6), [1] * 6, names=["random_crop", "flip"]).inputs
    np.testing.assert_array_equal(found["left"], found["right"])
    assert (found["left"] != images).any()
    np.testing.assert_array_equal(found["table"], inputs["table"])
    np.testing.assert_array_equal(found["tokens"], np.arange(6))
    mixed = augmented(Split(inputs, split.labels), range(6), [1] * 6, names=["mixup"])
    shares = mixed.shares[:, None]
    expected = shares * numbers + (1 - shares) * numbers[mixed.other_rows]
    np.testing.assert_allclose(mixed.inputs["table"], expected, atol=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_takes_an_empty_batch_and_a_dark_pixel(name):
    for shape, number in (((4, 4, 3), 0), ((1, 1, 1), 3)):
        split = Split(np.zeros((max(1, number), *shape), np.uint8), np.zeros(max(1, number), int))
        rows = np.arange(number)
        found = augmented(split, rows, rows, names=[name])
        assert found.inputs.shape == (number, *shape)
        assert not found.inputs.any()


def dataset_of(inputs, labels=None, **other):
    labels = np.arange(len(inputs)) % 2 if labels is None else labels
    split = Split(inputs, labels)
    return Dataset("mine", 2, split, split, split, **other)


IMAGES = np.zeros((4, 6, 8, 3), np.uint8)


@pytest.mark.parametrize(
    ("content", "dataset", "words"),
    [
        (["flip"], dataset_of(np.zeros((4, 9), np.float32)), "flip is of images.*float32 .4, 9."),
        (["cutout"], dataset_of(np.zeros((4, 9), np.int64)), "cutout is of images.*int64"),
        (["mixup"], dataset_of(np.zeros((4, 9), np.int64)), "mixup is of uint8 and float32.*int64"),
        (
            ["mixup"],
            dataset_of(IMAGES, task="language_modelling"),
            "mixup is of uint8 and float32 inputs, and .* has tokens",
        ),
        (["mixup", "flip", "mixup"], dataset_of(IMAGES), "mixup stands there twice"),
        (
            [{"random_crop": {"padding": 6}}],
            dataset_of(IMAGES),
            "mine, 6 x 8 pixels.*padding below 6",
        ),
    ],
)
def test_what_data_cannot_be_given_is_said(content, dataset, words):
    with pytest.raises(UserError, match=words):
        check_augment(dataset, augmentations(*content))


def test_no_library_comes_with_the_package_but_numpy():
    heavy = {"scipy", "PIL", "torch"}
    code = f"import sys, raybench.data.augment; print({heavy} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
