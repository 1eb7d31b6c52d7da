"""Keras models: construction, inputs, losses, weights. Mirrors torch/model.py."""

import tempfile
from pathlib import Path
from typing import TypeAlias

import keras
import tensorflow as tf

from raybench.data.dataset import IGNORED, Array, Batch, each
from raybench.models.base import LayerWorkload, Workload
from raybench.models.layers import initial_weights, to_keras_layout
from raybench.models.named import NamedWorkload
from raybench.spec.errors import ErrorCode, UserError
from raybench.training.losses import BaseLosses
from raybench.training.tensorflow.internals import all_layers
from raybench.training.tensorflow.layers import build_layers, input_type
from raybench.training.tensorflow.named import build_named

Inputs: TypeAlias = tf.Tensor | dict[str, tf.Tensor]
"""Inputs of a batch: a tensor, or several tensors by name."""
MODEL_TYPE = keras.Model
"""Base class of all models."""
NOT_CALLED = ("train_step", "compute_loss", "make_train_function", "fit")
"""Methods with which Keras trains a model, and which raybench's training loop does not call."""


def build_model(workload: Workload, seed: int) -> keras.Model:
    """Build the model of a workload, and seed all random numbers.

    The model takes images of shape (N, H, W, C), see `prepare_inputs`. Its variables are created by
    the distribution strategy in whose scope this function is called.

    Args:
        workload: Workload that builds the model.
        seed: Seed for the weights and for later dropout.

    Raises:
        UserError: The workload has no method `build_keras`, or its model is compiled or overrides a
            training method of Keras.
    """
    keras.utils.set_random_seed(seed)
    if isinstance(workload, NamedWorkload):
        return build_named(workload, seed)
    if not isinstance(workload, LayerWorkload):
        model = workload.build_keras()
        if workload.keras_loss is None and isinstance(model, keras.Model):
            _refuse_own_training(model, workload)
        return model
    shape = workload.input_shape
    modules = build_layers(workload.layers, shape)
    # The last layer converts the logits to float32, also under a 16-bit policy.
    float32 = keras.layers.Activation("linear", dtype="float32")
    inputs = keras.Input(shape, dtype=input_type(workload.layers))
    model = keras.Sequential([inputs, *modules, float32])
    weights = initial_weights(workload.layers, shape, seed)
    model.set_weights(to_keras_layout(workload.layers, shape, weights))
    return model


def _refuse_own_training(model: keras.Model, workload: Workload) -> None:
    """Raise UserError for a model that is compiled or overrides a training method of Keras."""
    reasons = [f"defines {name} itself" for name in NOT_CALLED if _overrides(model, name)]
    if reasons or model.compiled:
        problem = reasons[0] if reasons else "is compiled"
        raise UserError(
            f"Workload {workload.name}: its Keras model {problem}, which raybench's training loop "
            "does not use; return it uncompiled and write the loss of each sample as keras_loss, "
            "or write your own training loop with raybench.integrations.Keras.",
            ErrorCode.INVALID_MODEL,
        )


def _overrides(model: keras.Model, name: str) -> bool:
    """Return whether a model overrides the method `name` of keras.Model."""
    method = getattr(model, name)
    return getattr(method, "__func__", method) is not getattr(keras.Model, name)


def num_parameters(model: keras.Model) -> int:
    """Return the number of trainable parameters of a model."""
    return sum(variable.value.shape.num_elements() for variable in model.trainable_variables)


def batch_statistics(model: keras.Model) -> bool:
    """Return whether any layer normalizes over the batch of one worker."""
    kinds = (keras.layers.BatchNormalization,)
    return any(isinstance(layer, kinds) and not layer.synchronized for layer in all_layers(model))


def prepare_inputs(inputs: Inputs) -> Inputs:
    """Convert inputs of a dataset to inputs of the model.

    uint8 becomes float32 in [0, 1], other integers become int64. A dict is converted entry by
    entry.
    """
    return each(inputs, _prepare_tensor)


