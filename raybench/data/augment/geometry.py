"""Cuts and mirrors: what moves the pixels of images and keeps their values.

Of each kind, what is drawn for the samples of a batch, and what is done to some of them: images
(n, height, width, channels) of any type, which may be written to, become others of the same type
and shape.
"""

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from raybench.core.augmentation import Cutout, Flip, RandomCrop
from raybench.data.augment.keys import Draws, Whole, whole
from raybench.data.on_demand import Array

Place = tuple[Whole, Whole]
"""(n,) rows and (n,) columns."""


def draw_crop(draws: Draws, shape: tuple[int, ...], settings: RandomCrop) -> Place:
    """Return the top left corners in the padded images; each of (2 padding + 1)^2 alike."""
    del shape
    top, left = (whole(draws(one), 2 * settings.padding + 1) for one in (0, 1))
    return top, left


def random_crop(images: Array, place: Place, settings: RandomCrop) -> Array:
    """Pad with zeros, and cut the old size out."""
    number, height, width, channels = images.shape
    padding = settings.padding
    padded = np.zeros((number, height + 2 * padding, width + 2 * padding, channels), images.dtype)
    padded[:, padding : padding + height, padding : padding + width] = images
    # A row of pixels is one run of memory, so a copy of a window is a copy of `height` runs.
    lines = padded.reshape(number, height + 2 * padding, -1)
    windows = sliding_window_view(lines, (height, width * channels), axis=(1, 2))[:, :, ::channels]
    return windows[np.arange(number), *place].reshape(images.shape)


def draw_flip(draws: Draws, shape: tuple[int, ...], settings: Flip) -> tuple[npt.NDArray[np.bool_]]:
    """Return which samples are mirrored."""
    del shape
    return (draws(0) < settings.probability,)


def flip(images: Array, chosen: tuple[npt.NDArray[np.bool_]], settings: Flip) -> Array:
    """Mirror left to right."""
    del settings
    rows = np.flatnonzero(chosen[0])
    old = images[rows]
    mirrored = np.empty_like(old)
    for channel in range(images.shape[3]):  # four times as fast as all channels of a pixel
        mirrored[..., channel] = old[:, :, ::-1, channel]
    images[rows] = mirrored
    return images


def draw_cutout(draws: Draws, shape: tuple[int, ...], settings: Cutout) -> Place:
    """Return the pixels that the squares are around; each alike."""
    del settings
    height, width, _ = shape
    return whole(draws(0), height), whole(draws(1), width)


def cutout(images: Array, place: Place, settings: Cutout) -> Array:
    """Set a square to zero; beyond the edge there is none of it."""
    side = max(1, round(settings.size * min(images.shape[1:3])))
    tops, lefts = (one - side // 2 for one in place)
    for image, top, left in zip(images, tops.tolist(), lefts.tolist(), strict=True):
        image[max(0, top) : top + side, max(0, left) : left + side] = 0
    return images
