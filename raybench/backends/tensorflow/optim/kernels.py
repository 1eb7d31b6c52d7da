"""TensorFlow's fused training operations behind two typed functions.

`tf.raw_ops.ResourceApply*` update weight and state in one pass over memory; the keras.ops that
Keras's own optimizers are made of take one pass each. Types without a usable kernel go the plain
way: in bfloat16, beta2 = 0.999 rounds to 1 and the second moment would stay 0.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

FUSED_DTYPES = (tf.float32, tf.float64)


def apply_momentum(
    variable: tf.Variable,
    gradient: tf.Tensor,
    buffer: tf.Variable,
    *,
    learning_rate: tf.Tensor,
    momentum: float,
    nesterov: bool = False,
) -> None:
    """b <- momentum b + g, then w <- w - lr b: the rate stays outside the buffer.

    With `nesterov` w <- w - lr (g + momentum b).
    """
    if variable.dtype in FUSED_DTYPES:
        tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=buffer.handle,
            lr=learning_rate,
            grad=gradient,
            momentum=tf.cast(momentum, variable.dtype),
            use_nesterov=nesterov,
        )
        return
    buffer.assign(momentum * buffer + gradient)
    direction = gradient + momentum * buffer if nesterov else buffer
    variable.assign_sub(learning_rate * direction)


def apply_adam(
    variable: tf.Variable,
    gradient: tf.Tensor,
    exp_avg: tf.Variable,
    exp_avg_sq: tf.Variable,
    *,
    scalars: tuple[tf.Tensor, ...],
    beta1: float,
    beta2: float,
    nesterov: bool = False,
) -> None:
    """w <- w - lr m_hat / (sqrt(v_hat) + epsilon), moments updated in the same pass; `scalars` are
    those of `adam_scalars`.

    With `nesterov` (beta1 m + (1 - beta1) g)_hat takes the place of m_hat.
    """
    dtype, (step_size, scaled_epsilon) = variable.dtype, scalars
    if dtype in FUSED_DTYPES:
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=exp_avg.handle,
            v=exp_avg_sq.handle,
            # Powers of 0 switch off the kernel's own corrections, which it computes in `dtype`.
            beta1_power=tf.zeros((), dtype),
            beta2_power=tf.zeros((), dtype),
            lr=step_size,
            beta1=tf.cast(beta1, dtype),
            beta2=tf.cast(beta2, dtype),
            epsilon=scaled_epsilon,
            grad=gradient,
            use_nesterov=nesterov,
        )
        return
    update_moments(gradient, exp_avg, exp_avg_sq, beta1=beta1, beta2=beta2)
    direction = beta1 * exp_avg + (1 - beta1) * gradient if nesterov else exp_avg
    variable.assign_sub(step_size * direction / (tf.sqrt(exp_avg_sq) + scaled_epsilon))


def adam_scalars(
    dtype: tf.DType,
    *,
    step: tf.Tensor,
    learning_rate: tf.Tensor,
    beta1: float,
    beta2: float,
    epsilon: tf.Tensor | float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return step size and epsilon with the bias corrections in them; once for all variables."""
    if dtype in FUSED_DTYPES:
        # The kernel holds the betas in `dtype`, so the corrections must be those of the rounded
        # betas; else v_hat is off by 1e-5.
        beta1, beta2 = (float(np.asarray(b, dtype.as_numpy_dtype)) for b in (beta1, beta2))
    correction1, correction2 = bias_corrections(step, beta1=beta1, beta2=beta2)
    step_size = learning_rate * tf.sqrt(correction2) / correction1
    return tf.cast(step_size, dtype), tf.cast(epsilon * tf.sqrt(correction2), dtype)


def update_moments(
    gradient: tf.Tensor,
    exp_avg: tf.Variable,
    exp_avg_sq: tf.Variable,
    *,
    beta1: float,
    beta2: float,
) -> None:
    """m <- m + (1 - beta1)(g - m), v <- v + (1 - beta2)(g^2 - v)."""
    exp_avg.assign_add((1 - beta1) * (gradient - exp_avg))
    exp_avg_sq.assign_add((1 - beta2) * (tf.square(gradient) - exp_avg_sq))


def bias_corrections(step: tf.Tensor, *, beta1: float, beta2: float) -> tuple[tf.Tensor, tf.Tensor]:
    """1 - beta1^t and 1 - beta2^t, in the type of `step`."""
    return tuple(1 - tf.pow(tf.constant(beta, step.dtype), step) for beta in (beta1, beta2))


def clip_gradients(gradients: list[tf.Tensor], most: float) -> list[tf.Tensor]:
    """Scale all gradients by one factor, so that the norm of them together is `most` at most.

    Of NaN or infinite gradients they become NaN.
    """
    clipped, _ = tf.clip_by_global_norm(gradients, most)
    return list(clipped)
