"""LARS for Keras: SGD with momentum and a learning rate per layer."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from raybench.backends.tensorflow.optim.kernels import apply_momentum


@keras.saving.register_keras_serializable(package="raybench")
class Lars(keras.optimizers.Optimizer):
    """Layer-wise adaptive rate scaling (You, Gitman, Ginsburg 2017, arXiv:1708.03888).

        ratio = trust_coefficient |w| / (|g| + wd |w|)
        b <- momentum b + ratio (g + wd w)
        w <- w - lr b

    The ratio is 1 where |w| or the denominator is 0. Biases and norm parameters (ndim <= 1) take
    plain momentum steps without weight decay while `exclude_1d` holds.

    The paper (Algorithm 1) puts lr inside the buffer, b <- momentum b + lr ratio (g + wd w). The
    two agree under a constant rate; under a changing one, ours scales the whole buffer by the
    present rate, as the torch backend and torch.optim.SGD do.
    """

    def __init__(
        self,
        learning_rate: float = 1.0,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        exclude_1d: bool = True,
        **base: Any,
    ) -> None:
        # Keras must not see the weight decay: its own is decoupled, and would come on top.
        super().__init__(learning_rate=learning_rate, **base)
        self.momentum = momentum
        self.decay_rate = weight_decay
        self.trust_coefficient = trust_coefficient
        self.exclude_1d = exclude_1d

    def build(self, variables: list[keras.Variable]) -> None:
        """Create one momentum buffer for each variable."""
        if self.built:
            return
        super().build(variables)
        self._buffers = self.add_optimizer_variables(variables, "momentum_buffer")

    def update_step(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: keras.Variable
    ) -> None:
        """Update one variable; called by `apply` for each."""
        update = tf.cast(tf.convert_to_tensor(gradient), variable.dtype)
        if not (self.exclude_1d and len(variable.shape) <= 1):
            weight_norm = tf.norm(variable)
            denominator = tf.norm(update) + self.decay_rate * weight_norm
            ratio = tf.where(
                (weight_norm > 0) & (denominator > 0),
                self.trust_coefficient * weight_norm / denominator,
                tf.ones_like(weight_norm),
            )
            if self.decay_rate:
                update += self.decay_rate * variable
            update *= ratio
        apply_momentum(
            variable,
            update,
            self._buffers[self._get_variable_index(variable)].value,
            learning_rate=ops.convert_to_tensor(learning_rate),
            momentum=self.momentum,
        )

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return super().get_config() | {
            "momentum": self.momentum,
            "weight_decay": self.decay_rate,
            "trust_coefficient": self.trust_coefficient,
            "exclude_1d": self.exclude_1d,
        }
