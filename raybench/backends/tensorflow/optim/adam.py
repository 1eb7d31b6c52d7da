"""Adam for Keras, in torch's form."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from raybench.backends.tensorflow.optim.kernels import apply_adam


@keras.saving.register_keras_serializable(package="raybench")
class Adam(keras.optimizers.Optimizer):
    """Adam (Kingma, Ba 2014, arXiv:1412.6980, Algorithm 1), decoupled weight decay (1711.05101).

        m, v as in the paper;  w <- (1 - lr wd) w
        w <- w - lr m_hat / (sqrt(v_hat) + epsilon)

    keras.optimizers.Adam adds epsilon to sqrt(v) instead of sqrt(v_hat), which makes it 32 times
    larger at the first step (beta2 = 0.999) and its small gradients leave torch.optim.Adam's path;
    it also takes many passes over memory where TensorFlow's own fused operation, used here, takes
    one. Biases and norm parameters (ndim <= 1) are left out of weight decay while `exclude_1d`
    holds.
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
        apply_adam(
            variable,
            tf.cast(tf.convert_to_tensor(gradient), variable.dtype),
            self._exp_avgs[index].value,
            self._exp_avg_sqs[index].value,
            step=ops.cast(self.iterations + 1, "float64"),
            learning_rate=lr,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
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
