"""LAMB for Keras: Adam's direction, scaled layer by layer to the size of the weights."""

from __future__ import annotations

import keras
import tensorflow as tf

from raybench.backends.tensorflow.optim.base import Optimizer, Rates
from raybench.backends.tensorflow.optim.kernels import bias_corrections, update_moments


@keras.saving.register_keras_serializable(package="raybench")
class Lamb(Optimizer):
    """Layer-wise adaptive moments (You et al. 2019, arXiv:1904.00962, Algorithm 2).

        m <- beta1 m + (1 - beta1) g            m_hat = m / (1 - beta1^t)
        v <- beta2 v + (1 - beta2) g^2          v_hat = v / (1 - beta2^t)
        u = m_hat / (sqrt(v_hat) + epsilon) + wd w
        w <- w - lr (|w| / |u|) u

    phi is the identity: norms are not clamped. The ratio is 1 where |w| or |u| is 0. Biases and
    norm parameters (ndim <= 1) take plain Adam steps without weight decay while `exclude_1d`
    holds; adapted, as keras.optimizers.Lamb does, a bias that starts at 0 would hardly ever leave
    it. That one also has its weight decay outside the ratio.
    """

    STATES = ("exp_avg", "exp_avg_sq")
    SETTINGS = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6}

    def scalars(self, kind: tf.DType, step: tf.Tensor, rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return the two of m_hat / (sqrt(v_hat) + epsilon) with both corrections in them."""
        del rate
        correction1, correction2 = bias_corrections(step, beta1=self.beta1, beta2=self.beta2)
        scale = tf.sqrt(correction2) / correction1
        return tf.cast(scale, kind), tf.cast(self.epsilon * tf.sqrt(correction2), kind)

    def update(
        self, variable: tf.Variable, gradient: tf.Tensor, states: list[tf.Variable], rates: Rates
    ) -> None:
        """Take one step with one variable."""
        (exp_avg, exp_avg_sq), (scale, epsilon) = states, rates.own
        update_moments(gradient, exp_avg, exp_avg_sq, beta1=self.beta1, beta2=self.beta2)
        update = scale * exp_avg / (tf.sqrt(exp_avg_sq) + epsilon)
        step_size = rates.learning_rate
        if not rates.excluded:
            if rates.weight_decay:
                update += rates.weight_decay * variable
            weight_norm, update_norm = tf.norm(variable), tf.norm(update)
            step_size *= tf.where(
                (weight_norm > 0) & (update_norm > 0),
                weight_norm / update_norm,
                tf.ones_like(weight_norm),
            )
        variable.assign_sub(step_size * update)
