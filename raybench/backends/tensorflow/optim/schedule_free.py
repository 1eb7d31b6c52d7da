"""Schedule-Free AdamW for Keras: an average of the weights in place of a schedule."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from raybench.backends.tensorflow.optim.base import Optimizer, Rates


@keras.saving.register_keras_serializable(package="raybench")
class ScheduleFreeAdamW(Optimizer):
    """Defazio et al. 2024 (arXiv:2405.15682), Algorithm 1, as in the authors' AdamWScheduleFree.

        v as in Adam;  u = g / (sqrt(v_hat) + epsilon) + wd y
        z <- z - lr u
        x <- (1 - c) x + c z,  c = lr_max^2 / (sum of lr_max^2 so far), lr_max the largest rate
        y <- (1 - beta1) z + beta1 x

    The weights in training are y, at which gradients are taken; those to be evaluated and saved are
    x, see `weights_and_aheads`. Kept are v and d = z - y, so that all states begin at 0:

        d <- (1 - c) (d - lr beta1 u)
        y <- y + c d - lr (1 - beta1 (1 - c)) u     (with the d of before)
        x = y - (1 / beta1 - 1) d

    keras.optimizers.ScheduleFreeAdamW gives all points the same share, those of the warm-up too,
    and its weight decay moves y alone. Biases and norm parameters (ndim <= 1) are left out of
    weight decay while `exclude_1d` holds. Moving averages of batch normalisation are those of y.
    """

    STATES = ("ahead", "exp_avg_sq")
    SETTINGS = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}

    def build(self, variables: list[keras.Variable]) -> None:
        """Create the states of each variable, and what is counted of the rates."""
        if self.built:
            return
        super().build(variables)
        self.largest_rate, self.rates_squared = (
            self.add_variable((), dtype="float64", aggregation="only_first_replica", name=name)
            for name in ("largest_rate", "rates_squared")
        )

    def scalars(self, kind: tf.DType, step: tf.Tensor, rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return the two of sqrt(v_hat) + epsilon, c, 1 - c, and the rates of y and of d."""
        correction = tf.sqrt(1 - tf.pow(tf.constant(self.beta2, tf.float64), step))
        largest, total = self._counted(rate)
        share = tf.math.divide_no_nan(tf.square(largest), total)
        of_y, of_d = rate * (1 - self.beta1 * (1 - share)), rate * self.beta1
        found = correction, self.epsilon * correction, share, 1 - share, of_y, of_d
        return tuple(tf.cast(one, kind) for one in found)

    def update(
        self, variable: tf.Variable, gradient: tf.Tensor, states: list[tf.Variable], rates: Rates
    ) -> None:
        """Take one step with one variable."""
        (ahead, exp_avg_sq), (scale, epsilon, share, left, of_y, of_d) = states, rates.own
        exp_avg_sq.assign_add((1 - self.beta2) * (tf.square(gradient) - exp_avg_sq))
        update = scale * gradient / (tf.sqrt(exp_avg_sq) + epsilon)
        if rates.weight_decay:
            update += rates.weight_decay * variable
        variable.assign_add(share * ahead - of_y * update)
        ahead.assign(left * (ahead - of_d * update))

    def count(self) -> None:
        """Take in the rate of a step, after its updates; traced, in replica context."""
        largest, total = self._counted(ops.cast(self.learning_rate, "float64"))
        self.largest_rate.assign(largest)
        self.rates_squared.assign(total)

    def weights_and_aheads(self) -> tuple[list[keras.Variable], list[keras.Variable]]:
        """Return all y, and the d of each."""
        return self._trainable_variables, [ahead for ahead, _ in self._states]

    def _counted(self, rate: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the largest rate and the sum of its squares, that of this step included."""
        largest = tf.maximum(self.largest_rate.value, rate)
        return largest, self.rates_squared.value + tf.square(largest)
