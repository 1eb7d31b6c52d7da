"""Pictures that are decoded when a batch asks for them."""

import numpy as np

from raybench.data.digits import resize
from raybench.data.load import load_dataset
from raybench.models.find import load_workload_dataset
from raybench.models.pictures import STORED_PIXELS
from raybench.spec.run import DatasetSpec

OWN = DatasetSpec(name="workload")
NAME = "raybench.models.pictures:DecodedDigits"


def test_a_batch_is_what_was_stored_scaled() -> None:
    _, dataset = load_workload_dataset(NAME, OWN)
    digits = load_dataset(DatasetSpec(name="digits"))
    rows = np.array([5, 0, 5, 1256])
    found = dataset.train.read(rows)
    stored = resize(digits.train.array[rows, ..., 0], STORED_PIXELS)
    np.testing.assert_array_equal(found[..., 0], resize(stored, 32))
    np.testing.assert_array_equal(dataset.train.labels, digits.train.labels)
    np.testing.assert_array_equal(found[0], found[2])
