"""Bytes that workers exchange."""

import pytest

from raybench.spec.run import RunSpec
from raybench.stats.step_times import bytes_exchanged


@pytest.mark.parametrize(
    ("changes", "num_bytes"),
    [
        ({"num_workers": 2}, 4000),
        ({"num_workers": 2, "gradient_compression": "bf16"}, 2000),
        ({"num_workers": 2, "gradient_compression": "fp16"}, 2000),
        ({"num_workers": 2, "exchange_gradients": False}, 0),
        ({"num_workers": 1}, 0),
    ],
)
def test_bytes_of_a_step(changes: dict[str, object], num_bytes: int) -> None:
    assert bytes_exchanged(RunSpec(**changes), 1000) == num_bytes  # type: ignore[arg-type]
