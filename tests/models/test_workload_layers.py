import numpy as np
import pytest

from raybench.models.layers import (
    CausalAttention,
    Conv,
    Dense,
    Embedding,
    Flatten,
    GroupNorm,
    LayerNorm,
    MaxPool,
    Positions,
    ReLU,
    Residual,
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


@pytest.mark.parametrize(
    ("layers", "shape", "names"),
    [
        ((MaxPool(), MaxPool()), (2, 2, 1), ["(2, 2, 1)", "layer 2", "image_size"]),
        ((Conv(3), Dense(2)), (4, 4, 1), ["layer 2", "Flatten()"]),
        ((Flatten(), MaxPool()), (4, 4, 1), ["layer 2", "(16,)"]),
        ((Embedding(9, 4),), (4, 4, 1), ["layer 1", "(4, 4, 1)"]),
        ((Positions(),), (4,), ["layer 1", "Embedding"]),
        ((Embedding(9, 4), CausalAttention(3)), (4,), ["layer 2", "4 features"]),
        ((Conv(4), GroupNorm(3)), (4, 4, 1), ["layer 2", "4 channels"]),
        ((Residual((Dense(3),)),), (4,), ["(3,)", "(4,)"]),
        ((Flatten(), ReLU(), LayerNorm()), (4, 4, 2), ["layer 3", "Dense"]),
    ],
)
def test_layers_that_do_not_fit_are_refused(layers, shape, names):
    with refused(ErrorCode.INVALID_MODEL, *names):
        output_shapes(layers, shape)
