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
from raybench.spec.errors import UserError


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
    ("layers", "shape", "message"),
    [
        ((MaxPool(), MaxPool()), (2, 2, 1), r"\(2, 2, 1\) are too small.*layer 2 .*image_size"),
        ((Conv(3), Dense(2)), (4, 4, 1), r"layer 2 .* needs a vector.*Flatten\(\)"),
        ((Flatten(), MaxPool()), (4, 4, 1), r"layer 2 .* needs an image"),
        ((Embedding(9, 4),), (4, 4, 1), r"layer 1 .* needs token ids"),
        ((Positions(),), (4,), r"layer 1 .* needs \(tokens, features\).*begin with Embedding"),
        ((Embedding(9, 4), CausalAttention(3)), (4,), r"cannot divide 4 features.*other heads"),
        ((Conv(4), GroupNorm(3)), (4, 4, 1), r"cannot divide 4 channels.*other groups"),
        ((Residual((Dense(3),)),), (4,), r"makes \(3,\) of \(4,\).*keep the shape"),
        ((Flatten(), ReLU(), LayerNorm()), (4, 4, 2), r"layer 3 .*different orders; put Dense"),
    ],
)
def test_layers_that_do_not_fit_are_refused(layers, shape, message):
    with pytest.raises(UserError, match=message):
        output_shapes(layers, shape)
