"""The nearest orthogonal matrix, by the steps that Muon takes. Mirrors tensorflow's."""

from __future__ import annotations

import torch
from torch import Tensor

NUM_STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of Jordan et al. 2024: they raise small singular values fastest, and leave all between 0.7 and
1.2, which serves as well as 1."""
SMALLEST_NORM = 1e-7
WIDE = 2
"""Columns a row above which the steps are taken with the rows' products: of 9 (filters of 3 x 3) in
0.4 of the time."""


def orthogonalised(matrix: Tensor) -> Tensor:
    """Return U S V^T with S near 1 in place of the matrix's own singular values; 0 of 0.

    Newton and Schulz's iteration with a polynomial of degree 5, in float32 or the matrix's wider
    type: the authors' bfloat16 would not be the same in two frameworks, nor fast on a CPU.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    found = matrix.T if is_tall else matrix
    if found.dtype != torch.float64:
        found = found.float()
    found = found / (torch.linalg.vector_norm(found) + SMALLEST_NORM)
    found = _of_wide(found) if found.shape[1] > WIDE * found.shape[0] else _of_any(found)
    return (found.T if is_tall else found).to(matrix.dtype)


def _of_any(found: Tensor) -> Tensor:
    for _ in range(NUM_STEPS):
        found = _polynomial(found @ found.T) @ found
    return found


def _of_wide(found: Tensor) -> Tensor:
    """Return the same: each step multiplies by a polynomial of the rows' products, which the step
    changes in a way that needs no columns."""
    products = found @ found.T
    factor = polynomial = _polynomial(products)
    for _ in range(NUM_STEPS - 1):
        products = polynomial @ products @ polynomial
        polynomial = _polynomial(products)
        factor = polynomial @ factor
    return factor @ found


def _polynomial(products: Tensor) -> Tensor:
    first, third, fifth = COEFFICIENTS
    found = torch.addmm(products, products, products, beta=third, alpha=fifth)
    found.diagonal().add_(first)
    return found
