"""LAMB for Keras: Adam's direction, scaled layer by layer to the size of the weights."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from raybench.backends.tensorflow.optim.kernels import bias_corrections, update_moments


@keras.saving.register_keras_serializable(package="raybench")
class Lamb(keras.optimizers.Optimizer):
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

    def __init__(
        self,
        learning_rate: float = 0.001,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.0,
        exclude_1d: bool = True,
        **base: Any,
    ) -> None:
        # Keras must not see the weight decay: its own is decoupled, and would come on top.
        super().__init__(learning_rate=learning_rate, **base)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.decay_rate = weight_decay
        self.exclude_1d = exclude_1d

    def build(self, variables: list[keras.Variable]) -> None:
        """Create both moments for each variable."""
        if self.built:
            return
        super().build(variables)
        self._exp_avgs, self._exp_avg_sqs = self.add_optimizer_variables(
            variables, ["exp_avg", "exp_avg_sq"]
        )

    def update_step(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: keras.Variable
    ) -> None:
        """Update one variable; called by `apply` for each."""
        dtype = variable.dtype
        index = self._get_variable_index(variable)
        exp_avg, exp_avg_sq = self._exp_avgs[index].value, self._exp_avg_sqs[index].value
        gradient = tf.cast(tf.convert_to_tensor(gradient), dtype)
        update_moments(gradient, exp_avg, exp_avg_sq, beta1=self.beta1, beta2=self.beta2)
        correction1, correction2 = bias_corrections(
            ops.cast(self.iterations + 1, "float64"), beta1=self.beta1, beta2=self.beta2
        )
        # m_hat / (sqrt(v_hat) + epsilon) with both corrections in two scalars.
        scale = tf.cast(tf.sqrt(correction2) / correction1, dtype)
        epsilon = tf.cast(self.epsilon * tf.sqrt(correction2), dtype)
        update = scale * exp_avg / (tf.sqrt(exp_avg_sq) + epsilon)
        step_size = ops.cast(learning_rate, dtype)
        if not (self.exclude_1d and len(variable.shape) <= 1):
            if self.decay_rate:
                update += self.decay_rate * variable
            weight_norm, update_norm = tf.norm(variable), tf.norm(update)
            step_size *= tf.where(
                (weight_norm > 0) & (update_norm > 0),
                weight_norm / update_norm,
                tf.ones_like(weight_norm),
            )
        variable.assign_sub(step_size * update)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return super().get_config() | {
            "beta1": self.beta1,
            "beta2": self.beta2,
            "epsilon": self.epsilon,
            "weight_decay": self.decay_rate,
            "exclude_1d": self.exclude_1d,
        }
