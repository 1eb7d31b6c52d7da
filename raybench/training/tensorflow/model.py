"""Keras models: construction, inputs, losses, weights, layers; and batch normalization over all
workers. Mirrors torch/model.py."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from raybench.data.dataset import IGNORED, Array, Batch, each
from raybench.models import layers as description
from raybench.models.base import LayerWorkload, Workload
from raybench.models.layers import Layer, Shape, initial_weights, output_shapes, to_keras_layout
from raybench.models.named import NamedWorkload
from raybench.spec.errors import ErrorCode, UserError
from raybench.training.base import BaseLosses
from raybench.training.tensorflow.internals import all_layers, unregister_new_gradient_functions
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
    """Return the float32 outputs of a model in evaluation mode for input arrays of a dataset."""
    tensors: Inputs = each(inputs, tf.convert_to_tensor)
    outputs = model(prepare_inputs(tensors), training=False)
    return to_array(outputs)


def training_outputs(
    model: keras.Model, inputs: Batch, labels: Array, gpu: int | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the outputs of a model in training mode for input arrays, and labels as a tensor."""
    del gpu  # TensorFlow chooses the device
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
one for the loss with the first sample's labels, one for the loss with the second sample's.
Otherwise empty."""


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


NORM_EPSILON = 1e-5
"""Epsilon that normalization layers add to the variance."""


def build_layers(layers: Sequence[Layer], input_shape: Shape) -> list[keras.layers.Layer]:
    """Build a Keras layer from each description of a layer, for samples of shape `input_shape`."""
    befores = [input_shape, *output_shapes(layers, input_shape)]
    pairs = zip(layers, befores, strict=False)
    return [_LAYERS[type(layer)](layer, before) for layer, before in pairs]


def input_type(layers: Sequence[Layer]) -> str | None:
    """Return the type of the model's inputs: `int64` for tokens, None for Keras's default."""
    is_embedded = isinstance(layers[0], description.Embedding | description.MeanEmbedding)
    return "int64" if is_embedded else None


class KerasMeanEmbedding(keras.layers.Layer):
    """Mean of the embeddings of a text's tokens, without padding tokens; 0 if all are padding."""

    def __init__(self, vocabulary: int, size: int) -> None:
        super().__init__()
        self.weight = self.add_weight(shape=(vocabulary, size))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return outputs of shape (N, size) for inputs of shape (N, tokens)."""
        counts = tf.cast(inputs != 0, self.compute_dtype)[..., None]
        vectors = tf.gather(tf.cast(self.weight, self.compute_dtype), inputs)
        number = tf.maximum(tf.reduce_sum(counts, axis=1), 1)
        return tf.reduce_sum(vectors * counts, axis=1) / number


class KerasPositions(keras.layers.Layer):
    """Adds a learned vector to each position of a sequence."""

    def __init__(self, tokens: int, size: int) -> None:
        super().__init__()
        self.weight = self.add_weight(shape=(tokens, size))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return inputs of shape (N, tokens, size) plus the vectors, in the same shape."""
        return inputs + tf.cast(self.weight, inputs.dtype)


class KerasCausalAttention(keras.layers.Layer):
    """Causal self-attention: each token attends to itself and to earlier tokens."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.joined = keras.layers.Dense(3 * size)
        self.last = keras.layers.Dense(size)
        for dense in (self.joined, self.last):
            dense.build((None, None, size))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return outputs in the shape of the inputs, (N, tokens, size)."""
        count, tokens, size = tf.shape(inputs)[0], inputs.shape[1], inputs.shape[2]
        width = size // self._heads
        joined = tf.reshape(self.joined(inputs), (count, tokens, 3, self._heads, width))
        queries, keys, values = tf.unstack(tf.transpose(joined, (2, 0, 3, 1, 4)))
        scores = tf.matmul(queries * width**-0.5, keys, transpose_b=True)
        is_before = tf.linalg.band_part(tf.ones((tokens, tokens), tf.bool), -1, 0)
        shares = tf.nn.softmax(tf.where(is_before, scores, scores.dtype.min))
        means = tf.transpose(tf.matmul(shares, values), (0, 2, 1, 3))
        return self.last(tf.reshape(means, (count, tokens, size)))


