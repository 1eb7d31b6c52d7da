"""SGD with momentum for Keras, in torch's form."""

from __future__ import annotations

import keras
import tensorflow as tf

from raybench.backends.tensorflow.optim.base import Optimizer, Rates
from raybench.backends.tensorflow.optim.kernels import apply_momentum


@keras.saving.register_keras_serializable(package="raybench")
class Sgd(Optimizer):
    """SGD with momentum, learning rate outside the buffer, and weight decay as an L2 penalty.

        b <- momentum b + g + wd w
        w <- w - lr b                           (with `nesterov`: lr (g + wd w + momentum b))

    keras.optimizers.SGD keeps lr inside its buffer (b <- momentum b - lr g): after the rate has
    changed, its next steps still carry the old one, and it leaves torch.optim.SGD's path. Its
    weight decay is decoupled. This one is torch's, so that a schedule means the same in both
    frameworks. Biases and norm parameters (ndim <= 1) are left out of weight decay while
    `exclude_1d` holds.
    """

    STATES = ("momentum_buffer",)
    SETTINGS = {"momentum": 0.9, "nesterov": False}

    def update(
        self, variable: tf.Variable, gradient: tf.Tensor, states: list[tf.Variable], rates: Rates
    ) -> None:
        """Take one step with one variable."""
        if rates.weight_decay:
            gradient += rates.weight_decay * variable
        (buffer,) = states
        apply_momentum(
            variable,
            gradient,
            buffer,
            learning_rate=rates.learning_rate,
            momentum=self.momentum,
            nesterov=self.nesterov,
        )
