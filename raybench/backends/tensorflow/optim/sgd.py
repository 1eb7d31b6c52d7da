"""SGD with momentum for Keras, in torch's form."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from raybench.backends.tensorflow.optim.kernels import apply_momentum


@keras.saving.register_keras_serializable(package="raybench")
class Sgd(keras.optimizers.Optimizer):
    """SGD with momentum, learning rate outside the buffer, and weight decay as an L2 penalty.

        b <- momentum b + g + wd w
        w <- w - lr b

    keras.optimizers.SGD keeps lr inside its buffer (b <- momentum b - lr g): after the rate has
    changed, its next steps still carry the old one, and it leaves torch.optim.SGD's path. Its
    weight decay is decoupled. This one is torch's, so that a schedule means the same in both
    frameworks. Biases and norm parameters (ndim <= 1) are left out of weight decay while
    `exclude_1d` holds.
    """

    def __init__(
        self,
        learning_rate: float = 0.01,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        exclude_1d: bool = True,
        **base: Any,
    ) -> None:
        # Keras must not see the weight decay: its own is decoupled, and would come on top.
        super().__init__(learning_rate=learning_rate, **base)
        self.momentum = momentum
        self.decay_rate = weight_decay
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
        gradient = tf.cast(tf.convert_to_tensor(gradient), variable.dtype)
        excluded = self.exclude_1d and len(variable.shape) <= 1
        if self.decay_rate and not excluded:
            gradient += self.decay_rate * variable
        apply_momentum(
            variable,
            gradient,
            self._buffers[self._get_variable_index(variable)].value,
            learning_rate=ops.convert_to_tensor(learning_rate),
            momentum=self.momentum,
        )

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return super().get_config() | {
            "momentum": self.momentum,
            "weight_decay": self.decay_rate,
            "exclude_1d": self.exclude_1d,
        }