def _prepare_tensor(inputs: tf.Tensor) -> tf.Tensor:
    """Convert one tensor, see `prepare_inputs`."""
    if inputs.dtype == tf.uint8:
        return tf.cast(inputs, tf.float32) * (1 / 255)
    return tf.cast(inputs, tf.int64) if inputs.dtype.is_integer else inputs


def predict(model: keras.Model, inputs: Batch) -> Array:
    """Return the outputs of a model in evaluation mode for input arrays of a dataset; float32."""
    tensors: Inputs = each(inputs, tf.convert_to_tensor)
    outputs = model(prepare_inputs(tensors), training=False)
    return to_array(outputs)


def training_outputs(
    model: keras.Model, inputs: Batch, labels: Array, gpu: int | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the outputs of a model in training mode, and the labels as a tensor.

    Args:
        model: The model.
        inputs: Input arrays of a dataset.
        labels: Labels of the samples.
        gpu: Ignored, because TensorFlow chooses the device.
    """
    del gpu
    batch: Inputs = each(inputs, tf.constant)
    return model(prepare_inputs(batch), training=True), tf.constant(labels)


def to_array(tensor: tf.Tensor) -> Array:
    """Return a tensor as a float32 array."""
    array: Array = tf.cast(tensor, tf.float32).numpy()
    return array


def save_weights(model: keras.Model) -> bytes:
    """Return the weights of a model as a Keras `.weights.h5` file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.weights.h5"
        model.save_weights(file)
        return file.read_bytes()


def load_weights(model: keras.Model, weights: bytes) -> None:
    """Load weights that `save_weights` has returned into a model."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.weights.h5"
        file.write_bytes(weights)
        model.load_weights(file)


def added_loss(model: keras.Model) -> tf.Tensor:
    """Return the sum of the losses that a model has added in its last call, as a float32 scalar.

    These are weight and activity penalties and losses passed to `add_loss`; `model.fit` sums them
    in the same way.
    """
    losses = [tf.reduce_sum(tf.cast(loss, tf.float32)) for loss in model.losses]
    return tf.add_n(losses) if losses else tf.zeros(())


Mixed = tuple[tf.Tensor, ...]
"""With mixup: the labels of the second sample of each mixed pair, and two weights of shape (N,):
one for the loss on the first sample's labels, one for the loss on the second's. Otherwise empty."""


class Losses(BaseLosses):
    """Loss and metric of a run in TensorFlow; see `BaseLosses`."""

    PREFIX = "keras"

    def _floats(self, values: tf.Tensor) -> tf.Tensor:
        return tf.cast(values, tf.float32)

    def _mean(self, values: tf.Tensor) -> tf.Tensor:
        return values if values.shape.rank == 1 else tf.reduce_mean(values, axis=1)

    def _mean_of_counted(self, values: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        counted = tf.cast(labels != IGNORED, values.dtype)
        return tf.reduce_sum(values * counted, 1) / tf.maximum(tf.reduce_sum(counted, 1), 1)

    def _errors(self, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        errors = tf.reshape(tf.cast(outputs, tf.float32), tf.shape(labels))
        return errors - tf.cast(labels, tf.float32)

    def _cross_entropy(self, outputs: tf.Tensor, labels: tf.Tensor, smoothing: float) -> tf.Tensor:
        if labels.shape.rank > 1:
            labels = tf.where(labels == IGNORED, tf.zeros_like(labels), labels)
        logits = tf.cast(outputs, tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        if not smoothing:
            return losses
        spread = -tf.reduce_mean(tf.nn.log_softmax(logits), -1)
        return (1 - smoothing) * losses + smoothing * spread

    def _hits(self, outputs: tf.Tensor, labels: tf.Tensor, most: int) -> tf.Tensor:
        if most == 1:
            return tf.argmax(outputs, axis=-1, output_type=labels.dtype) == labels
        top = tf.math.top_k(tf.cast(outputs, tf.float32), min(most, outputs.shape[-1]))
        best = tf.cast(top.indices, labels.dtype)
        return tf.reduce_any(best == labels[..., None], axis=-1)
