"""Augmentation of training batches, as set by the key `augment` of a run spec.

Each augmentation except mixup is a function of images (n, height, width, channels) and of random
numbers for each image. It returns images of the same type and shape, and may overwrite its input.
Mixup also needs other samples.

Each random number is a hash of four values: the seed, the round (how often the sample was used
before), the row of the sample, and the index of the random number. Thus, a sample is augmented in
the same way regardless of batch, worker or framework, and no state is needed. The hash feeds the
four values in turn through the output function of SplitMix64 (Steele, Lea and Flood 2014, doi
10.1145/2660193.2660195), vectorized over whole arrays.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from raybench.data.dataset import Array, Batch, Dataset, Rows, Split, each, parts
from raybench.spec.dataset_spec import (
    Augmentation,
    ColorJitter,
    Cutout,
    Flip,
    Mixup,
    RandomCrop,
    RandomResizedCrop,
)
from raybench.spec.errors import ErrorCode, UserError

Key = npt.NDArray[np.uint64]
Uniform = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

_GOLDEN = 0x9E3779B97F4A7C15  # increment of SplitMix64
_MASK = 2**64 - 1
MOST_DRAWS = 64  # maximum number of random numbers that one augmentation draws per sample


@dataclass(frozen=True)
class Draws:
    """Random-number generator for one augmentation, which is applied to a batch of samples."""

    keys: Key
    """Hash key of each sample, (n,) uint64; see `sample_keys`."""
    place: int
    """Position of the augmentation in the list `augment`. It enters the hash, so that two
    augmentations of the same kind draw different numbers."""

    def __call__(self, number: int) -> Uniform:
        """Return the random number with index `number` for each sample, (n,) float64 in [0, 1)."""
        assert number < MOST_DRAWS
        offset = _mixed_number((self.place * MOST_DRAWS + number + 1) * _GOLDEN & _MASK)
        bits = _mixed(self.keys + np.uint64(offset)) >> np.uint64(11)
        return bits.astype(np.float64) * 2.0**-53

    def of(self, samples: npt.NDArray[np.intp]) -> "Draws":
        """Return the generator for the samples at the given positions in the batch."""
        return Draws(self.keys[samples], self.place)


def sample_keys(seed: int, rounds: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> Key:
    """Return a hash key for each sample, (n,) uint64.

    Different rows of the same round always have different keys.

    Args:
        seed: Seed of the run.
        rounds: Number of earlier uses of each sample in training, (n,).
        rows: Row of each sample in the training split, (n,).
    """
    first = np.uint64(_mixed_number(seed + _GOLDEN & _MASK))
    in_round = _mixed(rounds.astype(np.uint64) * np.uint64(_GOLDEN) + first)
    return _mixed(rows.astype(np.uint64) * np.uint64(_GOLDEN) + in_round)


def whole(uniform: Uniform, number: int | Whole) -> Whole:
    """Convert uniform random numbers in [0, 1) to equally likely integers in [0, `number`)."""
    return (uniform * number).astype(np.int64)


def _mixed(values: Key) -> Key:
    """Apply the output function of SplitMix64 to each value."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _mixed_number(value: int) -> int:
    """Apply `_mixed` to a single number."""
    # The number is put into an array, because NumPy warns if a scalar overflows.
    return int(_mixed(np.array([value], np.uint64))[0])


def random_crop(images: Array, draws: Draws, settings: RandomCrop) -> Array:
    """Pad images with zeros, then crop them to their original size at a random position.

    All (2 * padding + 1)**2 positions are equally likely.
    """
    number, height, width, channels = images.shape
    padding = settings.padding
    tops, lefts = (whole(draws(index), 2 * padding + 1) for index in (0, 1))
    padded = np.zeros((number, height + 2 * padding, width + 2 * padding, channels), images.dtype)
    padded[:, padding : padding + height, padding : padding + width] = images
    # A row of pixels is contiguous, so a crop is copied as `height` blocks of memory.
    lines = padded.reshape(number, height + 2 * padding, -1)
    windows = sliding_window_view(lines, (height, width * channels), axis=(1, 2))[:, :, ::channels]
    return windows[np.arange(number), tops, lefts].reshape(images.shape)


