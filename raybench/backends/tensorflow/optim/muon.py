"""Muon for Keras: orthogonalised momentum for matrices, convolutions too; AdamW for the rest."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from raybench.backends.tensorflow.optim.base import Optimizer, Rates, decay
from raybench.backends.tensorflow.optim.kernels import adam_scalars, apply_adam
from raybench.backends.tensorflow.optim.matrices import Shape, hidden_matrices
from raybench.backends.tensorflow.optim.orthogonal import orthogonalised

RMS = 0.2
"""Root mean square of an update of AdamW, which those of matrices are given too."""


@keras.saving.register_keras_serializable(package="raybench")
class Muon(Optimizer):
    """Momentum orthogonalised (Jordan et al. 2024, kellerjordan.github.io/posts/muon), scaled as
    by Liu et al. 2025 (arXiv:2502.16982, equation 4).

        b <- momentum b + (1 - momentum) g
        o = orthogonalised((1 - momentum) g + momentum b)
        w <- (1 - lr wd) w - lr 0.2 sqrt(max(rows, columns)) o

    That is for `hidden_matrices`; a convolution is the matrix (height x width x inputs, outputs).
    All others, embeddings, the head, biases and norm parameters, take AdamW's steps. By the scale
    an update of a matrix is as large as one of AdamW, so that one learning rate and one weight
    decay serve both, as there. torch.optim.Muon takes matrices alone, and keras.optimizers.Muon
    leaves convolutions to Adam.

    `model`, whose layers say what is an embedding, is not kept in the configuration.
    """

    STATES = ("exp_avg", "exp_avg_sq")
    SETTINGS = {"momentum": 0.95, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}

    def __init__(
        self, learning_rate: float = 0.001, *, model: keras.Model | None = None, **settings: Any
    ) -> None:
        super().__init__(learning_rate, **settings)
        self._model = model
        self._matrices: dict[int, Shape] = {}

    def build(self, variables: list[keras.Variable]) -> None:
        """Create the states of each variable."""
        if self.built:
            return
        self._matrices = hidden_matrices(self._model, variables)
        self._model = None
        super().build(variables)
        self._shapes = [self._matrices.get(id(variable)) for variable in variables]

    def states_of(self, variable: keras.Variable) -> tuple[str, ...]:
        """Names of the variables kept for a weight."""
        return ("momentum_buffer",) if id(variable) in self._matrices else self.STATES

    def scalars(self, kind: tf.DType, step: tf.Tensor, rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return AdamW's step size and epsilon."""
        settings = {name: getattr(self, name) for name in ("beta1", "beta2", "epsilon")}
        return adam_scalars(kind, step=step, learning_rate=rate, **settings)

    def update(
        self, variable: tf.Variable, gradient: tf.Tensor, states: list[tf.Variable], rates: Rates
    ) -> None:
        """Take one step with one variable."""
        decay(variable, rates)
        shape = self._shapes[self._positions[variable.ref()]]
        if shape is None:
            betas = {"beta1": self.beta1, "beta2": self.beta2}
            apply_adam(variable, gradient, *states, scalars=rates.own, **betas)
            return
        (buffer,) = states
        buffer.assign_add((1 - self.momentum) * (gradient - buffer))
        direction = (1 - self.momentum) * gradient + self.momentum * buffer
        update = tf.reshape(orthogonalised(tf.reshape(direction, shape)), variable.shape)
        rate = rates.learning_rate * (RMS * math.sqrt(max(shape)))
        variable.assign_sub(rate * update)
