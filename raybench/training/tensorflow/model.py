"""Keras models: construction, inputs, losses, weights. Mirrors torch/model.py."""

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import keras
import tensorflow as tf

from raybench.data.dataset import IGNORED
from raybench.data.inputs import Array, Batch, each
from raybench.models.base import Hook, LayerWorkload, Workload
from raybench.models.layers import initial_weights, to_keras_layout
from raybench.models.named import NamedWorkload
from raybench.models.user_code import user_code_errors
from raybench.spec.errors import ErrorCode, UserError
from raybench.training.losses import BaseLosses
from raybench.training.tensorflow.internals import all_layers
from raybench.training.tensorflow.layers import build_layers, input_type
from raybench.training.tensorflow.named import build_named

Inputs: TypeAlias = tf.Tensor | dict[str, tf.Tensor]


def build_model(workload: Workload, seed: int) -> keras.Model:
    """Build a model; `seed` determines its weights and later dropout.

    The model takes images (N, H, W, C), see `prepare_inputs`. Variables are placed by the strategy
    in scope. Raises UserError for a workload without `build_keras`.
    """
    keras.utils.set_random_seed(seed)
    if isinstance(workload, NamedWorkload):
        return build_named(workload, seed)
    if not isinstance(workload, LayerWorkload):
        return workload.build_keras()
    shape = workload.input_shape
    modules = build_layers(workload.layers, shape)
    # The last layer makes the logits float32 under a bf16 policy too.
    float32 = keras.layers.Activation("linear", dtype="float32")
    kind = input_type(workload.layers)
    model = keras.Sequential([keras.Input(shape, dtype=kind), *modules, float32])
    weights = initial_weights(workload.layers, shape, seed)
    model.set_weights(to_keras_layout(workload.layers, shape, weights))
    return model


def num_parameters(model: keras.Model) -> int:
    """Return the number of trainable parameters."""
    return sum(variable.value.shape.num_elements() for variable in model.trainable_variables)


def parameter_shapes(model: keras.Model) -> list[tuple[str, tuple[int, ...]]]:
    """Return path and shape of all variables, in the order of the model."""
    return [(variable.path, tuple(variable.shape)) for variable in model.variables]


def batch_statistics(model: keras.Model) -> bool:
    """Return whether a layer normalizes over the batch of one worker."""
    kinds = (keras.layers.BatchNormalization,)
    return any(isinstance(layer, kinds) and not layer.synchronized for layer in all_layers(model))


SLOW_MOMENTUM = 0.99
"""Keras's default momentum of batch normalization, too slow for short runs; torch's default
corresponds to 0.9."""
TIME_CONSTANTS = 5.0
"""Time constants until the initial statistics count for less than 1 %. Such a small remainder
matters because it scales the outputs of each of dozens of layers."""


def statistics_warnings(model: keras.Model, workload: Workload, weights: str) -> list[str]:
    """Return a warning if slow batch normalization makes early evaluations of a library's model
    much worse than training, as it does without trained `weights`."""
    kinds = keras.layers.BatchNormalization
    slowest = max((one.momentum for one in all_layers(model) if isinstance(one, kinds)), default=0)
    is_known = isinstance(workload, NamedWorkload)
    if not is_known or slowest < SLOW_MOMENTUM or weights != "none":
        return []
    steps = round(TIME_CONSTANTS / (1 - slowest))
    return [
        f"Workload {workload.name}: its batch normalization has momentum {slowest:g}, so without "
        f"weights it is evaluated near chance for the first {steps:,} steps or so; start from "
        "trained weights, or choose another network."
    ]


def prepare_inputs(inputs: Inputs) -> Inputs:
    """Convert inputs for the model: uint8 to float32 in [0, 1], other integers to int64. A dict is
    converted entry by entry."""
    return each(inputs, _prepared)


def _prepared(inputs: tf.Tensor) -> tf.Tensor:
    if inputs.dtype == tf.uint8:
        return tf.cast(inputs, tf.float32) * (1 / 255)
    return tf.cast(inputs, tf.int64) if inputs.dtype.is_integer else inputs