class KerasResidual(keras.layers.Layer):
    """Residual connection: adds the input of some layers to their output."""

    def __init__(self, layers: Sequence[Layer], before: Shape) -> None:
        super().__init__()
        self.layers = build_layers(layers, before)
        shapes = [before, *output_shapes(layers, before)]
        for layer, shape in zip(self.layers, shapes, strict=False):
            layer.build((None, *shape))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the sum, in the shape of the inputs."""
        outputs = inputs
        for layer in self.layers:
            outputs = layer(outputs)
        return inputs + outputs


_LAYERS: dict[type[Any], Callable[[Any, Shape], keras.layers.Layer]] = {
    description.Conv: lambda layer, before: keras.layers.Conv2D(
        layer.filters, layer.kernel, padding=layer.padding
    ),
    description.DepthwiseConv: lambda layer, before: keras.layers.DepthwiseConv2D(
        layer.kernel, depth_multiplier=layer.multiplier, padding=layer.padding
    ),
    description.MaxPool: lambda layer, before: keras.layers.MaxPooling2D(layer.size),
    description.ReLU: lambda layer, before: keras.layers.ReLU(),
    description.Flatten: lambda layer, before: keras.layers.Flatten(),
    description.Dense: lambda layer, before: keras.layers.Dense(layer.units),
    description.Dropout: lambda layer, before: keras.layers.Dropout(layer.rate),
    description.GELU: lambda layer, before: keras.layers.Activation("gelu"),
    description.GroupNorm: lambda layer, before: keras.layers.GroupNormalization(
        layer.groups, epsilon=NORM_EPSILON
    ),
    description.LayerNorm: lambda layer, before: keras.layers.LayerNormalization(
        epsilon=NORM_EPSILON
    ),
    description.GlobalAveragePool: lambda layer, before: (
        keras.layers.GlobalAveragePooling2D()
        if len(before) == 3
        else keras.layers.GlobalAveragePooling1D()
    ),
    description.Embedding: lambda layer, before: keras.layers.Embedding(
        layer.vocabulary, layer.size
    ),
    description.MeanEmbedding: lambda layer, before: KerasMeanEmbedding(
        layer.vocabulary, layer.size
    ),
    description.Positions: lambda layer, before: KerasPositions(*before),
    description.CausalAttention: lambda layer, before: KerasCausalAttention(
        before[-1], layer.heads
    ),
    description.Residual: lambda layer, before: KerasResidual(layer.layers, before),
}
"""Functions that build a Keras layer from the description of a layer and the layer's input shape,
keyed by class of the description."""


STATISTICS = ("moving_mean", "moving_variance")
"""Names of the variables with the moving statistics of batch normalization."""
SENT = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
"""Types that TensorFlow can sum over workers."""


class AveragedStatistics:
    """Callable that makes the non-trainable variables of a model equal on all workers.

    Forward passes may have changed these variables differently on each worker. The moving means and
    variances of batch normalization are averaged over the workers; other variables, such as a
    codebook or a queue, are copied from rank 0. Training does not read the moving statistics, so a
    call is needed only before the model is evaluated or saved. Collective: all workers must call
    it.
    """

    def __init__(self, model: keras.Model, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        # `non_trainable_weights` leaves out random states, which must differ between workers.
        changing = [variable for variable in model.non_trainable_weights if variable.dtype in SENT]
        self._variables = [variable for variable in changing if variable.name in STATISTICS]
        self._others = [variable for variable in changing if variable.name not in STATISTICS]
        self._traced = tf.function(lambda: strategy.run(self._average))

    def __call__(self) -> None:
        """Update the variables of every worker and replica."""
        if self._variables + self._others and self._strategy.num_replicas_in_sync > 1:
            self._traced()

    def _average(self) -> None:
        """Update the variables of one replica; runs on each replica, inside a `tf.function`."""
        context = tf.distribute.get_replica_context()
        is_first = tf.equal(context.replica_id_in_sync_group, 0)
        own_values = [tf.identity(variable.value) for variable in self._variables]
        firsts = [
            tf.where(is_first, variable.value, tf.zeros_like(variable.value))
            for variable in self._others
        ]
        with unregister_new_gradient_functions():
            means = (
                context.all_reduce(tf.distribute.ReduceOp.MEAN, own_values) if own_values else []
            )
            sums = [context.all_reduce(tf.distribute.ReduceOp.SUM, first) for first in firsts]
        for variable, value in zip(self._variables + self._others, [*means, *sums], strict=True):
            variable.assign(value)


def synchronize(model: keras.Model) -> None:
    """Make every batch normalization layer of a model use the samples of all workers."""
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True
