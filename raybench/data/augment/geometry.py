"""Cuts and mirrors: what moves the pixels of images and keeps their values.

All take images (n, height, width, channels) of any type and the draws of n samples, and return
images of the same type and shape.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from raybench.core.augmentation import Cutout, Flip, RandomCrop
from raybench.data.augment.keys import Draws, whole
from raybench.data.on_demand import Array


def random_crop(images: Array, draws: Draws, settings: RandomCrop) -> Array:
    """Pad with zeros, and cut the old size out; each of (2 padding + 1)^2 places alike."""
    number, height, width, channels = images.shape
    padding = settings.padding
    padded = np.zeros((number, height + 2 * padding, width + 2 * padding, channels), images.dtype)
    padded[:, padding : padding + height, padding : padding + width] = images
    # A row of pixels is one run of memory, so a copy of a window is a copy of `height` runs.
    lines = padded.reshape(number, height + 2 * padding, -1)
    windows = sliding_window_view(lines, (height, width * channels), axis=(1, 2))[:, :, ::channels]
    top, left = (whole(draws(one), 2 * padding + 1) for one in (0, 1))
    return windows[np.arange(number), top, left].reshape(images.shape)


def flip(images: Array, draws: Draws, settings: Flip) -> Array:
    """Mirror left to right, in place; the samples whose draw is below the probability."""
    chosen = np.flatnonzero(draws(0) < settings.probability)
    mirrored = images[chosen]
    for channel in range(images.shape[3]):  # four times as fast as all channels of a pixel
        images[chosen, :, :, channel] = mirrored[:, :, ::-1, channel]
    return images


def cutout(images: Array, draws: Draws, settings: Cutout) -> Array:
    """Set a square around a random pixel to zero, in place; beyond the edge there is none."""
    height, width = images.shape[1:3]
    side = max(1, round(settings.size * min(height, width)))
    tops = whole(draws(0), height) - side // 2
    lefts = whole(draws(1), width) - side // 2
    places = zip(images, tops.tolist(), lefts.tolist(), strict=True)
    for image, top, left in places:
        image[max(0, top) : top + side, max(0, left) : left + side] = 0
    return images
