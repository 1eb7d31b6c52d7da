"""NAdamW for Keras: AdamW whose direction looks ahead."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import ops

from raybench.backends.tensorflow.optim.base import Optimizer, Rates, decay
from raybench.backends.tensorflow.optim.kernels import apply_adam


@keras.saving.register_keras_serializable(package="raybench")
class NAdamW(Optimizer):
    """AdamW with Nesterov's momentum (Dozat 2016), as in AlgoPerf (Dahl et al. 2023, 2306.07179).

        m, v, v_hat as in Adam;  w <- (1 - lr wd) w
        n_hat = (beta1 m + (1 - beta1) g) / (1 - beta1^t)
        w <- w - lr n_hat / (sqrt(v_hat) + epsilon)

    So do AlgoPerf's baseline and timm's NAdamW. torch.optim.NAdam and keras.optimizers.Nadam let
    the momentum grow by a schedule of Dozat's, at two different paces. Biases and norm parameters
    (ndim <= 1) are left out of weight decay while `exclude_1d` holds.
    """

    STATES = ("exp_avg", "exp_avg_sq")
    SETTINGS = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}

    def update(
        self, variable: tf.Variable, gradient: tf.Tensor, states: list[tf.Variable], rates: Rates
    ) -> None:
        """Take one step with one variable."""
        decay(variable, rates)
        apply_adam(
            variable,
            gradient,
            *states,
            step=ops.cast(self.iterations + 1, "float64"),
            learning_rate=rates.learning_rate,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            nesterov=True,
        )
