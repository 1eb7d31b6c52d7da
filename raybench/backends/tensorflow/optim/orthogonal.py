"""The nearest orthogonal matrix, by the steps that Muon takes. Mirrors torch's."""

from __future__ import annotations

import tensorflow as tf

NUM_STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of Jordan et al. 2024: they raise small singular values fastest, and leave all between 0.7 and
1.2, which serves as well as 1."""
SMALLEST_NORM = 1e-7


def orthogonalised(matrix: tf.Tensor) -> tf.Tensor:
    """Return U S V^T with S near 1 in place of the matrix's own singular values; 0 of 0.

    Newton and Schulz's iteration with a polynomial of degree 5, in float32 or the matrix's wider
    type: the authors' bfloat16 would not be the same in two frameworks, nor fast on a CPU.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    found = tf.transpose(matrix) if is_tall else matrix
    if found.dtype != tf.float64:
        found = tf.cast(found, tf.float32)
    found = found / (tf.norm(found) + SMALLEST_NORM)
    first, third, fifth = COEFFICIENTS
    for _ in range(NUM_STEPS):
        square = tf.matmul(found, found, transpose_b=True)
        polynomial = third * square + fifth * tf.matmul(square, square)
        found = first * found + tf.matmul(polynomial, found)
    return tf.cast(tf.transpose(found) if is_tall else found, matrix.dtype)
