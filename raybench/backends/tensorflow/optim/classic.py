"""SGD, LARS, Adam, RAdam, NAdamW and LAMB for Keras, in torch's form. Mirrors torch's."""

from __future__ import annotations

from typing import ClassVar

import keras
import tensorflow as tf

from raybench.backends.tensorflow.optim.kernels import (
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


@keras.saving.register_keras_serializable(package="raybench")
class Adam(Optimizer):
    """Adam (Kingma, Ba 2014, arXiv:1412.6980, Algorithm 1), decoupled weight decay (1711.05101).

        m, v as in the paper;  w <- (1 - lr wd) w
        w <- w - lr m_hat / (sqrt(v_hat) + epsilon)

    keras.optimizers.Adam adds epsilon to sqrt(v) instead of sqrt(v_hat), which makes it 32 times
    larger at the first step (beta2 = 0.999) and its small gradients leave torch.optim.Adam's path;
    it also takes many passes over memory where TensorFlow's own fused operation, used here, takes
    one. Biases and norm parameters (ndim <= 1) are left out of weight decay while `exclude_1d`
    holds.
    """

    STATES = ("exp_avg", "exp_avg_sq")
    SETTINGS = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
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
    """AdamW with Nesterov's momentum (Dozat 2016), as in AlgoPerf (Dahl et al. 2023, 2306.07179).

        m, v, v_hat as in Adam;  w <- (1 - lr wd) w
        n_hat = (beta1 m + (1 - beta1) g) / (1 - beta1^t)
        w <- w - lr n_hat / (sqrt(v_hat) + epsilon)

    So do AlgoPerf's baseline and timm's NAdamW. torch.optim.NAdam and keras.optimizers.Nadam let
    the momentum grow by a schedule of Dozat's, at two different paces. Biases and norm parameters
    (ndim <= 1) are left out of weight decay while `exclude_1d` holds.
    """

    NESTEROV = True


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
