"""Augmentation of training batches, as set by the key `augment` of a run spec.

Each augmentation is a function that takes images (n, height, width, channels), which it may
overwrite, and their random numbers. It returns images of the same type and shape.

Each random number is a hash of the seed, the round (how often the sample was used before), the row
of the sample and the number of the draw. Thus, a sample is augmented the same way in any batch,
worker and framework, without any state. The hash chains the output function of SplitMix64 (Steele,
Lea and Flood 2014, doi 10.1145/2660193.2660195) over these four values, for whole arrays.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from raybench.data.dataset import Dataset, Split
from raybench.data.inputs import Array, Batch, Rows, each, parts
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

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
MOST_DRAWS = 64  # maximum number of random numbers that one augmentation draws per sample


@dataclass(frozen=True)
class Draws:
    """Random numbers of one augmentation for the samples of a batch."""

    keys: Key
    """(n,) uint64: hash keys of the samples (`sample_keys`)."""
    place: int
    """Position of the augmentation in the list `augment`, so that two augmentations of the same
    kind draw different numbers."""

    def __call__(self, number: int) -> Uniform:
        """Return the random number of index `number` of each sample: (n,) float64 in [0, 1)."""
        assert number < MOST_DRAWS
        offset = _mixed_number((self.place * MOST_DRAWS + number + 1) * _GOLDEN & _MASK)
        bits = _mixed(self.keys + np.uint64(offset)) >> np.uint64(11)
        return bits.astype(np.float64) * 2.0**-53

    def of(self, samples: npt.NDArray[np.intp]) -> "Draws":
        """Return the `Draws` of only the samples at the positions `samples` of the batch."""
        return Draws(self.keys[samples], self.place)


def sample_keys(seed: int, rounds: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> Key:
    """Return one hash key per sample, computed from seed, round and row: (n,) uint64.

    Different rows of the same round always have different keys.
    """
    first = np.uint64(_mixed_number(seed + _GOLDEN & _MASK))
    in_round = _mixed(rounds.astype(np.uint64) * np.uint64(_GOLDEN) + first)
    return _mixed(rows.astype(np.uint64) * np.uint64(_GOLDEN) + in_round)


def whole(uniform: Uniform, number: int | Whole) -> Whole:
    """Turn uniform numbers in [0, 1) into equally likely integers from 0 to `number` - 1."""
    return (uniform * number).astype(np.int64)


def _mixed(values: Key) -> Key:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _mixed_number(value: int) -> int:
    """Return `_mixed` of one number; uses an array, since numpy warns of overflow in scalars."""
    return int(_mixed(np.array([value], np.uint64))[0])


def random_crop(images: Array, draws: Draws, settings: RandomCrop) -> Array:
    """Pad with zeros, then crop to the original size at a random position.

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
    old = images[rows]
    for channel in range(images.shape[3]):  # three times faster than all channels at once
        images[rows, ..., channel] = old[:, :, ::-1, channel]
    return images


