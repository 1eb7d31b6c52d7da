"""Optimizers for Keras by name."""

from __future__ import annotations

from collections.abc import Callable

import keras

from raybench.backends.optimizers import own_settings
from raybench.backends.tensorflow.optim.adam import Adam
from raybench.backends.tensorflow.optim.lamb import Lamb
from raybench.backends.tensorflow.optim.lars import Lars
from raybench.backends.tensorflow.optim.radam import RAdam
from raybench.backends.tensorflow.optim.sgd import Sgd

OPTIMIZERS: dict[str, Callable[..., keras.optimizers.Optimizer]] = {
    "adam": Adam,
    "radam": RAdam,
    "lars": Lars,
    "lamb": Lamb,
    "sgd": Sgd,
}


def build_optimizer(
    name: str, *, learning_rate: float, weight_decay: float = 0.0, **settings: float | None
) -> keras.optimizers.Optimizer:
    """The optimizer of that name, to be built with `optimizer.build(model.trainable_variables)`.

    `settings` are those of `raybench.backends.optimizers.own_settings`. Same names, defaults and
    updates as `raybench.backends.torch.optim.build_optimizer`. The rate is changed between steps
    through `optimizer.learning_rate.assign`.
    """
    own = own_settings(name, **settings)  # type: ignore[arg-type]
    return OPTIMIZERS[name](learning_rate=learning_rate, weight_decay=weight_decay, **own)
