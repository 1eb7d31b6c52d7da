"""Layers for tables, text and images: equal outputs and gradients in both frameworks."""

import numpy as np
import pytest
from framework_models import logits, model_module, to_framework, to_numpy

from raybench.models import shipped
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
    Weights,
    num_parameters,
    to_keras_layout,
)
from raybench.models.shipped import ShippedWorkload

VOCABULARY, TOKENS = 11, 7
ATTENTION = Residual((LayerNorm(), CausalAttention(2)))
DEEPER = (LayerNorm(), Dense(16), GELU(), Residual((Dense(16), ReLU())), Dropout(0.1), Dense(8))
SEPARABLE = (Conv(8), GroupNorm(4), ReLU(), DepthwiseConv(1), GroupNorm(2), ReLU())
MODELS = {
    "language model": (
        (TOKENS,),
        (
            *(Embedding(VOCABULARY, 8), Positions(), ATTENTION, Residual(DEEPER)),
            *(LayerNorm(), Dense(VOCABULARY)),
        ),
    ),
    "text": (
        (TOKENS,),
        (MeanEmbedding(VOCABULARY, 8), Residual((LayerNorm(), Dense(8), ReLU())), Dense(3)),
    ),
    "flattened tokens": ((TOKENS,), (Embedding(VOCABULARY, 4), Flatten(), LayerNorm(), Dense(3))),
    "averaged tokens": ((TOKENS,), (Embedding(VOCABULARY, 4), GlobalAveragePool(), Dense(3))),
    "pictures": (
        (8, 8, 3),
        (
            *(Conv(8), GroupNorm(2), ReLU(), MaxPool(), Residual(SEPARABLE), ReLU()),
            *(GlobalAveragePool(), Dense(3)),
        ),
    ),
    "flattened pictures": (
        (13, 11, 3),  # odd sizes, of which pooling drops the last row and column
        (
            *(Conv(2, kernel=5, padding="valid"), MaxPool(), DepthwiseConv(2, padding="valid")),
            *(GroupNorm(2), Flatten(), ReLU(), Dense(3)),
        ),
    ),
}
SHIPPED = {"mnist_large": (14, 14, 1), "cnn7": (32, 32, 3), "small_resnet": (16, 16, 3)}
WORKLOADS = [ShippedWorkload(name, shape, 3, layers) for name, (shape, layers) in MODELS.items()]
WORKLOADS += [shipped.WORKLOADS[name](shape, 10) for name, shape in SHIPPED.items()]


def samples(input_shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(4)
    if len(input_shape) > 1:
        return rng.normal(size=(5, *input_shape)).astype(np.float32)
    ids = rng.integers(0, VOCABULARY, (5, *input_shape))
    ids[0, 3:] = 0
    ids[1] = 0  # padding alone
    return ids


def in_torch(workload: ShippedWorkload, inputs: np.ndarray) -> tuple[np.ndarray, Weights]:
    """Return outputs, and the gradients of the sum of their squares in the layout of Keras."""
    module = model_module("torch")
    model = module.build_model(workload, seed=3).eval()
    outputs = model(module.prepare_inputs(to_framework(inputs, "torch")))
    outputs.square().sum().backward()
    gradients = [to_numpy(parameter.grad) for parameter in model.parameters()]
    assert module.num_parameters(model) == num_parameters(workload.layers, workload.input_shape)
    return to_numpy(outputs), to_keras_layout(workload.layers, workload.input_shape, gradients)


def in_keras(workload: ShippedWorkload, inputs: np.ndarray) -> tuple[np.ndarray, Weights]:
    """Return outputs, and the gradients of the sum of their squares."""
    module = model_module("tensorflow")
    import tensorflow as tf

    model = module.build_model(workload, seed=3)
    assert module.num_parameters(model) == num_parameters(workload.layers, workload.input_shape)
    variables = [variable.value for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        outputs = model(module.prepare_inputs(to_framework(inputs, "tensorflow")), training=False)
        total = tf.reduce_sum(tf.square(outputs))
    gradients = tape.gradient(total, variables)
    return to_numpy(outputs), [to_numpy(tf.convert_to_tensor(each)) for each in gradients]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_outputs_and_gradients_agree(workload):
    inputs = samples(workload.input_shape)
    torch_outputs, torch_gradients = in_torch(workload, inputs)
    keras_outputs, keras_gradients = in_keras(workload, inputs)
    assert np.abs(torch_outputs).max() > 1e-2
    np.testing.assert_allclose(torch_outputs, keras_outputs, rtol=0, atol=1e-5)
    assert len(torch_gradients) == len(keras_gradients)
    for expected, gradient in zip(torch_gradients, keras_gradients, strict=True):
        np.testing.assert_allclose(
            expected, gradient, rtol=0, atol=3e-5 * max(1, np.abs(expected).max())
        )
    num_nonzero = sum(np.abs(gradient).max() > 1e-4 for gradient in torch_gradients)
    assert num_nonzero >= len(torch_gradients) - 1


def test_layers_in_bf16_return_float32(framework):
    shape, layers = MODELS["language model"]
    workload, inputs = ShippedWorkload("lm", shape, 3, layers), samples(shape)
    module = model_module(framework)
    exact = logits(framework, module.build_model(workload, 3), inputs)
    if framework == "torch":
        import torch

        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = logits(framework, module.build_model(workload, 3), inputs)
    else:
        import keras

        keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
        try:
            outputs = logits(framework, module.build_model(workload, 3), inputs)
        finally:
            keras.mixed_precision.set_dtype_policy("float32")
    assert outputs.dtype == np.float32
    assert 0 < np.abs(outputs - exact).max() < 0.1
