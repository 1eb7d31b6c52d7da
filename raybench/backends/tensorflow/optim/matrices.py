"""Which weights of a Keras model are hidden matrices. Mirrors torch's."""

from __future__ import annotations

import math

import keras

from raybench.backends.tensorflow.internals import all_layers

Shape = tuple[int, int]
"""Rows and columns: of inputs and of outputs."""


def hidden_matrices(
    model: keras.Model | None, variables: list[keras.Variable]
) -> dict[int, Shape]:
    """Return the shapes as matrices of the weights between a model's inputs and its head, by the
    `id` of the variable: dense, attention, convolutions.

    Not the head, which is the last weight of two dimensions or more; nor embeddings, filters of one
    channel each, and what has one row or column once it is flattened to (others, outputs). Without
    a model, all `variables` are taken for those of dense layers and convolutions.
    """
    weights = [one for one in (model.weights if model else variables) if len(one.shape) > 1]
    left_out = {id(one) for one in weights[-1:]}
    shapes = {id(one): (math.prod(one.shape[:-1]), one.shape[-1]) for one in weights}
    for layer in all_layers(model) if model else []:
        left_out.update(id(one) for one in _not_matrices(layer))
        if isinstance(layer, keras.layers.EinsumDense):
            shapes[id(layer.kernel)] = _einsum_shape(layer)
    return {one: shape for one, shape in shapes.items() if one not in left_out and min(shape) > 1}


def _not_matrices(layer: keras.layers.Layer) -> list[keras.Variable]:
    if isinstance(layer, keras.layers.Embedding):
        return list(layer.weights)
    if isinstance(layer, (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)):
        return [layer.kernel]
    if isinstance(layer, (keras.layers.SeparableConv1D, keras.layers.SeparableConv2D)):
        return [layer.depthwise_kernel]
    return []


def _einsum_shape(layer: keras.layers.EinsumDense) -> Shape:
    """Return that of a kernel such as (inputs, heads, width), whose outputs are its last two."""
    kernel, outputs = layer.equation.partition(",")[2].split("->")
    sizes = dict(zip(kernel, layer.kernel.shape, strict=True))
    columns = math.prod(size for axis, size in sizes.items() if axis in outputs)
    return math.prod(sizes.values()) // columns, columns
