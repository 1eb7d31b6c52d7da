"""Adam for Keras, in torch's form."""

from __future__ import annotations

from typing import ClassVar

import keras
import tensorflow as tf

from raybench.backends.tensorflow.optim.base import Optimizer, Rates, decay
from raybench.backends.tensorflow.optim.kernels import adam_scalars, apply_adam


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
