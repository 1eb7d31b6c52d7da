"""RAdam for Keras: Adam that waits until its second moment can be trusted."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from raybench.backends.tensorflow.optim.kernels import apply_adam, bias_corrections


@keras.saving.register_keras_serializable(package="raybench")
class RAdam(keras.optimizers.Optimizer):
    """Rectified Adam (Liu et al. 2019, arXiv:1908.03265, Algorithm 2), decoupled weight decay.

        m, v, m_hat as in Adam;  w <- (1 - lr wd) w
        rho_inf = 2 / (1 - beta2) - 1
        rho_t = rho_inf - 2 t beta2^t / (1 - beta2^t)
        rho_t > 5:  w <- w - lr r_t m_hat sqrt(1 - beta2^t) / (sqrt(v) + epsilon),
            r_t^2 = (rho_t - 4)(rho_t - 2) rho_inf / ((rho_inf - 4)(rho_inf - 2) rho_t)
        otherwise:  w <- w - lr m_hat

    The threshold 5 (the paper says 4) and the place of epsilon are those of the authors' code and
    of torch.optim.RAdam. Biases and norm parameters (ndim <= 1) are left out of weight decay while
    `exclude_1d` holds.
    """

    def __init__(
        self,
        learning_rate: float = 0.001,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        exclude_1d: bool = True,
        **base: Any,
    ) -> None:
        # Keras would decay biases too: its exclusion works by name or by given variables only.
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
        index = self._get_variable_index(variable)
        lr = ops.cast(learning_rate, "float64")
        if self.decay_rate and not (self.exclude_1d and len(variable.shape) <= 1):
            variable.assign(variable * tf.cast(1 - lr * self.decay_rate, variable.dtype))
        step = ops.cast(self.iterations + 1, "float64")
        rectified, term = rectification_term(step, self.beta2)
        _, correction2 = bias_corrections(step, beta1=self.beta1, beta2=self.beta2)
        # Where not rectified, an epsilon that drowns sqrt(v_hat) leaves lr m_hat: no branch needed.
        drown = tf.constant(1e20, tf.float64)
        apply_adam(
            variable,
            tf.cast(tf.convert_to_tensor(gradient), variable.dtype),
            self._exp_avgs[index].value,
            self._exp_avg_sqs[index].value,
            step=step,
            learning_rate=lr * tf.where(rectified, term, drown),
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=tf.where(rectified, self.epsilon / tf.sqrt(correction2), drown),
        )

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return super().get_config() | {
            "beta1": self.beta1,
            "beta2": self.beta2,
            "epsilon": self.epsilon,
            "weight_decay": self.decay_rate,
            "exclude_1d": self.exclude_1d,
        }


def rectification_term(step: tf.Tensor, beta2: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Whether rho_t > 5, and r_t (meaningless where not). float64: rho_t is a small difference."""
    rho_inf = 2 / (1 - beta2) - 1
    power = tf.pow(tf.constant(beta2, tf.float64), step)
    rho = rho_inf - 2 * step * power / (1 - power)
    squared = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
    rectified = rho > 5
    return rectified, tf.sqrt(tf.where(rectified, squared, tf.ones_like(squared)))
