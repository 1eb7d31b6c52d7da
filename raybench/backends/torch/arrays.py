"""Arrays as tensors of the same memory. Mirrors tensorflow's."""

import warnings

import numpy as np
import torch


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor on the CPU, of the same memory; nothing here writes to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writ", UserWarning)
        return torch.from_numpy(array)
