"""Both frameworks orthogonalise the same weights: what lies between inputs and head."""

import importlib

import pytest
from framework_models import backend
from local import FRAMEWORKS

from raybench.models.shipped import shipped_workload


def shapes_of(framework: str, model) -> list[tuple[int, int]]:
    """The matrices' shapes, small side first: one framework has them as the other's transposes."""
    module = importlib.import_module(f"raybench.training.{framework}.optim.methods")
    if framework == "torch":
        found = [(one.shape[0], one[0].numel()) for one in module.hidden_matrices(model)]
    else:
        found = list(module.hidden_matrices(model, model.trainable_variables).values())
    return sorted((min(shape), max(shape)) for shape in found)


SQUARE, FOURFOLD, JOINED = [(128, 128)] * 2, [(128, 512)] * 4, [(128, 384)] * 2
# Not the head; nor embeddings, positions and filters of one channel each.
EXPECTED = {
    "mnist_small": [(9, 32), (64, 6272)],
    "mnist_large": [(9, 128), (512, 512), (512, 4608)],
    "text_bag": [(64, 128)],
    "char_lm": SQUARE + JOINED + FOURFOLD,
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", EXPECTED)
def test_shipped_workloads(framework, name):
    module = backend(framework)
    assert shapes_of(framework, module.build_model(shipped_workload(name), 0)) == EXPECTED[name]


def test_a_torch_model_of_ones_own():
    nn = pytest.importorskip("torch").nn
    tied = nn.Embedding(9, 6)
    head = nn.Linear(6, 9, bias=False)
    head.weight = tied.weight
    attention = nn.MultiheadAttention(6, 3)
    convolutions = nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 6, 3, groups=2), nn.Conv1d(6, 1, 3)
    model = nn.Sequential(tied, *convolutions, attention, head)
    model.pos_embed = nn.Parameter(head.weight.new_zeros(5, 6))
    model.extra = nn.Linear(6, 2)
    # Of the attention what joins queries, keys and values, and what comes after it.
    assert shapes_of("torch", model) == [(6, 6), (6, 18), (6, 27)]


def test_a_keras_model_of_ones_own():
    backend("tensorflow")
    layers = pytest.importorskip("keras").layers
    keras = pytest.importorskip("keras")
    inputs = keras.Input((5,))
    tokens = layers.Embedding(9, 6)(inputs)
    tokens = layers.MultiHeadAttention(3, 4)(tokens, tokens)
    image = layers.Reshape((5, 6, 1))(tokens)
    image = layers.DepthwiseConv2D(3, depth_multiplier=2)(
        layers.Conv2D(4, 3, padding="same")(image)
    )
    image = layers.SeparableConv2D(2, 3)(image)
    outputs = layers.Dense(3)(layers.Flatten()(image))
    # Queries, keys, values and outputs of the attention; two convolutions.
    expected = [*[(6, 12)] * 4, (4, 9), (2, 8)]
    assert shapes_of("tensorflow", keras.Model(inputs, outputs)) == sorted(expected)
