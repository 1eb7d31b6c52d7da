"""A user's Keras model tried on a few samples, and how a model begins, before any worker starts.
Mirrors torch's.
"""

import keras
import numpy as np
import tensorflow as tf

from raybench.backends.probe import (
    Array,
    Probed,
    as_another_worker,
    check_alone,
    check_gradients,
    check_outputs,
    check_parameters,
    check_per_sample,
    check_same,
    is_default,
    needs_check,
    refuse_outputs,
    softmax_warning,
)
from raybench.backends.tensorflow.internals import all_layers
from raybench.backends.tensorflow.judging import sample_losses, sample_values
from raybench.backends.tensorflow.model import (
    Inputs,
    batch_statistics,
    build_model,
    num_parameters,
    parameter_shapes,
    prepare_inputs,
)
from raybench.backends.tensorflow.named import start_from
from raybench.backends.tensorflow.state import Freezing
from raybench.core.errors import UserError
from raybench.core.metric import Metric
from raybench.core.spec import RunSpec
from raybench.data.inputs import Batch, each, shown
from raybench.workloads.base import Workload, users_code
from raybench.workloads.named import NamedWorkload


def probe_model(
    workload: Workload,
    inputs: Batch,
    labels: Array,
    *,
    metric: Metric,
    gpu: bool,
    several: bool,
) -> Probed:
    """Build the model, take a batch through it, loss and metric, and back.

    UserError for what cannot train, by `several` workers too.

    With `gpu`, there; where this machine has none, nothing is tried.
    """
    if gpu and not tf.config.list_physical_devices("GPU"):
        return Probed([])
    model = _build(workload)
    if several:
        with as_another_worker():
            other = _build(workload)
        check_same(workload, parameter_shapes(model), parameter_shapes(other))
    batch = prepare_inputs(each(inputs, tf.constant))
    answers = tf.constant(labels)
    default = is_default(workload, metric, loss=workload.keras_loss, correct=workload.keras_correct)
    whole, alone = (
        _outputs(workload, model, one, training=False) for one in (batch, _first(batch))
    )
    check_outputs(workload, _array(whole), labels, is_default=default)
    outputs = _outputs(workload, model, batch, training=True)
    check_outputs(workload, _array(outputs), labels, is_default=default)
    with users_code(f"Workload {workload.name}: its loss failed in TensorFlow"):
        loss = sample_losses(workload, outputs, answers)
    check_per_sample(workload, "its Keras loss", _array(loss), len(labels))
    with users_code(f"Workload {workload.name}: its {metric.words} failed in TensorFlow"):
        values = sample_values(workload, metric, outputs, answers, losses=loss, scale=1.0)
    check_per_sample(workload, f"its {metric.words} in Keras", _array(values), len(labels))
    warnings = check_gradients(
        workload, _gradients(workload, model, batch, answers), all_needed=False
    )
    warnings += check_alone(workload, _array(alone), _array(whole))
    if workload.keras_loss is None:
        warnings += softmax_warning(workload, _array(outputs))
    return Probed(warnings, batch_statistics(model))


def _outputs(workload: Workload, model: keras.Model, batch: Inputs, *, training: bool) -> tf.Tensor:
    shapes = shown(each(batch, lambda one: tuple(one.shape)))
    with users_code(f"Workload {workload.name}: its Keras model failed on inputs {shapes}"):
        outputs = model(batch, training=training)
    if not isinstance(outputs, tf.Tensor):
        raise refuse_outputs(workload, type(outputs).__name__)
    if not outputs.dtype.is_floating:
        raise refuse_outputs(workload, outputs.dtype.name)
    return outputs


def _gradients(
    workload: Workload, model: keras.Model, batch: Inputs, answers: tf.Tensor
) -> dict[str, Array | None]:
    """Return every trainable variable's gradient, by a traced step with the batch size left open.

    Training traces so; code that needs values in Python, or a fixed batch size, fails here.
    """

    def step(inputs: Inputs, labels: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            total = tf.reduce_sum(sample_losses(workload, outputs, labels))
        gradients = tape.gradient(total, [v.value for v in model.trainable_variables])
        used.extend(gradient is not None for gradient in gradients)
        return [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]

    used: list[bool] = []  # known while it is traced, once
    signature = each(batch, _any_rows), _any_rows(answers)
    with users_code(f"Workload {workload.name}: the way back through its Keras model failed"):
        found = tf.function(step, input_signature=signature)(batch, answers)
    values = iter(found)
    arrays = [_array(next(values)) if is_used else None for is_used in used]
    names = [variable.path for variable in model.trainable_variables]
    return dict(zip(names, arrays, strict=True))


def _any_rows(tensor: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def _build(workload: Workload) -> keras.Model:
    with users_code(f"Workload {workload.name}: build_keras failed"):
        model = build_model(workload, seed=0)
    if not isinstance(model, keras.Model):
        raise UserError(
            f"Workload {workload.name}: build_keras must return a keras.Model, not "
            f"{type(model).__name__}."
        )
    if not model.built:
        raise UserError(
            f"Workload {workload.name}: its Keras model is not built yet; begin it with "
            f"keras.Input({shown(workload.input_shape)}), or call its build in build_keras."
        )
    check_parameters(workload, num_parameters(model))
    return model


def _first(batch: Inputs) -> Inputs:
    """Return the first half of the samples."""
    return each(batch, lambda one: one[: len(one) // 2])


def _array(tensor: tf.Tensor) -> Array:
    return np.asarray(tf.cast(tensor, tf.float32))


SLOW = 0.99
"""Momentum, Keras's own, of which short trainings see the end; torch's would be 0.9."""
FORGOTTEN = 5.0
"""Time constants until the statistics that a layer began with count for less than a hundredth:
each of dozens of layers scales its outputs by what is left of them."""


def check_start(workload: Workload, spec: RunSpec) -> list[str]:
    """Return sentences of weights that were drawn anew; UserError for weights or a head that cannot
    be."""
    if not isinstance(workload, NamedWorkload) and not needs_check(spec):
        return []
    model = build_model(workload, spec.seed)
    warnings = start_from(model, workload, spec.weights)
    if spec.frozen_epochs:
        Freezing(model, workload)
    return warnings if warnings or spec.weights != "none" else _slow_statistics(model, workload)


def _slow_statistics(model: keras.Model, workload: Workload) -> list[str]:
    """Return a sentence where evaluations lag far behind training."""
    kinds = keras.layers.BatchNormalization
    slowest = max((one.momentum for one in all_layers(model) if isinstance(one, kinds)), default=0)
    if slowest < SLOW:
        return []
    steps = round(FORGOTTEN / (1 - slowest))
    return [
        f"Workload {workload.name}: its batch normalisation has momentum {slowest:g}, so without "
        f"weights it is evaluated near chance for the first {steps:,} steps or so; begin with "
        "weights, or take another network."
    ]
