import numpy as np
import pytest

from raybench.data.digits import resize


def test_none_and_own_size_keep_the_images():
    images = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4)
    assert resize(images, None) is images
    assert resize(images, 4) is images


@pytest.mark.parametrize("size", [1, 3, 5, 8, 28, 31])
def test_a_flat_image_stays_flat(size):
    images = np.full((2, 8, 8), 255, np.uint8)
    np.testing.assert_array_equal(resize(images, size), np.full((2, size, size), 255))


def test_doubling_interpolates_between_pixel_centres():
    row = np.array([[[0, 200], [0, 200]]], np.uint8)
    np.testing.assert_array_equal(resize(row, 4)[0, 0], [0, 50, 150, 200])


def test_halving_averages():
    columns = np.tile(np.array([0, 0, 200, 200], np.uint8), (1, 4, 1))
    halved = resize(columns, 2)[0]
    assert (halved[:, 0] < 50).all()
    assert (halved[:, 1] > 150).all()


def test_more_images_than_a_chunk_and_other_shapes():
    images = np.random.default_rng(0).integers(0, 256, (5000, 4, 6), dtype=np.uint8)
    scaled = resize(images, 3)
    assert scaled.shape == (5000, 3, 3)
    np.testing.assert_array_equal(scaled[4990:], resize(images[4990:], 3))
