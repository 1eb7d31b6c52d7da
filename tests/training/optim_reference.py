"""Reference updates of optimizers in numpy float64, by their papers, and the test problem."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raybench.spec.optimizer import DEFAULTS

Arrays = list[np.ndarray]

NUM_STEPS = 40
TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}
EPSILON = {"lamb": 1e-6}
"""Epsilon by optimizer, where it is not 1e-8."""
RATES = {
    "adam": 1e-2,
    "radam": 1e-2,
    "lars": 0.3,
    "lamb": 1e-2,
    "sgd": 1e-2,
    "muon": 1e-2,
}
NAMES = list(RATES)
"""All optimizers except adamw, which is adam under another name."""
IN_GROUPS = ["lamb", "muon"]
"""Optimizers tested on two workers, because they use norms and shapes of whole weights."""
SETTINGS = {"momentum": 0.5, "beta1": 0.8, "beta2": 0.95, "trust_coefficient": 0.02}
CHANGED = [
    *((name, {key: SETTINGS[key] for key in SETTINGS if key in DEFAULTS[name]}) for name in NAMES),
    ("lars", {"momentum": 0.0}),
    *(("sgd", {"momentum": momentum, "nesterov": True}) for momentum in (0.9, 0.0)),
]
"""Names with settings other than the defaults."""


def initial_weights() -> Arrays:
    """Return float32 weights: dense matrix, convolution, zero matrix, norm scale, zero bias."""
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=(8, 5)), rng.normal(size=(3, 3, 2, 4)), np.zeros((4, 3))]
    return [array.astype(np.float32) for array in (*weights, np.ones(5), np.zeros(5))]


def gradients(scale: float = 1.0) -> Iterator[Arrays]:
    """Yield float32 gradients of every step; the dense matrix has zero ones in steps 3 and 20."""
    rng = np.random.default_rng(2)
    for step in range(1, NUM_STEPS + 1):
        grads = [scale * rng.normal(size=w.shape).astype(np.float32) for w in initial_weights()]
        if step in (3, 20):
            grads[0] = np.zeros_like(grads[0])
        yield grads


def rates(name: str) -> Iterator[float]:
    """Yield a learning rate that warms up, drops tenfold and recovers."""
    for step in range(NUM_STEPS):
        yield RATES[name] * min(1.0, (step + 1) / 5) * (0.1 if 15 <= step < 25 else 1.0)


def after_all_steps(name: str, *, scale: float = 1.0, **settings: Any) -> Arrays:
    """Return the weights after all steps of the test problem."""
    reference = Reference(name, initial_weights(), **({"weight_decay": 0.05} | settings))
    for grads, rate in zip(gradients(scale), rates(name), strict=True):
        reference.step(grads, rate)
    return reference.weights


@dataclass
class Reference:
    """Reference optimizer in float64; `step` returns the new weights."""

    name: str
    weights: Arrays
    weight_decay: float = 0.0
    momentum: float | None = None
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float | None = None
    trust_coefficient: float = 0.001
    outputs_last: bool = False
    """Whether the output axis of a convolution is last (Keras) or first (torch); for Muon only."""
    num_steps: int = 0
    first: Arrays = field(init=False)
    second: Arrays = field(init=False)

    def __post_init__(self) -> None:
        self.epsilon = EPSILON.get(self.name, 1e-8)
        if self.momentum is None:
            self.momentum = 0.95 if self.name == "muon" else 0.9
        if self.beta2 is None:
            self.beta2 = 0.999
        self.weights = [w.astype(np.float64) for w in self.weights]
        self.first = [np.zeros_like(w) for w in self.weights]
        self.second = [np.zeros_like(w) for w in self.weights]

    def step(self, grads: Arrays, rate: float) -> Arrays:
        self.num_steps += 1
        update = getattr(self, f"_{self.name}")
        for i, grad in enumerate(grads):
            excluded = grad.ndim <= 1
            decay = 0.0 if excluded else self.weight_decay
            self.weights[i] = update(i, grad.astype(np.float64), rate, decay, excluded)
        return self.weights

    def _sgd(self, i: int, g: np.ndarray, lr: float, decay: float, _: bool) -> np.ndarray:
        g = g + decay * self.weights[i]
        self.first[i] = self.momentum * self.first[i] + g
        direction = g + self.momentum * self.first[i] if self.nesterov else self.first[i]
        return self.weights[i] - lr * direction

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
        return w - lr * m_hat / (np.sqrt(v_hat) + self.epsilon)

    def _muon(self, i: int, g: np.ndarray, lr: float, decay: float, excluded: bool) -> np.ndarray:
        """Update of Jordan et al. 2024 with the scale of arXiv 2502.16982; the last matrix is the
        head, which adam updates."""
        if g.ndim <= 1 or i == max(j for j, w in enumerate(self.weights) if w.ndim > 1):
            return self._adam(i, g, lr, decay, excluded)
        self.first[i] = self.momentum * self.first[i] + (1 - self.momentum) * g
        direction = (1 - self.momentum) * g + self.momentum * self.first[i]
        shape = (-1, g.shape[-1]) if self.outputs_last else (g.shape[0], -1)
        x = direction.reshape(shape)
        scale = 0.2 * np.sqrt(max(x.shape))
        x = x / (np.linalg.norm(x) + 1e-7)
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
        return self.weights[i] * (1 - lr * decay) - lr * scale * x.reshape(g.shape)

    def _lamb(self, i: int, g: np.ndarray, lr: float, decay: float, excluded: bool) -> np.ndarray:
        m_hat, v_hat = self._moments(i, g)
        w = self.weights[i]
        update = m_hat / (np.sqrt(v_hat) + self.epsilon) + decay * w
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
        adaptive = np.sqrt(1 - self.beta2**t) / (np.sqrt(self.second[i]) + self.epsilon)
        return w - lr * rectification * m_hat * adaptive