def predict(model: keras.Model, inputs: Batch) -> Array:
    """Return the outputs of a model in evaluation mode for input arrays of a dataset."""
    tensors: Inputs = each(inputs, tf.convert_to_tensor)
    outputs = model(prepare_inputs(tensors), training=False)
    found: Array = tf.cast(outputs, tf.float32).numpy()
    return found


def save_weights(model: keras.Model) -> bytes:
    """Return the weights as Keras's `.weights.h5` file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.weights.h5"
        model.save_weights(file)
        return file.read_bytes()


def load_weights(model: keras.Model, weights: bytes) -> None:
    """Load weights that `save_weights` returned."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.weights.h5"
        file.write_bytes(weights)
        model.load_weights(file)


def added_loss(model: keras.Model) -> tf.Tensor:
    """Return the sum of the losses that a model added in its last call, float32: weight and
    activity penalties and `add_loss`, as `model.fit` sums them."""
    found = [tf.reduce_sum(tf.cast(one, tf.float32)) for one in model.losses]
    return tf.add_n(found) if found else tf.zeros(())


class Unreduced(keras.losses.Loss):
    """Wraps a loss function without averaging over samples."""

    def __init__(self, function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> None:
        super().__init__(reduction=None)
        self._function = function

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Return the loss of each sample."""
        return self._function(y_true, y_pred)


def compiled_loss(model: keras.Model) -> Hook | None:
    """Return the loss (N,) that a model was compiled with, or None.

    Raises:
        UserError: The model has several losses, or Keras does not know its loss.
    """
    if not model.compiled or model.loss is None:
        return None
    losses = [one for one in keras.tree.flatten(model.loss) if one is not None]
    if len(losses) != 1:
        raise UserError(
            f"The Keras model {model.name} is compiled with {len(losses)} losses, and its one "
            "output needs one; write it as keras_loss.",
            ErrorCode.INVALID_MODEL,
        )
    with user_code_errors(
        f"The Keras model {model.name}: its compiled loss is none of Keras's",
        code=ErrorCode.INVALID_MODEL,
    ):
        found = keras.losses.get(losses[0])
    if isinstance(found, keras.losses.Loss):
        unreduced = copy.copy(found)
        unreduced.reduction = None
    else:
        unreduced = Unreduced(found)

    def loss(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if outputs.shape.rank == labels.shape.rank + 1 and outputs.shape[-1] == 1:
            labels = labels[..., None]  # as Keras aligns labels with outputs
        values = unreduced(labels, outputs)
        return tf.reduce_mean(values, range(1, values.shape.rank)) if values.shape.rank else values

    return loss


Mixed = tuple[tf.Tensor, ...]
"""With mixup: labels of the second sample in each mix, and weights (N,) of the losses computed with
the labels of the first and of the second sample; otherwise empty."""


class Losses(BaseLosses):
    """Loss and metric of a run in TensorFlow."""

    PREFIX = "keras"

    def _floats(self, values: tf.Tensor) -> tf.Tensor:
        return tf.cast(values, tf.float32)

    def _mean(self, values: tf.Tensor) -> tf.Tensor:
        return values if values.shape.rank == 1 else tf.reduce_mean(values, axis=1)

    def _mean_of_counted(self, values: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        counted = tf.cast(labels != IGNORED, values.dtype)
        return tf.reduce_sum(values * counted, 1) / tf.maximum(tf.reduce_sum(counted, 1), 1)

    def _errors(self, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        found = tf.reshape(tf.cast(outputs, tf.float32), tf.shape(labels))
        return found - tf.cast(labels, tf.float32)

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
        found = tf.math.top_k(tf.cast(outputs, tf.float32), min(most, outputs.shape[-1]))
        best = tf.cast(found.indices, labels.dtype)
        return tf.reduce_any(best == labels[..., None], axis=-1)
