"""SGD, LARS, Adam, RAdam, NAdamW and LAMB for Keras, in torch's form. Mirrors torch's."""

from __future__ import annotations

from typing import ClassVar

import keras
import tensorflow as tf

from raybench.training.optimizers import DEFAULTS
from raybench.training.tensorflow.optim.kernels import (
    Optimizer,
    Rates,
    adam_scalars,
    apply_adam,
    apply_momentum,
    bias_corrections,
    decay,
    update_moments,
)


@keras.saving.register_keras_serializable(package="raybench")
class Lars(Optimizer):
    """Layer-wise adaptive rate scaling."""

    STATES = ("momentum_buffer",)
    SETTINGS = DEFAULTS["lars"]

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


@keras.saving.register_keras_serializable(package="raybench")
class Sgd(Optimizer):
    """SGD with momentum, the learning rate outside its buffer."""

    STATES = ("momentum_buffer",)
    SETTINGS = DEFAULTS["sgd"]

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


@keras.saving.register_keras_serializable(package="raybench")
class Adam(Optimizer):
    """Adam with decoupled weight decay."""

    STATES = ("exp_avg", "exp_avg_sq")
    SETTINGS = DEFAULTS["adam"]
    NESTEROV: ClassVar[bool] = False
    """Whether the direction looks ahead (NAdamW)."""

    def scalars(self, kind: tf.DType, step: tf.Tensor, rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return step size and epsilon."""
        settings = {name: getattr(self, name) for name in self.SETTINGS}
        return adam_scalars(kind, step=step, learning_rate=rate, **settings)

    def update(
        self, variable: tf.Variable, gradient: tf.Tensor, states: list[tf.Variable], rates: Rates
    ) -> None:
        """Take one step with one variable."""
        decay(variable, rates)
        apply_adam(
            variable,
            gradient,
            *states,
            scalars=rates.own,
            beta1=self.beta1,
            beta2=self.beta2,
            nesterov=self.NESTEROV,
        )


@keras.saving.register_keras_serializable(package="raybench")
class NAdamW(Adam):
    """AdamW with Nesterov's momentum."""

    NESTEROV = True


@keras.saving.register_keras_serializable(package="raybench")
class RAdam(Adam):
    """Rectified Adam."""

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


@keras.saving.register_keras_serializable(package="raybench")
class Lamb(Optimizer):
    """Layer-wise adaptive moments."""

    STATES = ("exp_avg", "exp_avg_sq")
    SETTINGS = DEFAULTS["lamb"]

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