def flip(images: Array, draws: Draws, settings: Flip) -> Array:
    """Mirror randomly chosen images left to right."""
    rows = np.flatnonzero(draws(0) < settings.probability)
    originals = images[rows]
    for channel in range(images.shape[3]):  # three times faster than all channels at once
        images[rows, ..., channel] = originals[:, :, ::-1, channel]
    return images


def cutout(images: Array, draws: Draws, settings: Cutout) -> Array:
    """Set a square around a random pixel of each image to zero; the square may extend over the
    edge."""
    height, width = images.shape[1:3]
    side = max(1, round(settings.size * min(height, width)))
    tops, lefts = (whole(draws(at), size) - side // 2 for at, size in enumerate((height, width)))
    for image, top, left in zip(images, tops.tolist(), lefts.tolist(), strict=True):
        image[max(0, top) : top + side, max(0, left) : left + side] = 0
    return images


MAX_TRIES = 10  # random crops that are tried before the largest allowed central crop is used
UNITY = 256
"""Denominator of interpolation weights and mixup weights. They are multiples of 1 / UNITY, so that
weighted sums of bytes fit into 16-bit integers. Results are then the same on any machine, and the
loss is mixed with exactly the same weight as the pixels."""

Taps = tuple[Whole, Whole, npt.NDArray[np.uint16]]
"""Source lines and weights for the linear interpolation of n images to `wanted` output lines, where
a line is a row or a column of pixels. The three arrays have the shape (n, wanted): index of the
first source line, index of the second source line, and weight of the second source line in units of
1 / UNITY."""


def random_resized_crop(images: Array, draws: Draws, settings: RandomResizedCrop) -> Array:
    """Crop images at random and rescale them to their original size with bilinear interpolation.

    Pixel centers are at half-integers, and pixels beyond the edge of the crop repeat its border
    pixels. Since a crop is never larger than the image, no averaging is needed.
    """
    height, width = images.shape[1:3]
    top, left, rows, columns = crop_parts(draws, height, width, settings)
    first, second, weights = _taps(left, columns, width)
    begin, end = int(first.min()), int(second.max()) + 1  # columns that any crop uses
    tall = _between_rows(images[:, :, begin:end], *_taps(top, rows, height))
    # Transposed, because a row is contiguous in memory and a column is not.
    return _transposed(_between_rows(_transposed(tall), first - begin, second - begin, weights))


def crop_parts(
    draws: Draws, height: int, width: int, settings: RandomResizedCrop
) -> tuple[Whole, Whole, Whole, Whole]:
    """Draw a random crop for each image.

    Area and log aspect ratio are drawn uniformly until the crop fits into the image. After
    `MAX_TRIES` attempts, the largest central crop with an allowed aspect ratio is used, as in
    torchvision.

    Args:
        draws: Random numbers of n images.
        height: Height of the images in pixels.
        width: Width of the images in pixels.
        settings: Settings of the augmentation.

    Returns:
        Four arrays (n,): top, left, height and width of each crop in pixels.
    """
    number = len(draws.keys)
    # Height and width of the largest allowed crop.
    max_height = min(height, max(1, round(width * settings.max_ratio)))
    max_width = min(width, max(1, round(height * settings.max_ratio)))
    heights, widths = np.full(number, max_height), np.full(number, max_width)
    top, left = (height - heights) // 2, (width - widths) // 2
    remaining = np.arange(number)
    for attempt in range(MAX_TRIES):
        drawn = draws.of(remaining)
        area = (settings.min_area + (1 - settings.min_area) * drawn(2 * attempt)) * height * width
        root_of_ratio = np.exp((drawn(2 * attempt + 1) - 0.5) * math.log(settings.max_ratio))
        new_widths = np.maximum(1, np.rint(np.sqrt(area) * root_of_ratio)).astype(np.int64)
        new_heights = np.maximum(1, np.rint(np.sqrt(area) / root_of_ratio)).astype(np.int64)
        fits = (new_widths <= width) & (new_heights <= height)
        fitting = remaining[fits]
        heights[fitting], widths[fitting] = new_heights[fits], new_widths[fits]
        drawn = draws.of(fitting)
        top[fitting] = whole(drawn(2 * MAX_TRIES), height - new_heights[fits] + 1)
        left[fitting] = whole(drawn(2 * MAX_TRIES + 1), width - new_widths[fits] + 1)
        remaining = remaining[~fits]
        if not len(remaining):
            break
    return top, left, heights, widths


def _taps(first: Whole, number: Whole, wanted: int) -> Taps:
    """Return the `Taps` that rescale a range of lines of each image to `wanted` lines.

    Args:
        first: First source line of each image, (n,).
        number: Number of source lines of each image, (n,).
        wanted: Number of output lines.
    """
    last = (number - 1)[:, None]
    centers = (np.arange(wanted) + 0.5) * (number / wanted)[:, None] - 0.5
    centers = np.clip(centers, 0, last)
    before = centers.astype(np.int64)
    after = np.minimum(before + 1, last)
    weights = np.rint((centers - before) * UNITY).astype(np.uint16)
    return first[:, None] + before, first[:, None] + after, weights


def _between_rows(
    images: Array, first: Whole, second: Whole, weights: npt.NDArray[np.uint16]
) -> Array:
    """Interpolate between the rows of each image.

    Args:
        images: Images (n, height, width, channels).
        first: First source row of each output row, (n, wanted); see `Taps`.
        second: Second source row of each output row, (n, wanted).
        weights: Weight of the second source row, (n, wanted).

    Returns:
        Images (n, wanted, width, channels).
    """
    number, height, width, channels = images.shape
    lines = images.reshape(number * height, width * channels)
    start = np.arange(0, number * height, height)[:, None]
    first_lines, second_lines = (
        lines.take((start + index).ravel(), axis=0) for index in (first, second)
    )
    between = _between(first_lines, second_lines, weights.reshape(-1, 1))
    return between.reshape(number, -1, width, channels)


def _between(one: Array, other: Array, weights: npt.NDArray[np.uint16]) -> Array:
    """Return the weighted mean of two uint8 or float32 arrays; for uint8, it is rounded.

    `weights` are those of `other`, in units of 1 / UNITY and in a shape that broadcasts.
    """
    if one.dtype == np.float32:
        mixed = other - one
        mixed *= weights / np.float32(UNITY)
        mixed += one
        return mixed
    total = one.astype(np.uint16)
    total *= UNITY - weights
    added = other.astype(np.uint16)
    added *= weights
    total += added
    total += UNITY // 2
    total >>= 8
    return total.astype(np.uint8)


def _transposed(images: Array) -> Array:
    """Transpose images from (n, height, width, channels) to (n, width, height, channels)."""
    number, height, width, channels = images.shape
    transposed = np.empty((number, width, height, channels), images.dtype)
    for channel in range(channels):  # four times faster than all channels at once
        transposed[..., channel] = images[..., channel].transpose(0, 2, 1)
    return transposed


GREY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the gray value (ITU-R BT.601, as in PIL and torchvision)."""


def color_jitter(images: Array, draws: Draws, settings: ColorJitter) -> Array:
    """Change brightness, contrast and saturation of uint8 or float32 images, in this order.

    The factor for brightness multiplies each pixel, the factor for contrast the difference between
    a pixel and the mean gray value of the image, and the factor for saturation the difference
    between a pixel and its own gray value. All three changes together are the linear function
    `gain` * pixel + `greys`, so uint8 images are clipped only once, at the end. float32 images are
    not clipped, since their range is unknown. If there are not exactly three channels, gray is the
    mean of the channels, and saturation is not changed.
    """
    size, height, width, channels = images.shape
    most = [settings.brightness, settings.contrast, settings.saturation * (channels == len(GREY))]
    brightness, contrast, saturation = (
        1 + (2 * draws(at) - 1) * maximum for at, maximum in enumerate(most)
    )
    planes = np.empty((channels, size, height * width), np.float32)
    for channel in range(channels):
        planes[channel] = images[..., channel].reshape(size, -1)
    weights = GREY if channels == len(GREY) else (1 / channels,) * channels
    greys = planes[0] * np.float32(weights[0])
    for plane, weight in zip(planes[1:], weights[1:], strict=True):
        greys += plane * np.float32(weight)
    offset = brightness * (1 - contrast) * greys.mean(axis=1)
    if images.dtype == np.uint8:
        offset += 0.5  # for rounding, since the cast to uint8 truncates
    product = brightness * contrast
    factor, offset, gain = (
        numbers.astype(np.float32)[:, None]
        for numbers in (product * (1 - saturation), offset, product * saturation)
    )
    greys *= factor
    greys += offset
    for channel, plane in enumerate(planes):
        plane *= gain
        plane += greys
        if images.dtype == np.uint8:
            np.clip(plane, 0, 255, out=plane)
        images[..., channel] = plane.reshape(size, height, width)
    return images


CHANGES: dict[str, Callable[[Array, Draws, Any], Array]] = {
    change.__name__: change
    for change in (random_crop, flip, random_resized_crop, cutout, color_jitter)
}
"""Augmentation functions by kind, except `mixup`, which also needs other samples."""


@lru_cache
def _shares_below(alpha: float) -> npt.NDArray[np.float64]:
    """Return the cumulative distribution function of Beta(alpha, alpha), shape (UNITY,).

    It is evaluated halfway between successive multiples of 1 / UNITY.
    """
    from scipy.special import betainc  # imported here so that importing raybench is fast

    below: npt.NDArray[np.float64] = betainc(alpha, alpha, (np.arange(UNITY) + 0.5) / UNITY)
    return below


def mixup_shares(draws: Draws, alpha: float) -> npt.NDArray[np.uint16]:
    """Draw a mixup weight for each of n samples from Beta(alpha, alpha).

    Returns:
        Weights in units of 1 / UNITY, shape (n,).
    """
    return np.searchsorted(_shares_below(alpha), draws(0), side="right").astype(np.uint16)


def mix(samples: Array, others: Array, shares: npt.NDArray[np.uint16]) -> Array:
    """Return the weighted mean of each sample and another sample.

    Args:
        samples: Samples (n, ...).
        others: The samples to mix with them, in the same order and shape.
        shares: Weights of `samples` in units of 1 / UNITY, (n,); `others` have the remaining
            weights.
    """
    return _between(others, samples, shares.reshape(-1, *(1,) * (samples.ndim - 1)))


NUMBERS_AT_ONCE = 2**18
"""Maximum number of values in a chunk of images, so that the chunk fits into the cache of a core.
All augmentations are applied to a chunk before the next chunk is processed."""

NumberedAugmentation = tuple[int, Augmentation]
"""Position of an augmentation in the list `augment`, and its settings."""


@dataclass(frozen=True)
class Augmented:
    """An augmented batch of n samples."""

    inputs: Batch
    """Augmented inputs, with their original shape and type."""
    other_rows: Rows | None
    """Rows of the training split with which the samples are mixed, (n,); None without mixup."""
    shares: npt.NDArray[np.float32] | None
    """Weights (from 0 to 1) of the losses for the samples' own labels, (n,). The losses for the
    labels of the other samples have the remaining weights. None without mixup."""


class Augmenter:
    """Augments batches of training samples.

    The random numbers of a sample depend only on the seed, the round (number of earlier uses) and
    the row, so the result does not depend on the batch, the worker or the framework. An augmenter
    has no state, so several threads may call it.
    """

    def __init__(
        self,
        augmentations: Sequence[Augmentation],
        split: Split,
        seed: int,
        read: Callable[[Rows], Batch] | None = None,
    ) -> None:
        """Create an augmenter.

        Args:
            augmentations: Augmentations, in the order in which they are applied.
            split: Training split.
            seed: Seed of the run.
            read: Thread-safe function that reads the other samples of mixup; by default
                `split.read`.
        """
        self._read, self._seed, self._num_rows = read or split.read, seed, len(split)
        numbered = list(enumerate(augmentations))
        mixups = [(place, settings) for place, settings in numbered if isinstance(settings, Mixup)]
        self._mixup = mixups[0] if mixups else None
        mixup_place = mixups[0][0] if mixups else len(numbered)
        self._before, self._after = numbered[:mixup_place], numbered[mixup_place + 1 :]

    def __call__(self, inputs: Batch, rows: Rows, rounds: Rows) -> Augmented:
        """Augment a batch of samples.

        Mixup mixes all inputs. Other augmentations change only images, which are inputs of shape
        (n, height, width, channels) and type uint8 or float32. All images of a sample are changed
        in the same way. Augmentations before mixup in the list are also applied to the other
        samples, with the random numbers of these samples in the same round.

        Args:
            inputs: Result of `Split.read(rows)`; not overwritten.
            rows: Rows of the training split, (n,).
            rounds: Number of earlier uses of each row in training, (n,).
        """
        changed = self._changed(self._before, inputs, rows, rounds)
        if self._mixup is None:
            return Augmented(changed, None, None)
        place, mixup = self._mixup
        draws = Draws(sample_keys(self._seed, rounds, rows), place)
        shares, others = mixup_shares(draws, mixup.alpha), whole(draws(1), self._num_rows)
        partners = self._changed(self._before, self._read(others), others, rounds)
        if isinstance(changed, dict):
            assert isinstance(partners, dict)
            mixed: Batch = {
                name: mix(array, partners[name], shares) for name, array in changed.items()
            }
        else:
            assert not isinstance(partners, dict)
            mixed = mix(changed, partners, shares)
        mixed = self._changed(self._after, mixed, rows, rounds)
        return Augmented(mixed, others, (shares / UNITY).astype(np.float32))

    def _changed(
        self, augmentations: list[NumberedAugmentation], inputs: Batch, rows: Rows, rounds: Rows
    ) -> Batch:
        """Return the inputs after the given augmentations, none of which is mixup."""
        if not augmentations:
            return inputs
        keys = sample_keys(self._seed, rounds, rows)
        return each(
            inputs,
            lambda array: _change(array, keys, augmentations) if is_image(array) else array,
        )


def is_image(inputs: Any) -> bool:
    """Return whether inputs are images that can be augmented: four dimensions, uint8 or float32.

    Args:
        inputs: An array or `OnDemand` inputs.
    """
    return len(inputs.shape) == 4 and np.dtype(inputs.dtype) in (np.uint8, np.float32)


def _change(images: Array, keys: Key, augmentations: list[NumberedAugmentation]) -> Array:
    """Apply augmentations other than mixup to a copy of images (n, height, width, channels).

    The images are processed in chunks that fit into the CPU cache.
    """
    changed = images.copy()
    size = max(1, NUMBERS_AT_ONCE * len(images) // max(1, images.size))
    for start in range(0, len(images), size):
        chunk, chunk_keys = changed[start : start + size], keys[start : start + size]
        for place, settings in augmentations:
            chunk = CHANGES[settings.kind](chunk, Draws(chunk_keys, place), settings)
        changed[start : start + size] = chunk  # copies nothing if chunk was changed in place
    return changed


def check_augment(dataset: Dataset, augmentations: Sequence[Augmentation]) -> None:
    """Raise UserError if an augmentation does not suit the inputs, or if mixup is listed twice."""
    if sum(isinstance(augmentation, Mixup) for augmentation in augmentations) > 1:
        raise UserError("augment: mixup is listed twice; keep one of them.", ErrorCode.CONFLICT)
    for augmentation in augmentations:
        if isinstance(augmentation, Mixup):
            _check_mixup(dataset)
            continue
        images = [inputs for inputs in parts(dataset.train.inputs) if is_image(inputs)]
        if not images:
            raise UserError(
                f"augment: {augmentation.kind} needs images (N, height, width, channels) of uint8 "
                f"or float32, but {dataset.name} has {_shown(dataset)}; remove it.",
                ErrorCode.UNSUPPORTED,
            )
        height, width = min((array.shape[1:3] for array in images), key=min)
        if isinstance(augmentation, RandomCrop) and augmentation.padding >= min(height, width):
            raise UserError(
                f"augment: random_crop: padding {augmentation.padding} must be below "
                f"{min(height, width)} for images of {height} x {width} pixels.",
                ErrorCode.INVALID_VALUE,
            )


def _check_mixup(dataset: Dataset) -> None:
    kinds = {np.dtype(inputs.dtype) for inputs in parts(dataset.train.inputs)}
    is_text = dataset.task == "language_modelling"
    if is_text or not kinds <= {np.dtype(np.uint8), np.dtype(np.float32)}:
        raise UserError(
            f"augment: mixup needs uint8 or float32 inputs, but {dataset.name} has "
            f"{'tokens' if is_text else _shown(dataset)}; remove it.",
            ErrorCode.UNSUPPORTED,
        )


def _shown(dataset: Dataset) -> str:
    """Return the types and shapes of the inputs as text for an error message."""
    descriptions = each(
        dataset.train.inputs, lambda inputs: f"{np.dtype(inputs.dtype)} {tuple(inputs.shape)}"
    )
    if isinstance(descriptions, str):
        return descriptions
    return ", ".join(map(" ".join, descriptions.items()))
