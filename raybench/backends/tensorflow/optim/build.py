"""Optimizers for Keras by name."""

from __future__ import annotations

from collections.abc import Callable

import keras

from raybench.backends.tensorflow.optim.adam import Adam
from raybench.backends.tensorflow.optim.lamb import Lamb
from raybench.backends.tensorflow.optim.lars import Lars
from raybench.backends.tensorflow.optim.radam import RAdam
from raybench.backends.tensorflow.optim.sgd import Sgd

EPSILON = {"adam": 1e-8, "radam": 1e-8, "lamb": 1e-6}


def build_optimizer(
    name: str,
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float | None = None,
    trust_coefficient: float = 0.001,
) -> keras.optimizers.Optimizer:
    """The optimizer of that name, to be built with `optimizer.build(model.trainable_variables)`.

    Settings that a method does not have are ignored. Same names, defaults and updates as
    `raybench.backends.torch.optim.build_optimizer`.

    | name  | reads                                | weight decay                              |
    |-------|--------------------------------------|-------------------------------------------|
    | adam  | beta1, beta2, epsilon (1e-8)         | decoupled, times the rate (AdamW)         |
    | radam | beta1, beta2, epsilon (1e-8)         | decoupled, times the rate                 |
    | lars  | momentum, trust_coefficient          | added to the gradient, inside the ratio   |
    | lamb  | beta1, beta2, epsilon (1e-6)         | added to the direction, inside the ratio  |
    | sgd   | momentum                             | added to the gradient (L2)                |

    Biases and norm parameters (ndim <= 1) get neither weight decay nor trust ratio. The rate is
    changed between steps through `optimizer.learning_rate.assign`.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"unknown optimizer {name!r}; choose one of {', '.join(OPTIMIZERS)}")
    create, reads = OPTIMIZERS[name]
    settings = {
        "momentum": momentum,
        "beta1": beta1,
        "beta2": beta2,
        "epsilon": EPSILON.get(name) if epsilon is None else epsilon,
        "trust_coefficient": trust_coefficient,
    }
    return create(
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        **{setting: settings[setting] for setting in reads},
    )


OPTIMIZERS: dict[str, tuple[Callable[..., keras.optimizers.Optimizer], tuple[str, ...]]] = {
    "adam": (Adam, ("beta1", "beta2", "epsilon")),
    "radam": (RAdam, ("beta1", "beta2", "epsilon")),
    "lars": (Lars, ("momentum", "trust_coefficient")),
    "lamb": (Lamb, ("beta1", "beta2", "epsilon")),
    "sgd": (Sgd, ("momentum",)),
}
