"""The nearest orthogonal matrix, by the steps that Muon takes. Mirrors tensorflow's."""

from __future__ import annotations

import torch
from torch import Tensor

NUM_STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of Jordan et al. 2024: they raise small singular values fastest, and leave all between 0.7 and
1.2, which serves as well as 1."""
SMALLEST_NORM = 1e-7


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
    first, third, fifth = COEFFICIENTS
    for _ in range(NUM_STEPS):
        square = found @ found.T
        polynomial = torch.addmm(square, square, square, beta=third, alpha=fifth)
        found = torch.addmm(found, polynomial, found, beta=first)
    return (found.T if is_tall else found).to(matrix.dtype)
