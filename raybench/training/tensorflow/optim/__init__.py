"""Optimizers for Keras, each with the update of its torch namesake."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import keras
import tensorflow as tf

from raybench.models.base import users_code
from raybench.spec.optimizer import is_librarys
from raybench.spec.run import RunSpec
from raybench.training.optimizers import construct, own_settings, settings_of
from raybench.training.tensorflow.internals import take_exchanged
from raybench.training.tensorflow.optim import methods
from raybench.training.tensorflow.optim.kernels import Optimizer
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
    options: Mapping[str, Any] = MappingProxyType({}),
    **settings: float | None,
) -> keras.optimizers.Optimizer:
    """The optimizer of that name, to be built with `optimizer.build(model.trainable_variables)`.

    Muon asks the model for its layers, a library's for its biases; the others take none.

    `settings` are those of `raybench.training.optimizers.own_settings`, `options` those of a
    library's class. Same names, defaults and updates as
    `raybench.training.torch.optim.build_optimizer`. The rate is changed between steps through
    `optimizer.learning_rate.assign`.
    """
    if is_librarys(name):
        given = {"learning_rate": learning_rate, "weight_decay": weight_decay, "options": options}
        return _of_library(name, model, **given)
    own: dict[str, Any] = {**own_settings(name, **settings)}
    if name == "muon":
        own["model"] = model
    return OPTIMIZERS[name](learning_rate=learning_rate, weight_decay=weight_decay, **own)


def _of_library(name: str, model: keras.Model | None, **given: Any) -> keras.optimizers.Optimizer:
    base = keras.optimizers.Optimizer
    built: keras.optimizers.Optimizer = construct(name, "keras.optimizers", base, **given)
    if not given["weight_decay"]:
        built.weight_decay = None
    elif model is not None:
        biases = [one for one in model.trainable_variables if len(one.shape) <= 1]
        built.exclude_from_weight_decay(var_list=biases)
    take_exchanged(built)
    return built


def apply_exchanged(
    optimizer: keras.optimizers.Optimizer,
    gradients: list[tf.Tensor],
    variables: list[keras.Variable],
) -> None:
    """Take a step with gradients that are the same on all workers already, or of this one alone; in
    replica context."""
    if isinstance(optimizer, Optimizer):
        optimizer.apply_exchanged(gradients, variables)
    else:
        optimizer.apply(gradients, variables)


def check_optimizer(spec: RunSpec) -> None:
    """Take a step with a library's optimizer on a small model; UserError where that fails."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    optimizer = build_optimizer(spec.optimizer, model, **settings_of(spec))
    variables = model.trainable_variables
    with users_code(f"optimizer {spec.optimizer}: its first step failed"):
        optimizer.build(variables)
        apply_exchanged(optimizer, [tf.ones(one.shape) for one in variables], variables)
