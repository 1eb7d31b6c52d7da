"""Check of a Keras model on a few samples. Mirrors torch/model_check.py."""

import keras
import numpy as np
import tensorflow as tf

from raybench.data.inputs import Batch, each, shown
from raybench.training.model_check import Array, BaseModelCheck
from raybench.training.tensorflow import model as keras_model
from raybench.training.tensorflow.model import Inputs, prepare_inputs

NOT_CALLED = ("train_step", "compute_loss", "make_train_function", "fit")
"""Methods by which Keras trains a model, which raybench's loop does not call."""
NOT_MEASURED = ("test_step", "compute_metrics")
COMPILED = {"loss": "", "compile_metrics": "compiled metrics"}
"""Names that `compile` adds to a model's metrics, and what warnings call them; `loss` is not
mentioned."""
MAX_DIFFERENCE = 1e-3
"""Relative difference allowed between the loss of a batch and the mean over its samples."""


class ModelCheck(BaseModelCheck):
    """Check of a model in Keras."""

    framework, model_words = "TensorFlow", "Keras"
    module, builder = keras_model, "build_keras"
    model_type, type_words = keras.Model, "keras.Model"

    def _check_model(self, model: keras.Model) -> None:
        if self.losses.hook("loss") is None:
            self._check_trained_alike(model)
            self.losses.use_model_loss(keras_model.compiled_loss(model))
        if not model.built:
            raise self._error(
                "its Keras model is not built yet; begin it with "
                f"keras.Input({shown(self.workload.input_shape)}), or call its build in "
                "build_keras."
            )

    def _check_trained_alike(self, model: keras.Model) -> None:
        """Raise UserError for a model that overrides a training method of Keras (NOT_CALLED) or is
        compiled without a loss."""
        own = [name for name in NOT_CALLED if _is_own(model, name)]
        if own or (model.compiled and model.loss is None):
            found = f"has a {own[0]} of its own" if own else "is compiled without a loss"
            raise self._error(
                f"its Keras model {found}, which raybench's training loop does not call; write the "
                "loss of each sample as keras_loss, or give a training loop of your own with "
                "raybench.integrations.Keras."
            )

    def _model_warnings(self, model: keras.Model) -> list[str]:
        unused = [name for name in (*NOT_CALLED, *NOT_MEASURED) if _is_own(model, name)]
        unused += ["optimizer"] if model.compiled and model.optimizer is not None else []
        unused += [COMPILED.get(one.name, f"metric {one.name}") for one in model.metrics]
        unused = [one for one in unused if one]
        if not unused:
            return []
        return [
            f"Workload {self.workload.name}: its Keras model's {', '.join(unused)} "
            f"{'is' if len(unused) == 1 else 'are'} not used: the run's optimizer trains it, and "
            "objective.metric or keras_metric measures it."
        ]

    def _check_mean(self, model: keras.Model, batch: Inputs, answers: tf.Tensor) -> None:
        """Raise UserError if a batch's compiled loss is not the mean of its samples' losses."""
        outputs = model(batch, training=False)
        mean = tf.reduce_mean(self.losses.losses(outputs, answers)) + keras_model.added_loss(model)
        whole = tf.cast(model.compute_loss(x=batch, y=answers, y_pred=outputs), tf.float32)
        if abs(float(whole - mean)) > MAX_DIFFERENCE * max(abs(float(whole)), 1e-3):
            raise self._error(
                f"its compiled loss gives {float(whole):.4g} for a batch whose samples' losses "
                f"have the mean {float(mean):.4g} (a reduction or weights of its own); write the "
                "loss of each sample as keras_loss."
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
        """Return the gradient of every trainable variable by path; None for those without one.

        The step is traced for any batch size, as in training, so models that need values in Python
        or a fixed batch size fail here.
        """
        del losses
        if self.losses.hook("loss") is not None and self.workload.keras_loss is None:
            self._check_mean(model, batch, answers)

        def step(inputs: Inputs, labels: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                outputs = model(inputs, training=True)
                total = tf.reduce_sum(self.losses.losses(outputs, labels))
                total += keras_model.added_loss(model)
            gradients = tape.gradient(total, [v.value for v in model.trainable_variables])
            used.extend(gradient is not None for gradient in gradients)
            return [tf.convert_to_tensor(one) for one in gradients if one is not None]

        used: list[bool] = []  # filled while tracing
        signature = each(batch, _any_rows), _any_rows(answers)
        values = iter(tf.function(step, input_signature=signature)(batch, answers))
        arrays = [self._array(next(values)) if is_used else None for is_used in used]
        names = [variable.path for variable in model.trainable_variables]
        return dict(zip(names, arrays, strict=True))

    def _array(self, tensor: tf.Tensor) -> Array:
        return np.asarray(tf.cast(tensor, tf.float32))


def _is_own(model: keras.Model, name: str) -> bool:
    """Return whether a model overrides a method of Keras."""
    method = getattr(model, name)
    return getattr(method, "__func__", method) is not getattr(keras.Model, name)


def _any_rows(tensor: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)
