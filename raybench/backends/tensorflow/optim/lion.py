"""Lion for Keras: momentum of which the sign alone counts."""

from __future__ import annotations

import keras
import tensorflow as tf

from raybench.backends.tensorflow.optim.base import Optimizer, Rates, decay


@keras.saving.register_keras_serializable(package="raybench")
class Lion(Optimizer):
    """Evolved sign momentum (Chen et al. 2023, arXiv:2302.06675, Algorithm 2).

        c = beta1 m + (1 - beta1) g
        w <- w - lr (sign(c) + wd w)
        m <- beta2 m + (1 - beta2) g

    Every weight moves by lr, so that its usual rates are 3 to 10 times below those of AdamW, and
    its weight decay as much above. keras.optimizers.Lion is the same, with weight decay on biases
    too. These and norm parameters (ndim <= 1) are left out here while `exclude_1d` holds.
    """

    STATES = ("exp_avg",)
    SETTINGS = {"beta1": 0.9, "beta2": 0.99}

    def update(
        self, variable: tf.Variable, gradient: tf.Tensor, states: list[tf.Variable], rates: Rates
    ) -> None:
        """Take one step with one variable."""
        (exp_avg,) = states
        # As torch's lerp: what is 0 in one framework must not be a rounding error in the other.
        difference = gradient - exp_avg
        sign = tf.sign(exp_avg + (1 - self.beta1) * difference)
        decay(variable, rates)
        variable.assign_sub(rates.learning_rate * sign)
        exp_avg.assign_add((1 - self.beta2) * difference)
