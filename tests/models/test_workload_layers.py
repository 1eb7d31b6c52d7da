import numpy as np
import pytest

from raybench.models.layers import (
    GELU,
    CausalAttention,
    Conv,
    Dense,
    DepthwiseConv,
    Dropout,
    Embedding,
    Flatten,
    GlobalAveragePool,
    GroupNorm,
    LayerNorm,
    MaxPool,
    MeanEmbedding,
    Positions,
    ReLU,
    Residual,
    initial_weights,
    num_parameters,
    output_shapes,
    parameter_shapes,
    to_keras_layout,
)
from raybench.spec.errors import UserError

EVERY_LAYER = (
    Conv(4, kernel=5, padding="valid"),
    ReLU(),
    MaxPool(),
    DepthwiseConv(multiplier=2),
    Flatten(),
    Dropout(0.5),
    Dense(6),
    ReLU(),
    Dense(3),
)
SHAPE = (13, 11, 2)


def test_shapes():
    shapes = output_shapes(EVERY_LAYER, SHAPE)
    assert shapes == [
        *((9, 7, 4), (9, 7, 4), (4, 3, 4), (4, 3, 8)),
        *((96,), (96,), (6,), (6,), (3,)),
    ]
    parameters = [(4, 2, 5, 5), (4,), (8, 1, 3, 3), (8,), (6, 96), (6,), (3, 6), (3,)]
    assert parameter_shapes(EVERY_LAYER, SHAPE) == parameters
    assert num_parameters(EVERY_LAYER, SHAPE) == 204 + 80 + 582 + 21


def test_shapes_of_tokens():
    layers = (
        *(Embedding(50, 6), Positions(), Residual((LayerNorm(), CausalAttention(3), GELU()))),
        *(Dense(4), GlobalAveragePool()),
    )
    shapes = output_shapes(layers, (9,))
    assert shapes == [(9, 6), (9, 6), (9, 6), (9, 4), (4,)]
    attention = [(18, 6), (18,), (6, 6), (6,)]
    expected = [(50, 6), (9, 6), (6,), (6,), *attention, (4, 6), (4,)]
    assert parameter_shapes(layers, (9,)) == expected
    assert num_parameters(layers, (9,)) == 300 + 54 + 12 + 126 + 42 + 28
    assert output_shapes((MeanEmbedding(50, 6), Dense(2)), (9,)) == [(6,), (2,)]


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


@pytest.mark.parametrize("layers", [(Dense(4), ReLU(), Dense(2)), (Flatten(), Dense(4))])
def test_weights_over_a_vector_are_turned_and_no_more(layers):
    """Those over images are held to torch's by tests/training/test_layers_agree.py."""
    weights = initial_weights(layers, (7,), seed=0)
    for before, after in zip(weights, to_keras_layout(layers, (7,), weights), strict=True):
        np.testing.assert_array_equal(before.T, after)


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
