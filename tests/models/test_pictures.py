"""Pictures that are decoded when a batch asks for them."""

import numpy as np
import pytest

from raybench.data.digits import resize
from raybench.data.load import load_dataset
from raybench.models.find import find_workload, load_workload_dataset, require_framework
from raybench.models.layers import num_parameters
from raybench.models.pictures import STORED_PIXELS, Pictures
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


@pytest.mark.parametrize(
    ("name", "parameters"), [("DecodedDigits", 124_202), ("LargeDecodedDigits", 517_418)]
)
def test_both_frameworks_train_it(name: str, parameters: int) -> None:
    workload = find_workload(f"raybench.models.pictures:{name}")
    assert isinstance(workload, Pictures)
    assert num_parameters(workload.layers, workload.input_shape) == parameters
    for framework in ("torch", "tensorflow"):
        require_framework(workload, framework)
