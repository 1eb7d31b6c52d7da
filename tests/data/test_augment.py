"""Augmentations, compared with plain code that handles one sample and one pixel at a time."""

import numpy as np
import pytest
from pydantic import TypeAdapter
from scipy.ndimage import map_coordinates
from scipy.stats import beta, kstest

from raybench.data.augment import (
    Augmenter,
    Draws,
    check_augment,
    color_jitter,
    crop_parts,
    cutout,
    flip,
    mixup_shares,
    random_crop,
    random_resized_crop,
    sample_keys,
    whole,
)
from raybench.data.dataset import Split
from raybench.spec.dataset_spec import (
    AUGMENTATIONS,
    Augmentation,
    ColorJitter,
    Cutout,
    Flip,
    RandomCrop,
    RandomResizedCrop,
)
from raybench.spec.errors import ErrorCode
from tests.data.making import dataset_of
from tests.refusals import refused

ALL = ["random_resized_crop", "random_crop", "flip", "color_jitter", "mixup", "cutout"]


def augmentations(*content):
    return TypeAdapter(list[Augmentation]).validate_python(list(content))


def images_of(shape, kind, number=40):
    pixels = np.random.default_rng(0).integers(0, 256, (number, *shape), dtype=np.uint8)
    return pixels if kind == "uint8" else (pixels / 100 - 1).astype(np.float32)


def split_of(kind="uint8", number=50):
    return Split(images_of((9, 7, 3), kind, number), np.arange(number) % 3)


def augmented(split, rows, rounds, names=ALL, seed=0):
    augmenter = Augmenter(augmentations(*names), split, seed)
    rows, rounds = np.asarray(rows, np.int64), np.asarray(rounds, np.int64)
    return augmenter(split.read(rows), rows, rounds)


@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_augmentation_of_a_sample_does_not_depend_on_its_batch(kind, monkeypatch):
    split = split_of(kind=kind)
    kept = split.array.copy()
    rows, rounds = np.tile(np.arange(50), 2), np.repeat([0, 1], 50)
    together = augmented(split, rows, rounds)
    assert (together.inputs.dtype, together.inputs.shape) == (split.dtype, (100, 9, 7, 3))
    np.testing.assert_array_equal(split.array, kept)
    order = np.random.default_rng(1).permutation(100)
    for part in np.split(order, [1, 3, 40]):
        part_alone = augmented(split, rows[part], rounds[part])
        for name in ("inputs", "other_rows", "shares"):
            np.testing.assert_array_equal(getattr(part_alone, name), getattr(together, name)[part])
    monkeypatch.setattr("raybench.data.augment.NUMBERS_AT_ONCE", 9 * 7 * 3 * 7)
    np.testing.assert_array_equal(augmented(split, rows, rounds).inputs, together.inputs)
    # Another round and another seed give different images.
    assert (together.inputs[:50] != together.inputs[50:]).any(axis=(1, 2, 3)).mean() > 0.9
    other = augmented(split, rows, rounds, seed=1)
    assert (other.inputs != together.inputs).any(axis=(1, 2, 3)).mean() > 0.9


def test_augmented_pixels_are_pinned():
    # Another numpy, scipy or platform must give the same pixels, or records cannot be compared.
    batch = augmented(split_of(number=4), [1, 2], [0, 5])
    assert batch.other_rows.tolist() == [2, 1]
    assert batch.shares.tolist() == [0.90625, 0.9921875]
    assert batch.inputs[0, 1, 1:, 0].tolist() == [83, 148, 15, 21, 6, 6]
    assert batch.inputs[1, 1, 1:, 0].tolist() == [45, 157, 9, 254, 49, 232]


def test_mixup_mixes_samples_with_equal_augmentation():
    split = split_of()
    rows, rounds = np.arange(50), np.full(50, 3)
    alone = augmented(split, rows, rounds, names=["flip"])
    assert (alone.other_rows, alone.shares) == (None, None)
    mixed = augmented(split, rows, rounds, names=["flip", {"mixup": {"alpha": 1.0}}])
    shares = mixed.shares[:, None, None, None]
    expected = shares * alone.inputs + (1 - shares) * alone.inputs[mixed.other_rows]
    assert abs(mixed.inputs - expected).max() < 0.51
    assert mixed.shares.dtype == np.float32
    assert 0 <= mixed.shares.min() < mixed.shares.max() <= 1
    # Augmentations after mixup apply to the mixture.
    after = augmented(split, rows, rounds, names=["flip", {"mixup": {"alpha": 1.0}}, "cutout"])
    same = after.inputs == mixed.inputs
    assert same.any()
    assert ((after.inputs == 0) | same).all()
    assert not same.all()


