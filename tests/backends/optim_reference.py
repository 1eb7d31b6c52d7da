"""The papers' updates in plain numpy float64, and the problem that the optimizers are tested on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

Arrays = list[np.ndarray]

NUM_STEPS = 40
TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}
EPSILON = {"adam": 1e-8, "radam": 1e-8, "lamb": 1e-6}
RATES = {"adam": 1e-2, "radam": 1e-2, "lars": 0.3, "lamb": 1e-2, "sgd": 1e-2}
NAMES = list(RATES)


def initial_weights() -> Arrays:
    """Float32: a dense matrix, a convolution, an all-zero matrix, a norm's scale, a zero bias."""
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=(8, 5)), rng.normal(size=(3, 3, 2, 4)), np.zeros((4, 3))]
    return [w.astype(np.float32) for w in (*weights, np.ones(5), np.zeros(5))]


def gradients(scale: float = 1.0) -> Iterator[Arrays]:
    """Float32 gradients of every step; the dense matrix's are all zero in steps 3 and 20."""
    rng = np.random.default_rng(2)
    for step in range(1, NUM_STEPS + 1):
        grads = [scale * rng.normal(size=w.shape).astype(np.float32) for w in initial_weights()]
        if step in (3, 20):
            grads[0] = np.zeros_like(grads[0])
        yield grads


def rates(name: str) -> Iterator[float]:
    """A learning rate that warms up, drops tenfold and comes back."""
    for step in range(NUM_STEPS):
        yield RATES[name] * min(1.0, (step + 1) / 5) * (0.1 if 15 <= step < 25 else 1.0)


@dataclass
class Reference:
    """One optimizer in float64; `step` returns the new weights."""

    name: str
    weights: Arrays
    weight_decay: float = 0.0
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    trust_coefficient: float = 0.001
    exclude_1d: bool = True
    num_steps: int = 0
    first: Arrays = field(init=False)
    second: Arrays = field(init=False)

    def __post_init__(self) -> None:
        self.weights = [w.astype(np.float64) for w in self.weights]
        self.first = [np.zeros_like(w) for w in self.weights]
        self.second = [np.zeros_like(w) for w in self.weights]

    def step(self, grads: Arrays, rate: float) -> Arrays:
        self.num_steps += 1
        update = {
            "adam": self._adam,
            "radam": self._radam,
            "lars": self._lars,
            "lamb": self._lamb,
            "sgd": self._sgd,
        }[self.name]
        for i, grad in enumerate(grads):
            excluded = self.exclude_1d and grad.ndim <= 1
            decay = 0.0 if excluded else self.weight_decay
            self.weights[i] = update(i, grad.astype(np.float64), rate, decay, excluded)
        return self.weights

    def _sgd(self, i: int, g: np.ndarray, lr: float, decay: float, _: bool) -> np.ndarray:
        self.first[i] = self.momentum * self.first[i] + g + decay * self.weights[i]
        return self.weights[i] - lr * self.first[i]

    def _lars(self, i: int, g: np.ndarray, lr: float, decay: float, excluded: bool) -> np.ndarray:
        w = self.weights[i]
        weight_norm = np.linalg.norm(w)
        denominator = np.linalg.norm(g) + decay * weight_norm
        ratio = 1.0
        if not excluded and weight_norm > 0 and denominator > 0:
            ratio = self.trust_coefficient * weight_norm / denominator
        self.first[i] = self.momentum * self.first[i] + ratio * (g + decay * w)
        return w - lr * self.first[i]

    def _moments(self, i: int, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.first[i] = self.beta1 * self.first[i] + (1 - self.beta1) * g
        self.second[i] = self.beta2 * self.second[i] + (1 - self.beta2) * g**2
        t = self.num_steps
        return self.first[i] / (1 - self.beta1**t), self.second[i] / (1 - self.beta2**t)

    def _adam(self, i: int, g: np.ndarray, lr: float, decay: float, _: bool) -> np.ndarray:
        m_hat, v_hat = self._moments(i, g)
        w = self.weights[i] * (1 - lr * decay)
        return w - lr * m_hat / (np.sqrt(v_hat) + EPSILON["adam"])

    def _lamb(self, i: int, g: np.ndarray, lr: float, decay: float, excluded: bool) -> np.ndarray:
        m_hat, v_hat = self._moments(i, g)
        w = self.weights[i]
        update = m_hat / (np.sqrt(v_hat) + EPSILON["lamb"]) + decay * w
        weight_norm, update_norm = np.linalg.norm(w), np.linalg.norm(update)
        ratio = 1.0
        if not excluded and weight_norm > 0 and update_norm > 0:
            ratio = weight_norm / update_norm
        return w - lr * ratio * update

    def _radam(self, i: int, g: np.ndarray, lr: float, decay: float, _: bool) -> np.ndarray:
        m_hat, _ = self._moments(i, g)
        t = self.num_steps
        w = self.weights[i] * (1 - lr * decay)
        rho_inf = 2 / (1 - self.beta2) - 1
        rho = rho_inf - 2 * t * self.beta2**t / (1 - self.beta2**t)
        if rho <= 5:
            return w - lr * m_hat
        rectification = np.sqrt(
            (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
        )
        adaptive = np.sqrt(1 - self.beta2**t) / (np.sqrt(self.second[i]) + EPSILON["radam"])
        return w - lr * rectification * m_hat * adaptive
