"""scikit-learn's 1,797 real handwritten digits, 8x8: needs no download."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from raybench.core.spec import DatasetSpec
from raybench.data.dataset import Dataset, Split, hold_out, num_of
from raybench.data.resize import require_room, resize

TEST_SIZE = 180
VALIDATION_SIZE = 360


def load_digits(spec: DatasetSpec) -> Dataset:
    """Return 1,257 training, 360 validation and 180 test images of (size, size, 1), uint8."""
    pixels, digits = _read()
    require_room(len(pixels), spec.image_size)
    # Grey levels are whole numbers from 0 to 16; 8 is half of 16, for rounding.
    images = ((pixels.astype(np.int64) * 255 + 8) // 16).astype(np.uint8).reshape(-1, 8, 8)
    samples = Split(images, digits.astype(np.int64))
    # The test split is cut first, so it is the same whatever the validation size.
    test, rest = hold_out(samples, TEST_SIZE, seed=spec.split_seed, source="digits")
    size = num_of(spec.validation_size, len(rest), usual=VALIDATION_SIZE)
    validation, train = hold_out(rest, size, seed=spec.split_seed, source="digits")
    # Scaled last, so that no two copies of the large images are held.
    train, validation, test = (
        Split(resize(split.array, spec.image_size)[..., None], split.labels)
        for split in (train, validation, test)
    )
    return Dataset("digits", 10, train=train, validation=validation, test=test)


def _read() -> tuple[np.ndarray, np.ndarray]:
    """Return pixels (1797, 64) and labels (1797,).

    Read from scikit-learn's file: importing scikit-learn takes a second in every worker.
    """
    package = importlib.util.find_spec("sklearn")
    for folder in (package.submodule_search_locations or []) if package else []:
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            with gzip.open(file, "rt") as lines:
                table = np.loadtxt(lines, delimiter=",")
            return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits as load_sklearn_digits

    pixels, digits = load_sklearn_digits(return_X_y=True)
    return pixels, digits