def test_named_inputs_are_augmented_alike_and_tokens_are_unchanged():
    images, numbers = split_of(number=6).array, np.random.default_rng(0).random((6, 4))
    inputs = {"left": images, "right": images.copy(), "table": numbers.astype(np.float32)}
    split = Split(inputs | {"tokens": np.arange(6)}, np.zeros(6, np.int64))
    changed = augmented(split, range(6), [1] * 6, names=["random_crop", "flip"]).inputs
    np.testing.assert_array_equal(changed["left"], changed["right"])
    assert (changed["left"] != images).any()
    np.testing.assert_array_equal(changed["table"], inputs["table"])
    np.testing.assert_array_equal(changed["tokens"], np.arange(6))
    mixed = augmented(Split(inputs, split.labels), range(6), [1] * 6, names=["mixup"])
    shares = mixed.shares[:, None]
    expected = shares * numbers + (1 - shares) * numbers[mixed.other_rows]
    np.testing.assert_allclose(mixed.inputs["table"], expected, atol=1e-6)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_every_augmentation_accepts_an_empty_batch_and_a_black_pixel(name):
    for shape, number in (((4, 4, 3), 0), ((1, 1, 1), 3)):
        split = Split(np.zeros((max(1, number), *shape), np.uint8), np.zeros(max(1, number), int))
        rows = np.arange(number)
        batch = augmented(split, rows, rows, names=[name])
        assert batch.inputs.shape == (number, *shape)
        assert not batch.inputs.any()


IMAGES = np.zeros((4, 6, 8, 3), np.uint8)
PICTURES = dataset_of(IMAGES, [0, 1] * 2)
TEXTS = dataset_of(IMAGES, [0, 1] * 2, task="language_modelling")
TABLE = dataset_of(np.zeros((4, 9), np.float32), [0, 1] * 2)


@pytest.mark.parametrize(
    ("content", "dataset", "code", "names"),
    [
        (["flip"], TABLE, "UNSUPPORTED", ["flip", "(4, 9)"]),
        (["mixup"], TEXTS, "UNSUPPORTED", ["mixup"]),
        (["mixup", "flip", "mixup"], PICTURES, "CONFLICT", ["mixup"]),
        ([{"random_crop": {"padding": 6}}], PICTURES, "INVALID_VALUE", ["6 x 8"]),
    ],
)
def test_augmentations_unsuitable_for_the_data_are_refused(content, dataset, code, names):
    with refused(ErrorCode[code], *names):
        check_augment(dataset, augmentations(*content))


SHAPES = [(7, 5, 3), (6, 6, 4), (1, 9, 2)]
CASES = [(shape, kind) for shape in SHAPES for kind in ("uint8", "float32")]
FLIP = Flip(kind="flip")
CROP = RandomCrop(kind="random_crop", padding=2)
CUTOUT = Cutout(kind="cutout", size=0.6)
RESIZED = RandomResizedCrop(kind="random_resized_crop")
JITTER = ColorJitter(kind="color_jitter", brightness=0.3, contrast=0.5, saturation=0.9)


def draws_of(number=40, seed=3):
    rows = np.arange(number)
    return Draws(sample_keys(seed, np.zeros(number, np.int64), rows), 1)


def crop_of(image, first, second):
    top, left = int(first * 5), int(second * 5)
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    return padded[top : top + image.shape[0], left : left + image.shape[1]]


def cutout_of(image, first, second):
    """Return the image with a square of zeros, which may extend past the edge."""
    height, width = image.shape[:2]
    side = max(1, round(0.6 * min(height, width)))
    top, left = int(first * height) - side // 2, int(second * width) - side // 2
    rows, columns = np.indices((height, width))
    inside = (top <= rows) & (rows < top + side) & (left <= columns) & (columns < left + side)
    return np.where(inside[..., None], 0, image).astype(image.dtype)


@pytest.mark.parametrize(("shape", "kind"), CASES)
@pytest.mark.parametrize(
    ("change", "settings", "plain"),
    [
        (random_crop, CROP, crop_of),
        (cutout, CUTOUT, cutout_of),
        (flip, FLIP, lambda image, first, _: image[:, ::-1] if first < 0.5 else image),
    ],
)
def test_augmentations_equal_plain_code_per_image(change, settings, plain, shape, kind):
    images, draws = images_of(shape, kind), draws_of()
    assert 5 < (draws(0) < 0.5).sum() < 35
    expected = [plain(*arguments) for arguments in zip(images, draws(0), draws(1), strict=True)]
    changed = change(images.copy(), draws, settings)
    assert changed.dtype == images.dtype
    np.testing.assert_array_equal(changed, np.stack(expected))


