"""A user's Keras model tried on a few samples, before any worker starts. Mirrors torch's."""

import keras
import numpy as np
import tensorflow as tf

from raybench.backends.probe import (
    Array,
    check_gradients,
    check_outputs,
    check_parameters,
    check_per_sample,
    softmax_warning,
)
from raybench.backends.tensorflow.model import (
    build_model,
    loss_and_correct,
    num_parameters,
    prepare_inputs,
)
from raybench.core.errors import UserError
from raybench.workloads.base import Workload
from raybench.workloads.users_code import users_code


def probe_model(workload: Workload, inputs: Array, labels: Array, *, gpu: bool) -> list[str]:
    """Build the model, take a batch through it and back; warnings, or a UserError.

    With `gpu`, there; where this machine has none, nothing is tried.
    """
    if gpu and not tf.config.list_physical_devices("GPU"):
        return []
    model = _build(workload)
    batch = prepare_inputs(tf.constant(inputs))
    answers = tf.constant(labels)
    failed = f"Workload {workload.name}: its Keras model failed on inputs {tuple(batch.shape)}"
    is_default = workload.keras_loss is None or workload.keras_correct is None
    for training in (False, True):
        with users_code(failed):
            outputs = model(batch, training=training)
        if not isinstance(outputs, tf.Tensor):
            kind = type(outputs).__name__
            raise UserError(
                f"Workload {workload.name}: its model must return a tensor, not {kind}."
            )
        check_outputs(workload, _array(outputs), len(labels), is_default=is_default)
    with users_code(f"Workload {workload.name}: its loss failed in TensorFlow"):
        loss, correct = loss_and_correct(workload, outputs, answers)
    check_per_sample(workload, "its Keras loss", _array(loss), len(labels))
    check_per_sample(workload, "keras_correct", _array(correct), len(labels))
    with users_code(f"Workload {workload.name}: the way back through its Keras model failed"):
        found = _traced_gradients(workload, model, batch, answers)
    names = [variable.path for variable in model.trainable_variables]
    warnings = check_gradients(workload, dict(zip(names, found, strict=True)))
    if workload.keras_loss is None:
        warnings += softmax_warning(workload, _array(outputs))
    return warnings


def _traced_gradients(
    workload: Workload, model: keras.Model, batch: tf.Tensor, answers: tf.Tensor
) -> list[Array | None]:
    """Return every trainable variable's gradient, by a traced step with the batch size left open.

    Training traces so; code that needs values in Python, or a fixed batch size, fails here.
    """

    def step(inputs: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            losses, _ = loss_and_correct(workload, outputs, labels)
            total = tf.reduce_sum(losses)
        gradients = tape.gradient(total, [v.value for v in model.trainable_variables])
        used.extend(gradient is not None for gradient in gradients)
        return [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]

    used: list[bool] = []  # known while it is traced, once
    signature = [
        tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype) for tensor in (batch, answers)
    ]
    traced = tf.function(step, input_signature=signature)
    values = iter(traced(batch, answers))
    return [_array(next(values)) if is_used else None for is_used in used]


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
            f"keras.Input({tuple(workload.input_shape)}), or call its build in build_keras."
        )
    check_parameters(workload, num_parameters(model))
    return model


def _array(tensor: tf.Tensor) -> Array:
    return np.asarray(tf.cast(tensor, tf.float32))
