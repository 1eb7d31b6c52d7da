"""A random part of each image, scaled to the whole: bilinear, as torchvision and PIL do it."""

import math

import numpy as np
import numpy.typing as npt

from raybench.core.augmentation import RandomResizedCrop
from raybench.data.augment.keys import Draws, Whole, whole
from raybench.data.on_demand import Array

TRIES = 10
"""How often a part is drawn that reaches over the edge, before the largest one is taken."""
ONE = 256
"""Weights of pixels are in whole 1/256, so that of bytes every sum is a whole number of 16 bits,
and the pixels are the same on any machine."""

Taps = tuple[Whole, Whole, npt.NDArray[np.uint16]]
"""(n, wanted) each: the two lines of the image that a line lies between, and the second's weight,
from 0 to 256."""


def draw_resized_crop(
    draws: Draws, shape: tuple[int, ...], settings: RandomResizedCrop
) -> tuple[*Taps, *Taps]:
    """Return between which rows the rows of the new images lie, and the same of columns."""
    height, width, _ = shape
    top, left, rows, columns = parts(draws, height, width, settings)
    return *_taps(top, rows, height), *_taps(left, columns, width)


def random_resized_crop(
    images: Array, taps: tuple[*Taps, *Taps], settings: RandomResizedCrop
) -> Array:
    """Cut a part out and scale it to the old size; (n, height, width, channels), any type.

    Centres of pixels are at halves; beyond the part, its border pixels go on. A part is never
    larger than the image, so pixels are never averaged.
    """
    del settings
    first, second, weights = taps[3:]
    left, right = int(first.min()), int(second.max()) + 1  # no part has other columns
    tall = _between_rows(images[:, :, left:right], *taps[:3])
    # Columns as rows: a row is one run of memory, pixels of one column are not.
    return _turned(_between_rows(_turned(tall), first - left, second - left, weights))


def parts(
    draws: Draws, height: int, width: int, settings: RandomResizedCrop
) -> tuple[Whole, Whole, Whole, Whole]:
    """Return the parts' top, left, height and width, (n,) each.

    A share of the area is drawn, and a ratio of the sides by its logarithm, until the part fits;
    after `TRIES` it is the largest of an allowed ratio, in the middle (as in torchvision).
    """
    number = len(draws.keys)
    rows, columns = _largest(height, width, settings.max_ratio)
    found_rows, found_columns = np.full(number, rows), np.full(number, columns)
    top, left = (height - found_rows) // 2, (width - found_columns) // 2
    missing = np.arange(number)
    for one in range(TRIES):
        of = draws.of(missing)
        area = (settings.min_area + (1 - settings.min_area) * of(2 * one)) * height * width
        side = np.exp((of(2 * one + 1) - 0.5) * math.log(settings.max_ratio))  # root of the ratio
        across = np.maximum(1, np.rint(np.sqrt(area) * side)).astype(np.int64)
        down = np.maximum(1, np.rint(np.sqrt(area) / side)).astype(np.int64)
        fits = (across <= width) & (down <= height)
        fitting = missing[fits]
        found_rows[fitting], found_columns[fitting] = down[fits], across[fits]
        where = draws.of(fitting)
        top[fitting] = whole(where(2 * TRIES), height - down[fits] + 1)
        left[fitting] = whole(where(2 * TRIES + 1), width - across[fits] + 1)
        missing = missing[~fits]
        if not len(missing):
            break
    return top, left, found_rows, found_columns


def _largest(height: int, width: int, max_ratio: float) -> tuple[int, int]:
    """Return height and width of the largest part whose sides have an allowed ratio."""
    return (
        min(height, max(1, round(width * max_ratio))),
        min(width, max(1, round(height * max_ratio))),
    )


def _taps(first: Whole, number: Whole, wanted: int) -> Taps:
    """Return the taps of `number` (n,) lines of each image from its `first` (n,) on."""
    last = (number - 1)[:, None]
    centres = (np.arange(wanted) + 0.5) * (number / wanted)[:, None] - 0.5
    centres = np.clip(centres, 0, last)
    before = centres.astype(np.int64)
    after = np.minimum(before + 1, last)
    weights = np.rint((centres - before) * ONE).astype(np.uint16)
    return first[:, None] + before, first[:, None] + after, weights


def _between_rows(
    images: Array, first: Whole, second: Whole, weights: npt.NDArray[np.uint16]
) -> Array:
    """Return images (n, wanted, width, channels) of rows that lie between rows of `images`."""
    number, height, width, channels = images.shape
    lines = images.reshape(number * height, width * channels)
    start = np.arange(0, number * height, height)[:, None]
    one, other = (lines.take((start + at).ravel(), axis=0) for at in (first, second))
    return _between(one, other, weights.reshape(-1, 1)).reshape(number, -1, width, channels)


def _between(one: Array, other: Array, weights: npt.NDArray[np.uint16]) -> Array:
    """Return numbers between two arrays (lines, numbers); `weights` (lines, 1) are the other's."""
    if one.dtype == np.uint8:
        total = one.astype(np.uint16)
        total *= ONE - weights
        added = other.astype(np.uint16)
        added *= weights
        total += added
        total += ONE // 2
        total >>= 8
        return total.astype(np.uint8)
    other -= one
    other *= weights / np.float32(ONE)
    other += one
    return other


def _turned(images: Array) -> Array:
    """Return (n, height, width, channels) as (n, width, height, channels)."""
    number, height, width, channels = images.shape
    turned = np.empty((number, width, height, channels), images.dtype)
    for channel in range(channels):  # four times as fast as all channels of a pixel
        turned[..., channel] = images[..., channel].transpose(0, 2, 1)
    return turned
