"""A user's Keras model tried on a few samples, and how a model begins, before any worker starts.
Mirrors torch's.
"""

import keras
import numpy as np
import tensorflow as tf

from raybench.data.inputs import Batch, each, shown
from raybench.models.base import Workload
from raybench.spec.run import RunSpec
from raybench.training import probe
from raybench.training.probe import Array
from raybench.training.tensorflow import model as keras_model
from raybench.training.tensorflow.internals import all_layers
from raybench.training.tensorflow.model import Inputs, prepare_inputs


class Trial(probe.Trial):
    """A model tried in Keras."""

    framework, model_words = "TensorFlow", "Keras"
    module, builder = keras_model, "build_keras"
    model_type, type_words = keras.Model, "keras.Model"

    def _has_gpu(self) -> bool:
        return bool(tf.config.list_physical_devices("GPU"))

    def _check_sizes(self, model: keras.Model) -> None:
        if not model.built:
            raise self._error(
                "its Keras model is not built yet; begin it with "
                f"keras.Input({shown(self.workload.input_shape)}), or call its build in "
                "build_keras."
            )

    def _tensors(
        self, model: keras.Model, inputs: Batch, labels: Array
    ) -> tuple[keras.Model, Inputs, tf.Tensor]:
        return model, prepare_inputs(each(inputs, tf.constant)), tf.constant(labels)

    def _forward(self, model: keras.Model, batch: Inputs, training: bool) -> object:
        return model(batch, training=training)

    def _refused_kind(self, outputs: object) -> str | None:
        if not isinstance(outputs, tf.Tensor):
            return type(outputs).__name__
        return None if outputs.dtype.is_floating else str(outputs.dtype.name)

    def _gradients(
        self, model: keras.Model, batch: Inputs, answers: tf.Tensor, losses: tf.Tensor
    ) -> dict[str, Array | None]:
        """Return every trainable variable's gradient, by a traced step of any batch size.

        Training traces so; code that needs values in Python, or a fixed batch size, fails here.
        """
        del losses

        def step(inputs: Inputs, labels: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                outputs = model(inputs, training=True)
                total = tf.reduce_sum(self.losses.losses(outputs, labels))
            gradients = tape.gradient(total, [v.value for v in model.trainable_variables])
            used.extend(gradient is not None for gradient in gradients)
            return [tf.convert_to_tensor(one) for one in gradients if one is not None]

        used: list[bool] = []  # known while it is traced, once
        signature = each(batch, _any_rows), _any_rows(answers)
        values = iter(tf.function(step, input_signature=signature)(batch, answers))
        arrays = [self._array(next(values)) if is_used else None for is_used in used]
        names = [variable.path for variable in model.trainable_variables]
        return dict(zip(names, arrays, strict=True))

    def _array(self, tensor: tf.Tensor) -> Array:
        return np.asarray(tf.cast(tensor, tf.float32))


def _any_rows(tensor: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


SLOW = 0.99
"""Momentum, Keras's own, of which short trainings see the end; torch's would be 0.9."""
FORGOTTEN = 5.0
"""Time constants until the statistics that a layer began with count for less than a hundredth:
each of dozens of layers scales its outputs by what is left of them."""


def check_built(model: keras.Model, workload: Workload, spec: RunSpec) -> list[str]:
    """Return a sentence where evaluations lag far behind training."""
    kinds = keras.layers.BatchNormalization
    slowest = max((one.momentum for one in all_layers(model) if isinstance(one, kinds)), default=0)
    if slowest < SLOW or spec.weights != "none":
        return []
    steps = round(FORGOTTEN / (1 - slowest))
    return [
        f"Workload {workload.name}: its batch normalisation has momentum {slowest:g}, so without "
        f"weights it is evaluated near chance for the first {steps:,} steps or so; begin with "
        "weights, or take another network."
    ]
