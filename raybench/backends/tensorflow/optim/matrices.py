"""Which weights of a Keras model are hidden matrices. Mirrors torch's."""

from __future__ import annotations

import math

import keras

from raybench.backends.tensorflow.internals import all_layers

Shape = tuple[int, int]
"""Rows and columns: of inputs and of outputs."""
NO_MATRICES = ("embed", "position", "depthwise")
"""What the names of layers and weights say that are tables, or filters of one channel each."""


def hidden_matrices(model: keras.Model | None, variables: list[keras.Variable]) -> dict[int, Shape]:
    """Return the shapes as matrices of the weights between a model's inputs and its head, by the
    `id` of the variable: dense, attention, convolutions.

    Not the head, which is the last weight of two dimensions or more; nor embeddings, filters of one
    channel each, and what has one row or column once it is flattened to (others, outputs). Without
    a model, all `variables` are taken for those of dense layers and convolutions.
    """
    weights = [one for one in (model.weights if model else variables) if len(one.shape) > 1]
    left_out = {id(one) for one in weights[-1:]}
    shapes = {id(one): (math.prod(one.shape[:-1]), one.shape[-1]) for one in weights}
    for variable, layer in _owners(model) if model else []:
        named = f"{type(layer).__name__} {variable.name}".lower()
        # Attention has a bias for each head, which makes two dimensions.
        if "bias" in variable.name or any(word in named for word in NO_MATRICES):
            left_out.add(id(variable))
        elif isinstance(layer, keras.layers.EinsumDense) and variable is layer.kernel:
            shapes[id(variable)] = _einsum_shape(layer)
    return {one: shape for one, shape in shapes.items() if one not in left_out and min(shape) > 1}


def _owners(model: keras.Model) -> list[tuple[keras.Variable, keras.layers.Layer]]:
    """Return each variable with the innermost layer that has it."""
    found = {id(one): (one, layer) for layer in all_layers(model) for one in layer.weights}
    return list(found.values())


def _einsum_shape(layer: keras.layers.EinsumDense) -> Shape:
    """Return that of a kernel such as (inputs, heads, width), whose outputs are its last two."""
    kernel, outputs = layer.equation.partition(",")[2].split("->")
    sizes = dict(zip(kernel, layer.kernel.shape, strict=True))
    columns = math.prod(size for axis, size in sizes.items() if axis in outputs)
    return math.prod(sizes.values()) // columns, columns