@pytest.mark.parametrize(("shape", "kind"), CASES)
def test_random_resized_crop_scales_bilinearly(shape, kind):
    images, draws = images_of(shape, kind, number=12), draws_of(12)
    height, width, _ = shape
    boxes = np.stack(crop_parts(draws, height, width, RESIZED), axis=1)
    cropped = random_resized_crop(images, draws, RESIZED)
    # Weights are multiples of 1/256; bytes are rounded after rows and after columns.
    near = 2 if kind == "uint8" else 2.56 * 2 / 512 + 1e-6
    assert (cropped.dtype, cropped.shape) == (images.dtype, images.shape)
    for image, resized, (top, left, rows, columns) in zip(images, cropped, boxes, strict=True):
        part = image[top : top + rows, left : left + columns].astype(np.float64)
        scale = np.array([rows / height, columns / width])[:, None, None]
        centers = (np.indices((height, width)) + 0.5) * scale - 0.5
        for channel, pixels in enumerate(np.moveaxis(part, 2, 0)):
            expected = map_coordinates(pixels, centers, order=1, mode="nearest")
            np.testing.assert_allclose(resized[..., channel], expected, atol=near)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (20, 50), (3, 200), (1, 1)])
def test_crops_have_the_requested_areas_and_ratios(height, width):
    settings = RESIZED.model_copy(update={"min_area": 0.25, "max_ratio": 1.5})
    top, left, rows, columns = crop_parts(draws_of(4000), height, width, settings)
    assert min(top.min(), left.min()) >= 0
    assert min(rows.min(), columns.min()) >= 1
    assert (top + rows).max() <= height
    assert (left + columns).max() <= width
    if min(height, width) < 10:  # no crop fits, so the largest with an allowed ratio is used
        assert set(columns) <= {min(width, round(height * 1.5))}
        return
    ratios = columns / rows
    assert ratios.min() > 1 / 1.5 - 0.1
    assert ratios.max() < 1.5 + 0.1
    shares = rows * columns / (height * width)
    assert shares.min() > 0.2
    assert height != width or abs(np.median(np.log(ratios))) < 0.1
    assert min(len(set(top)), len(set(left))) > 5


@pytest.mark.parametrize(("shape", "kind"), CASES)
def test_color_jitter_changes_brightness_contrast_and_saturation_in_order(shape, kind):
    images, draws = images_of(shape, kind), draws_of()
    channels = shape[2]
    grey_of = np.array([0.299, 0.587, 0.114]) if channels == 3 else np.full(channels, 1 / channels)
    factors = [1 + (2 * draws(n) - 1) * limit for n, limit in enumerate((0.3, 0.5, 0.9))]
    jittered = color_jitter(images.copy(), draws, JITTER)
    assert jittered.dtype == images.dtype
    for index, image in enumerate(images.astype(np.float64)):
        brightness, contrast, saturation = (float(factor[index]) for factor in factors)
        image = image * brightness
        mean = (image @ grey_of).mean()
        image = mean + contrast * (image - mean)
        if channels == 3:
            greys = (image @ grey_of)[..., None]
            image = greys + saturation * (image - greys)
        near = 1e-4
        if kind == "uint8":
            image, near = np.clip(image, 0, 255), 0.501
        np.testing.assert_allclose(jittered[index], image, atol=near)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_mixup_shares_follow_the_beta_distribution(alpha):
    draws = draws_of(5000)
    shares = mixup_shares(draws, alpha) / 256
    # Shares are rounded to 1/256; with uniform noise of that width they follow Beta.
    spread = np.clip(shares + (np.random.default_rng(1).random(5000) - 0.5) / 256, 0, 1)
    inner = (spread > 0.01) & (spread < 0.99)
    part = beta(alpha, alpha)
    low, high = part.cdf(0.01), part.cdf(0.99)
    assert abs(inner.mean() - (high - low)) < 0.03
    assert kstest((part.cdf(spread[inner]) - low) / (high - low), "uniform").pvalue > 0.01
    assert np.bincount(whole(draws(1), 17)).min() > 200  # the samples to mix with
