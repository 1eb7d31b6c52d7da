"""Optimizers for Keras, each with the update of its torch namesake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from raybench.training.optimizers import own_settings
from raybench.training.tensorflow.optim.kernels import clip_gradients as clip_gradients
from raybench.training.tensorflow.optim.methods import Adam as Adam
from raybench.training.tensorflow.optim.methods import Lamb as Lamb
from raybench.training.tensorflow.optim.methods import Lars as Lars
from raybench.training.tensorflow.optim.methods import Lion as Lion
from raybench.training.tensorflow.optim.methods import Muon as Muon
from raybench.training.tensorflow.optim.methods import NAdamW as NAdamW
from raybench.training.tensorflow.optim.methods import RAdam as RAdam
from raybench.training.tensorflow.optim.methods import ScheduleFreeAdamW as ScheduleFreeAdamW
from raybench.training.tensorflow.optim.methods import Sgd as Sgd

OPTIMIZERS: dict[str, Callable[..., keras.optimizers.Optimizer]] = {
    "adam": Adam,
    "radam": RAdam,
    "lars": Lars,
    "lamb": Lamb,
    "sgd": Sgd,
    "adamw": Adam,
    "nadamw": NAdamW,
    "lion": Lion,
    "schedule_free_adamw": ScheduleFreeAdamW,
    "muon": Muon,
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
