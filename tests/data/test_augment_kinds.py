"""Each kind of augmentation against plain code: one sample at a time, one pixel at a time."""

import numpy as np
import pytest
from PIL import Image

from raybench.data.image_changes import (
    Draws,
    color_jitter,
    cutout,
    flip,
    mix,
    mixup_shares,
    parts,
    random_crop,
    random_resized_crop,
    sample_keys,
    whole,
)
from raybench.spec.dataset_spec import ColorJitter, Cutout, Flip, RandomCrop, RandomResizedCrop

SHAPES = [(7, 5, 3), (5, 8, 1), (6, 6, 4), (1, 1, 3), (1, 9, 2)]
CASES = [(shape, kind) for shape in SHAPES for kind in ("uint8", "float32")]
FLIP = Flip(kind="flip")
CROP = RandomCrop(kind="random_crop", padding=2)
CUTOUT = Cutout(kind="cutout", size=0.6)
RESIZED = RandomResizedCrop(kind="random_resized_crop")
JITTER = ColorJitter(kind="color_jitter", brightness=0.3, contrast=0.5, saturation=0.9)


def images_of(shape, kind, number=40):
    pixels = np.random.default_rng(0).integers(0, 256, (number, *shape), dtype=np.uint8)
    return pixels if kind == "uint8" else (pixels / 100 - 1).astype(np.float32)


def draws_of(number=40, seed=3):
    rows = np.arange(number)
    return Draws(sample_keys(seed, np.zeros(number, np.int64), rows), 1)


@pytest.mark.parametrize(("shape", "kind"), CASES)
def test_random_crop_is_a_window_of_the_padded_image(shape, kind):
    images, draws = images_of(shape, kind), draws_of()
    height, width, _ = shape
    expected = np.zeros_like(images)
    for index in range(len(images)):
        top, left = int(draws(0)[index] * 5) - 2, int(draws(1)[index] * 5) - 2
        for row in range(height):
            for column in range(width):
                if 0 <= row + top < height and 0 <= column + left < width:
                    expected[index, row, column] = images[index, row + top, column + left]
    found = random_crop(images, draws, CROP)
    assert found.dtype == images.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("shape", "kind"), CASES)
def test_flip_mirrors_those_below_the_probability(shape, kind):
    images, draws = images_of(shape, kind), draws_of()
    expected = images.copy()
    for index, draw in enumerate(draws(0)):
        if draw < 0.5:
            expected[index] = images[index, :, ::-1]
    assert 5 < (draws(0) < 0.5).sum() < 35
    np.testing.assert_array_equal(flip(images.copy(), draws, FLIP), expected)
    never = FLIP.model_copy(update={"probability": 0.0})
    np.testing.assert_array_equal(flip(images.copy(), draws, never), images)


@pytest.mark.parametrize(("shape", "kind"), CASES)
def test_cutout_is_a_square_of_zeros_that_may_reach_over_the_edge(shape, kind):
    images, draws = images_of(shape, kind), draws_of()
    height, width, _ = shape
    side = max(1, round(0.6 * min(height, width)))
    expected = images.copy()
    for index in range(len(images)):
        top = int(draws(0)[index] * height) - side // 2
        left = int(draws(1)[index] * width) - side // 2
        for row in range(height):
            for column in range(width):
                if top <= row < top + side and left <= column < left + side:
                    expected[index, row, column] = 0
    np.testing.assert_array_equal(cutout(images.copy(), draws, CUTOUT), expected)


@pytest.mark.parametrize(("shape", "kind"), CASES)
def test_random_resized_crop_scales_a_part_bilinearly(shape, kind):
    images, draws = images_of(shape, kind, number=12), draws_of(12)
    height, width, _ = shape
    boxes = np.stack(parts(draws, height, width, RESIZED), axis=1)
    found = random_resized_crop(images, draws, RESIZED)
    assert (found.dtype, found.shape) == (images.dtype, images.shape)
    for image, one, (top, left, rows, columns) in zip(images, found, boxes, strict=True):
        part = image[top : top + rows, left : left + columns].astype(np.float64)
        for row in range(height):
            for column in range(width):
                expected = at(part, (row + 0.5) * rows / height, (column + 0.5) * columns / width)
                # Weights in whole 1/256, and bytes are rounded after rows and after columns.
                near = 2 if kind == "uint8" else 2.56 * 2 / 512 + 1e-6
                np.testing.assert_allclose(one[row, column], expected, atol=near)


