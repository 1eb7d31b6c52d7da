"""Optimizers for Keras, each with the update of its torch namesake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from raybench.training.optimizers import own_settings
from raybench.training.tensorflow.optim import methods
from raybench.training.tensorflow.optim.kernels import clip_gradients as clip_gradients

OPTIMIZERS: dict[str, Callable[..., keras.optimizers.Optimizer]] = {
    "adam": methods.Adam,
    "radam": methods.RAdam,
    "lars": methods.Lars,
    "lamb": methods.Lamb,
    "sgd": methods.Sgd,
    "adamw": methods.Adam,
    "nadamw": methods.NAdamW,
    "lion": methods.Lion,
    "schedule_free_adamw": methods.ScheduleFreeAdamW,
    "muon": methods.Muon,
}


def build_optimizer(
    name: str,
    model: keras.Model | None = None,
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    **settings: float | None,
) -> keras.optimizers.Optimizer:
    """The optimizer of that name, to be built with `optimizer.build(model.trainable_variables)`.

    Muon asks the model for its layers; the others take none.

    `settings` are those of `raybench.training.optimizers.own_settings`. Same names, defaults and
    updates as `raybench.training.torch.optim.build_optimizer`. The rate is changed between steps
    through `optimizer.learning_rate.assign`.
    """
    own: dict[str, Any] = {**own_settings(name, **settings)}
    if name == "muon":
        own["model"] = model
    return OPTIMIZERS[name](learning_rate=learning_rate, weight_decay=weight_decay, **own)