def cutout(images: Array, draws: Draws, settings: Cutout) -> Array:
    """Set a square around a random pixel to zero; the square may extend over the edge."""
    height, width = images.shape[1:3]
    side = max(1, round(settings.size * min(height, width)))
    tops, lefts = (whole(draws(at), size) - side // 2 for at, size in enumerate((height, width)))
    for image, top, left in zip(images, tops.tolist(), lefts.tolist(), strict=True):
        image[max(0, top) : top + side, max(0, left) : left + side] = 0
    return images


MAX_TRIES = 10  # random crops that are tried before the largest allowed central crop is used
UNITY = 256
"""Interpolation weights and mixup shares are multiples of 1 / UNITY, so that weighted sums of bytes
fit into 16-bit integers. Results are then the same on any machine, and the loss is mixed with
exactly the same share as the pixels."""

Taps = tuple[Whole, Whole, npt.NDArray[np.uint16]]
"""For linear interpolation, (n, wanted) each: the two source lines (rows or columns) of each wanted
line, and the weight of the second one in 1 / UNITY."""


def random_resized_crop(images: Array, draws: Draws, settings: RandomResizedCrop) -> Array:
    """Crop at random and rescale to the original size with bilinear interpolation.

    Pixel centers are at half-integers, and pixels beyond the edge of the crop repeat its border
    pixels. Since a crop is never
    larger than the image, no downscaling (averaging) is needed.
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
    """Return top, left, height and width of each random crop in pixels, (n,) each.

    Area and log aspect ratio are drawn until the crop fits into the image. After `MAX_TRIES`
    attempts, the largest central crop of an allowed ratio is used, as in torchvision.
    """
    number = len(draws.keys)
    rows = min(height, max(1, round(width * settings.max_ratio)))  # of the largest allowed crop
    columns = min(width, max(1, round(height * settings.max_ratio)))
    found_rows, found_columns = np.full(number, rows), np.full(number, columns)
    top, left = (height - found_rows) // 2, (width - found_columns) // 2
    missing = np.arange(number)
    for attempt in range(MAX_TRIES):
        of = draws.of(missing)
        area = (settings.min_area + (1 - settings.min_area) * of(2 * attempt)) * height * width
        # Square root of the aspect ratio.
        side = np.exp((of(2 * attempt + 1) - 0.5) * math.log(settings.max_ratio))
        across = np.maximum(1, np.rint(np.sqrt(area) * side)).astype(np.int64)
        down = np.maximum(1, np.rint(np.sqrt(area) / side)).astype(np.int64)
        fits = (across <= width) & (down <= height)
        fitting = missing[fits]
        found_rows[fitting], found_columns[fitting] = down[fits], across[fits]
        where = draws.of(fitting)
        top[fitting] = whole(where(2 * MAX_TRIES), height - down[fits] + 1)
        left[fitting] = whole(where(2 * MAX_TRIES + 1), width - across[fits] + 1)
        missing = missing[~fits]
        if not len(missing):
            break
    return top, left, found_rows, found_columns


def _taps(first: Whole, number: Whole, wanted: int) -> Taps:
    """Return the `Taps` (source lines and weights) that rescale `number` (n,) lines of each image,
    starting at line `first` (n,), to `wanted` lines."""
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
    """Interpolate between rows of each image by taps; return (n, wanted, width, channels)."""
    number, height, width, channels = images.shape
    lines = images.reshape(number * height, width * channels)
    start = np.arange(0, number * height, height)[:, None]
    one, other = (lines.take((start + at).ravel(), axis=0) for at in (first, second))
    return _between(one, other, weights.reshape(-1, 1)).reshape(number, -1, width, channels)


def _between(one: Array, other: Array, weights: npt.NDArray[np.uint16]) -> Array:
    """Interpolate between two arrays of uint8 (the result is rounded) or float32.

    `weights` are the weights of `other` in 1 / UNITY; they are broadcast.
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
    turned = np.empty((number, width, height, channels), images.dtype)
    for channel in range(channels):  # four times faster than all channels at once
        turned[..., channel] = images[..., channel].transpose(0, 2, 1)
    return turned


GREY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the gray value (ITU-R BT.601, as in PIL and torchvision)."""


def color_jitter(images: Array, draws: Draws, settings: ColorJitter) -> Array:
    """Change brightness, contrast and saturation of uint8 or float32 images, in this order.

    Brightness scales a pixel, contrast its distance from the mean gray of the image, and saturation
    its distance from its own gray. All three together are a linear function, `gain` * pixel +
    `greys`, so uint8 images are clipped only once, at the end. float32 images are not clipped, as
    their range is unknown. Unless there are three channels, gray is the mean of the channels and
    the saturation is not changed.
    """
    size, height, width, channels = images.shape
    most = [settings.brightness, settings.contrast, settings.saturation * (channels == len(GREY))]
    brightness, contrast, saturation = (
        1 + (2 * draws(at) - 1) * maximum for at, maximum in enumerate(most)
    )
    planes = np.empty((channels, size, height * width), np.float32)
    for channel in range(channels):
        planes[channel] = images[..., channel].reshape(size, -1)
    parts = GREY if channels == len(GREY) else (1 / channels,) * channels
    greys = planes[0] * np.float32(parts[0])
    for plane, part in zip(planes[1:], parts[1:], strict=True):
        greys += plane * np.float32(part)
    offset = brightness * (1 - contrast) * greys.mean(axis=1)
    if images.dtype == np.uint8:
        offset += 0.5  # for rounding, since the cast to uint8 truncates
    both = brightness * contrast
    factor, offset, gain = (
        numbers.astype(np.float32)[:, None]
        for numbers in (both * (1 - saturation), offset, both * saturation)
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
    from scipy.special import betainc  # imported here so that importing raybench is fast

    below: npt.NDArray[np.float64] = betainc(alpha, alpha, (np.arange(UNITY) + 0.5) / UNITY)
    return below


def mixup_shares(draws: Draws, alpha: float) -> npt.NDArray[np.uint16]:
    """Draw the weight of each sample from Beta(alpha, alpha): (n,), in units of 1 / UNITY."""
    return np.searchsorted(_shares_below(alpha), draws(0), side="right").astype(np.uint16)


def mix(samples: Array, others: Array, shares: npt.NDArray[np.uint16]) -> Array:
    """Mix samples pairwise, with weight shares / UNITY for `samples` and the rest for `others`."""
    return _between(others, samples, shares.reshape(-1, *(1,) * (samples.ndim - 1)))


NUMBERS_AT_ONCE = 2**18
"""Number of values per chunk, which fits into the cache of a core. All augmentations are applied to
a chunk before the next chunk is processed."""

Placed = tuple[int, Augmentation]


@dataclass(frozen=True)
class Augmented:
    """An augmented batch."""

    inputs: Batch
    """Augmented inputs, of the same shape and type as before."""
    other_rows: Rows | None
    """(n,) rows of the samples that each sample is mixed with; None without mixup."""
    shares: npt.NDArray[np.float32] | None
    """(n,) from 0 to 1: weight of the loss for a sample's own label. The loss for the label of the
    other sample has the remaining weight. None without mixup."""


class Augmenter:
    """Augments training samples, given only seed, round (number of earlier uses) and row.

    The result does not depend on the batch, the order, the worker or the framework. An augmenter
    has no state, so several threads may call it.
    """

    def __init__(
        self,
        augmentations: Sequence[Augmentation],
        split: Split,
        seed: int,
        read: Callable[[Rows], Batch] | None = None,
    ) -> None:
        """Create an augmenter; `read` is a thread-safe `split.read` for the other mixup samples."""
        self._read, self._seed, self._num_rows = read or split.read, seed, len(split)
        placed = list(enumerate(augmentations))
        mixups = [(place, settings) for place, settings in placed if isinstance(settings, Mixup)]
        self._mixup = mixups[0] if mixups else None
        at = mixups[0][0] if mixups else len(placed)
        self._before, self._after = placed[:at], placed[at + 1 :]

    def __call__(self, inputs: Batch, rows: Rows, rounds: Rows) -> Augmented:
        """Augment a batch of samples.

        Mixup mixes all inputs. Other augmentations change only images: inputs (n, height, width,
        channels) of type uint8 or float32. All images of a sample are changed in the same way.
        The other sample of a mixup is augmented first, as it would be by itself in this round.

        Args:
            inputs: Result of `Split.read(rows)`; not overwritten.
            rows: (n,) rows of the training split.
            rounds: (n,) number of earlier uses of each row in training.
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
        self, augmentations: list[Placed], inputs: Batch, rows: Rows, rounds: Rows
    ) -> Batch:
        if not augmentations:
            return inputs
        keys = sample_keys(self._seed, rounds, rows)
        return each(inputs, lambda one: _change(one, keys, augmentations) if is_image(one) else one)


