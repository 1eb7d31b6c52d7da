"""RAdam for Keras: Adam that waits until its second moment can be trusted."""

from __future__ import annotations

import keras
import tensorflow as tf

from raybench.backends.tensorflow.optim.adam import Adam
from raybench.backends.tensorflow.optim.kernels import adam_scalars, bias_corrections


@keras.saving.register_keras_serializable(package="raybench")
class RAdam(Adam):
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

    def scalars(self, kind: tf.DType, step: tf.Tensor, rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return step size and epsilon."""
        rectified, term = rectification_term(step, self.beta2)
        _, correction2 = bias_corrections(step, beta1=self.beta1, beta2=self.beta2)
        # Where not rectified, an epsilon that drowns sqrt(v_hat) leaves lr m_hat: no branch needed.
        drown = tf.constant(1e20, tf.float64)
        return adam_scalars(
            kind,
            step=step,
            learning_rate=rate * tf.where(rectified, term, drown),
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=tf.where(rectified, self.epsilon / tf.sqrt(correction2), drown),
        )


def rectification_term(step: tf.Tensor, beta2: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Whether rho_t > 5, and r_t (meaningless where not). float64: rho_t is a small difference."""
    rho_inf = 2 / (1 - beta2) - 1
    power = tf.pow(tf.constant(beta2, tf.float64), step)
    rho = rho_inf - 2 * step * power / (1 - power)
    squared = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
    rectified = rho > 5
    return rectified, tf.sqrt(tf.where(rectified, squared, tf.ones_like(squared)))