def at(part, vertical, horizontal):
    """Return the bilinear value between the four pixels whose centres lie around a point."""
    total = 0.0
    places = [np.clip(vertical - 0.5, 0, len(part) - 1)]
    places.append(np.clip(horizontal - 0.5, 0, part.shape[1] - 1))
    for row in range(len(part)):
        for column in range(part.shape[1]):
            near = max(0, 1 - abs(row - places[0])) * max(0, 1 - abs(column - places[1]))
            total = total + near * part[row, column]
    return total


def test_random_resized_crop_is_what_pil_makes_of_the_same_part():
    images, draws = images_of((40, 56, 3), "uint8", number=10), draws_of(10)
    found = random_resized_crop(images, draws, RESIZED)
    boxes = np.stack(parts(draws, 40, 56, RESIZED), axis=1)
    for image, one, (top, left, rows, columns) in zip(images, found, boxes.tolist(), strict=True):
        part = Image.fromarray(image).crop((left, top, left + columns, top + rows))
        expected = np.asarray(part.resize((56, 40), Image.Resampling.BILINEAR)).astype(int)
        assert abs(one - expected).max() <= 2
        assert abs(one - expected).mean() < 0.3


@pytest.mark.parametrize(("height", "width"), [(32, 32), (20, 50), (3, 200), (1, 1)])
def test_parts_have_the_areas_and_ratios_that_were_asked_for(height, width):
    settings = RESIZED.model_copy(update={"min_area": 0.25, "max_ratio": 1.5})
    top, left, rows, columns = parts(draws_of(4000), height, width, settings)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (rows >= 1).all()
    assert (columns >= 1).all()
    assert (top + rows <= height).all()
    assert (left + columns <= width).all()
    if min(height, width) < 10:  # none fits, so it is the largest of the allowed ratio
        assert set(columns) <= {min(width, round(height * 1.5))}
        return
    ratios = columns / rows
    assert ratios.min() > 1 / 1.5 - 0.1
    assert ratios.max() < 1.5 + 0.1
    shares = rows * columns / (height * width)
    assert shares.min() > 0.2
    assert height != width or abs(np.median(np.log(ratios))) < 0.1
    assert len(set(top)) > 5
    assert len(set(left)) > 5


@pytest.mark.parametrize(("shape", "kind"), CASES)
def test_colours_change_one_after_the_other(shape, kind):
    images, draws = images_of(shape, kind), draws_of()
    channels = shape[2]
    grey_of = np.array([0.299, 0.587, 0.114]) if channels == 3 else np.full(channels, 1 / channels)
    factors = [1 + (2 * draws(n) - 1) * most for n, most in enumerate((0.3, 0.5, 0.9))]
    found = color_jitter(images.copy(), draws, JITTER)
    assert found.dtype == images.dtype
    for index, image in enumerate(images.astype(np.float64)):
        brightness, contrast, saturation = (float(one[index]) for one in factors)
        image = image * brightness
        mean = (image @ grey_of).mean()
        image = mean + contrast * (image - mean)
        if channels == 3:
            greys = (image @ grey_of)[..., None]
            image = greys + saturation * (image - greys)
        if kind == "uint8":
            near = abs(found[index] - np.clip(image, 0, 255)).max()
            assert near < 0.501
        else:
            np.testing.assert_allclose(found[index], image, atol=1e-4)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_shares_of_a_mixup_are_of_the_beta_distribution(alpha):
    from scipy.stats import beta, kstest

    draws = draws_of(5000)
    shares = mixup_shares(draws, alpha) / 256
    # A share stands for those up to 1/512 beside it: drawn evenly from them, they are Beta's.
    spread = np.clip(shares + (np.random.default_rng(1).random(5000) - 0.5) / 256, 0, 1)
    inner = (spread > 0.01) & (spread < 0.99)
    part = beta(alpha, alpha)
    low, high = part.cdf(0.01), part.cdf(0.99)
    assert abs(inner.mean() - (high - low)) < 0.03
    assert kstest((part.cdf(spread[inner]) - low) / (high - low), "uniform").pvalue > 0.01
    counts = np.bincount(whole(draws(1), 17), minlength=17)  # whom to mix with
    assert len(counts) == 17
    assert counts.min() > 200


def test_mixing_is_the_weighted_mean():
    shares = np.array([0, 1, 128, 255, 256], np.uint16)
    for kind in ("uint8", "float32"):
        images = images_of((3, 4, 2), kind, number=10)
        found = mix(images[:5], images[5:], shares)
        weights = (shares / 256)[:, None, None, None]
        expected = weights * images[:5] + (1 - weights) * images[5:]
        near = 0.501 if kind == "uint8" else 1e-5
        np.testing.assert_allclose(found, expected, atol=near)
        np.testing.assert_allclose(found[[0, 4]], [images[5], images[4]], atol=1e-6)
