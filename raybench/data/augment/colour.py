"""Brightness, contrast and saturation of images, changed at once."""

import numpy as np

from raybench.core.augmentation import ColorJitter
from raybench.data.augment.keys import Draws, Uniform
from raybench.data.on_demand import Array

GREY = (0.299, 0.587, 0.114)
"""Parts of red, green and blue in a grey as bright (ITU-R BT.601, as PIL and torchvision)."""
Factors = tuple[Uniform, Uniform, Uniform]
"""(n,) each: of brightness, contrast and saturation."""


def draw_colours(draws: Draws, shape: tuple[int, ...], settings: ColorJitter) -> Factors:
    """Return the factors; of other than three channels saturation stays."""
    most = [settings.brightness, settings.contrast, settings.saturation]
    if shape[2] != len(GREY):
        most[2] = 0.0
    brightness, contrast, saturation = (
        1 + (2 * draws(number) - 1) * one for number, one in enumerate(most)
    )
    return brightness, contrast, saturation


def color_jitter(images: Array, factors: Factors, settings: ColorJitter) -> Array:
    """Change colours; (n, height, width, channels), bytes or float32, which are written to.

    Brightness multiplies a pixel, contrast its distance from the image's mean grey, saturation
    from its own grey, one after the other. Together that is `own` x pixel + `greys`, a multiple of
    its grey and a number of the image, so values are cut to 0..255 once, at the end, and those of
    float32, whose range nobody knows, are not cut. Grey of other than three channels is their mean.
    """
    del settings
    brightness, contrast, saturation = factors
    number, height, width, channels = images.shape
    planes = np.empty((channels, number, height * width), np.float32)
    for channel in range(channels):
        planes[channel] = images[..., channel].reshape(number, -1)
    greys = _greys(planes)
    offset = brightness * (1 - contrast) * greys.mean(axis=1)
    if images.dtype == np.uint8:
        offset += 0.5  # rounds, where the fraction is cut off
    greys *= _column(brightness * contrast * (1 - saturation))
    greys += _column(offset)
    own = _column(brightness * contrast * saturation)
    for channel, plane in enumerate(planes):
        plane *= own
        plane += greys
        if images.dtype == np.uint8:
            np.clip(plane, 0, 255, out=plane)
        images[..., channel] = plane.reshape(number, height, width)
    return images


def _column(numbers: Uniform) -> Array:
    """Return a number of each image so that it multiplies the image's pixels."""
    return numbers.astype(np.float32)[:, None]


def _greys(planes: Array) -> Array:
    """Return the grey of each pixel, (n, pixels), of (channels, n, pixels)."""
    channels = len(planes)
    parts = GREY if channels == len(GREY) else (1 / channels,) * channels
    greys: Array = planes[0] * np.float32(parts[0])
    for plane, part in zip(planes[1:], parts[1:], strict=True):
        greys += plane * np.float32(part)
    return greys
