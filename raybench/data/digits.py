"""scikit-learn's 1,797 real handwritten digits, 8x8: needs no download."""

import numpy as np

from raybench.core.spec import DatasetSpec
from raybench.data.dataset import Dataset, Split, hold_out
from raybench.data.resize import resize

TEST_SIZE = 180
VALIDATION_SIZE = 360


def load_digits(spec: DatasetSpec) -> Dataset:
    """Return 1,257 training, 360 validation and 180 test images of (size, size, 1), uint8."""
    # Imported here because it takes a second, which the other datasets need not wait for.
    from sklearn.datasets import load_digits as load_sklearn_digits

    pixels, digits = load_sklearn_digits(return_X_y=True)
    # Grey levels are whole numbers from 0 to 16; 8 is half of 16, for rounding.
    images = ((pixels.astype(np.int64) * 255 + 8) // 16).astype(np.uint8).reshape(-1, 8, 8)
    images = resize(images, spec.image_size)[..., None]
    samples = Split(images, digits.astype(np.int64))
    # The test split is cut first, so it is the same whatever the validation size.
    test, rest = hold_out(samples, TEST_SIZE, seed=spec.split_seed, source="digits")
    size = spec.validation_size or VALIDATION_SIZE
    validation, train = hold_out(rest, size, seed=spec.split_seed, source="digits")
    return Dataset("digits", 10, train=train, validation=validation, test=test)
