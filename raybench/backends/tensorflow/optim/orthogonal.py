"""The nearest orthogonal matrix, by the steps that Muon takes. Mirrors torch's."""

from __future__ import annotations

import tensorflow as tf

NUM_STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of Jordan et al. 2024: they raise small singular values fastest, and leave all between 0.7 and
1.2, which serves as well as 1."""
SMALLEST_NORM = 1e-7
WIDE = 2
"""Columns a row above which the steps are taken with the rows' products: of 9 (filters of 3 x 3) in
0.4 of the time."""


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
    found = _of_wide(found) if found.shape[1] > WIDE * found.shape[0] else _of_any(found)
    return tf.cast(tf.transpose(found) if is_tall else found, matrix.dtype)


def _of_any(found: tf.Tensor) -> tf.Tensor:
    for _ in range(NUM_STEPS):
        found = tf.matmul(_polynomial(tf.matmul(found, found, transpose_b=True)), found)
    return found


def _of_wide(found: tf.Tensor) -> tf.Tensor:
    """Return the same: each step multiplies by a polynomial of the rows' products, which the step
    changes in a way that needs no columns."""
    products = tf.matmul(found, found, transpose_b=True)
    factor = polynomial = _polynomial(products)
    for _ in range(NUM_STEPS - 1):
        products = tf.matmul(tf.matmul(polynomial, products), polynomial)
        polynomial = _polynomial(products)
        factor = tf.matmul(polynomial, factor)
    return tf.matmul(factor, found)


def _polynomial(products: tf.Tensor) -> tf.Tensor:
    first, third, fifth = COEFFICIENTS
    found = third * products + fifth * tf.matmul(products, products)
    return tf.linalg.set_diag(found, tf.linalg.diag_part(found) + first)
