"""Other ways than raybench's to predict samples to target of a batch size from those of others."""

from collections.abc import Callable

import numpy as np

from raybench.scaling.samples_to_target import Convergence

Predict = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Maps known batch sizes, their samples, and requested batch sizes to predicted samples."""


def nearest(known: np.ndarray, samples: np.ndarray, asked: np.ndarray) -> np.ndarray:
    away = np.abs(np.log(asked[:, None] / known[None, :]))
    return samples[away.argmin(axis=1)]


def interpolated(known: np.ndarray, samples: np.ndarray, asked: np.ndarray) -> np.ndarray:
    return np.exp(np.interp(np.log(asked), np.log(known), np.log(samples)))


def constant(known: np.ndarray, samples: np.ndarray, asked: np.ndarray) -> np.ndarray:
    return np.full(len(asked), float(np.median(samples)))


PEERS: dict[str, Predict] = {
    "nearest size": nearest,
    "interpolated": interpolated,
    "constant": constant,
}


def known_medians(runs: Convergence) -> tuple[np.ndarray, np.ndarray]:
    known = runs.medians
    return np.array([size.batch_size for size in known], dtype=float), np.array([*known.values()])
