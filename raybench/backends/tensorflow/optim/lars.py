"""LARS for Keras: SGD with momentum and a learning rate per layer."""

from __future__ import annotations

import keras
import tensorflow as tf

from raybench.backends.tensorflow.optim.base import Optimizer, Rates
from raybench.backends.tensorflow.optim.kernels import apply_momentum


@keras.saving.register_keras_serializable(package="raybench")
class Lars(Optimizer):
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

    STATES = ("momentum_buffer",)
    SETTINGS = {"momentum": 0.9, "trust_coefficient": 0.001}

    def update(
        self, variable: tf.Variable, gradient: tf.Tensor, states: list[tf.Variable], rates: Rates
    ) -> None:
        """Take one step with one variable."""
        if not rates.excluded:
            weight_norm = tf.norm(variable)
            denominator = tf.norm(gradient) + rates.weight_decay * weight_norm
            ratio = tf.where(
                (weight_norm > 0) & (denominator > 0),
                self.trust_coefficient * weight_norm / denominator,
                tf.ones_like(weight_norm),
            )
            if rates.weight_decay:
                gradient += rates.weight_decay * variable
            gradient *= ratio
        (buffer,) = states
        apply_momentum(
            variable, gradient, buffer, learning_rate=rates.learning_rate, momentum=self.momentum
        )