def is_image(inputs: Any) -> bool:
    """Return whether inputs (an array or `OnDemand`) are images that can be augmented: of four
    dimensions and type uint8 or float32."""
    return len(inputs.shape) == 4 and np.dtype(inputs.dtype) in (np.uint8, np.float32)


def _change(images: Array, keys: Key, augmentations: list[Placed]) -> Array:
    """Return images after all augmentations, computed in chunks that fit into the CPU cache."""
    changed = images.copy()
    size = max(1, NUMBERS_AT_ONCE * len(images) // max(1, images.size))
    for start in range(0, len(images), size):
        chunk, chunk_keys = changed[start : start + size], keys[start : start + size]
        for place, settings in augmentations:
            chunk = CHANGES[settings.kind](chunk, Draws(chunk_keys, place), settings)
        changed[start : start + size] = chunk  # copies nothing if chunk was changed in place
    return changed


def check_augment(dataset: Dataset, augmentations: Sequence[Augmentation]) -> None:
    """Raise UserError if `augment` has an augmentation that the inputs do not allow."""
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
    kinds = each(dataset.train.inputs, lambda one: f"{np.dtype(one.dtype)} {tuple(one.shape)}")
    return kinds if isinstance(kinds, str) else ", ".join(map(" ".join, kinds.items()))
