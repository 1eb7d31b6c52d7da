"""Bilinear scaling of square-pixel images, in numpy."""

import numpy as np
import numpy.typing as npt

from raybench.data.memory import require_memory

_CHUNK = 2**22  # pixels scaled at a time: bounds the float32 copies to some 16 MB


def resize(images: npt.NDArray[np.uint8], size: int | None) -> npt.NDArray[np.uint8]:
    """Scale (N, H, W) images to (N, size, size); None keeps them as they are.

    Bilinear with pixel centres aligned; shrinking averages over the pixels it drops.
    """
    num_images, height, width = images.shape
    if size is None or (height, width) == (size, size):
        return images
    rows, columns = _weights(height, size), _weights(width, size)
    scaled = np.empty((num_images, size, size), np.uint8)
    count = max(1, _CHUNK // (max(size, height) * max(size, width)))
    for start in range(0, num_images, count):
        chunk = images[start : start + count].astype(np.float32)
        scaled[start : start + count] = np.rint(rows @ chunk @ columns.T)
    return scaled


def require_room(num_images: int, size: int | None) -> None:
    """Raise UserError if so many images of `size` pixels squared do not fit into memory."""
    if size is not None:
        require_memory(num_images * size * size, f"dataset.image_size {size}")


def _weights(size_in: int, size_out: int) -> npt.NDArray[np.float32]:
    """Weights (size_out, size_in) of each input pixel in each output pixel; rows sum to 1."""
    scale = size_in / size_out
    centers = (np.arange(size_out) + 0.5) * scale - 0.5
    # The border pixel goes on outside the image, so a centre there is moved to the border.
    centers = np.clip(centers, 0, size_in - 1)
    distances = np.abs(centers[:, None] - np.arange(size_in)[None, :])
    weights = np.maximum(0, 1 - distances / max(1.0, scale))
    weights /= weights.sum(axis=1, keepdims=True)
    # In whole 1/256 every product and sum fits float32's 24 bits exactly, so the pixels are
    # the same whatever order a platform's matrix product adds them in.
    weights = np.rint(weights * 256) / 256
    weights[np.arange(size_out), weights.argmax(axis=1)] += 1 - weights.sum(axis=1)
    return np.asarray(weights, np.float32)
