import numpy as np
import pytest

from raybench.models.layers import (
    Conv,
    Dense,
    Flatten,
    MaxPool,
    initial_weights,
    output_shapes,
    parameter_shapes,
)
from raybench.spec.errors import ErrorCode
from tests.refusals import refused


def test_initial_weights_are_torchs_default_distribution():
    layers = (Conv(64, kernel=3), Flatten(), Dense(50))
    weights = initial_weights(layers, (4, 4, 5), seed=0)
    assert [w.shape for w in weights] == parameter_shapes(layers, (4, 4, 5))
    assert all(w.dtype == np.float32 for w in weights)
    for weight, fan_in in zip(weights, (45, 45, 1024, 1024), strict=True):
        bound = fan_in**-0.5
        assert 0.9 * bound < np.abs(weight).max() <= bound
    # Uniform, so the deviation is the bound over the square root of 3.
    assert weights[2].std() == pytest.approx(1024**-0.5 / 3**0.5, rel=0.01)


def test_an_image_that_is_too_small_is_refused():
    with refused(ErrorCode.INVALID_MODEL, "(2, 2, 1)", "layer 2", "image_size"):
        output_shapes((MaxPool(), MaxPool()), (2, 2, 1))
