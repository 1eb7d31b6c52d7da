"""Lion, Schedule-Free AdamW and Muon for Keras. Mirrors torch's."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from raybench.backends.tensorflow.internals import all_layers
from raybench.backends.tensorflow.optim.kernels import (
    Optimizer,
    Rates,
    adam_scalars,
    apply_adam,
    decay,
)


@keras.saving.register_keras_serializable(package="raybench")
class Lion(Optimizer):
    """Evolved sign momentum (Chen et al. 2023, arXiv:2302.06675, Algorithm 2).

        c = beta1 m + (1 - beta1) g
        w <- w - lr (sign(c) + wd w)
        m <- beta2 m + (1 - beta2) g

    Every weight moves by lr, so that its usual rates are 3 to 10 times below those of AdamW, and
    its weight decay as much above. keras.optimizers.Lion is the same, with weight decay on biases
    too. These and norm parameters (ndim <= 1) are left out here while `exclude_1d` holds.
    """

    STATES = ("exp_avg",)
    SETTINGS = {"beta1": 0.9, "beta2": 0.99}

    def update(
        self, variable: tf.Variable, gradient: tf.Tensor, states: list[tf.Variable], rates: Rates
    ) -> None:
        """Take one step with one variable."""
        (exp_avg,) = states
        # As torch's lerp: what is 0 in one framework must not be a rounding error in the other.
        difference = gradient - exp_avg
        sign = tf.sign(exp_avg + (1 - self.beta1) * difference)
        decay(variable, rates)
        variable.assign_sub(rates.learning_rate * sign)
        exp_avg.assign_add((1 - self.beta2) * difference)


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


Shape = tuple[int, int]
"""Rows and columns: of inputs and of outputs."""
NO_MATRICES = ("embed", "position", "depthwise")
"""What the names of layers and weights say that are tables, or filters of one channel each."""


def hidden_matrices(model: keras.Model | None, variables: list[keras.Variable]) -> dict[int, Shape]:
    """Return the shapes as matrices of the weights between a model's inputs and its head, by the
    `id` of the variable: dense, attention, convolutions.

    Not the head, which is the last weight of two dimensions or more; nor embeddings, filters of one
    channel each, and what has one row or column once it is flattened to (others, outputs). Without
    a model, all `variables` are taken for those of dense layers and convolutions.
    """
    weights = [one for one in (model.weights if model else variables) if len(one.shape) > 1]
    left_out = {id(one) for one in weights[-1:]}
    shapes = {id(one): (math.prod(one.shape[:-1]), one.shape[-1]) for one in weights}
    for variable, layer in _owners(model) if model else []:
        named = f"{type(layer).__name__} {variable.name}".lower()
        # Attention has a bias for each head, which makes two dimensions.
        if "bias" in variable.name or any(word in named for word in NO_MATRICES):
            left_out.add(id(variable))
        elif isinstance(layer, keras.layers.EinsumDense) and variable is layer.kernel:
            shapes[id(variable)] = _einsum_shape(layer)
    return {one: shape for one, shape in shapes.items() if one not in left_out and min(shape) > 1}


def _owners(model: keras.Model) -> list[tuple[keras.Variable, keras.layers.Layer]]:
    """Return each variable with the innermost layer that has it."""
    found = {id(one): (one, layer) for layer in all_layers(model) for one in layer.weights}
    return list(found.values())


def _einsum_shape(layer: keras.layers.EinsumDense) -> Shape:
    """Return that of a kernel such as (inputs, heads, width), whose outputs are its last two."""
    kernel, outputs = layer.equation.partition(",")[2].split("->")
    sizes = dict(zip(kernel, layer.kernel.shape, strict=True))
    columns = math.prod(size for axis, size in sizes.items() if axis in outputs)
    return math.prod(sizes.values()) // columns, columns


NUM_STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of Jordan et al. 2024: they raise small singular values fastest, and leave all between 0.7 and
1.2, which serves as well as 1."""
SMALLEST_NORM = 1e-7
WIDE = 2
"""Columns a row above which the steps are taken with the rows' products: of 9 (filters of 3 x 3) in
0.4 of the time."""


def orthogonalised(matrix: tf.Tensor) -> tf.Tensor:
    """Return U S V^T with S near 1 in place of the matrix's own singular values; 0 of 0.

    Newton and Schulz's iteration with a polynomial of degree 5, in float32 or the matrix's wider
    type: the authors' bfloat16 would not be the same in two frameworks, nor fast on a CPU.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    found = tf.transpose(matrix) if is_tall else matrix
    if found.dtype != tf.float64:
        found = tf.cast(found, tf.float32)
    found = found / (tf.norm(found) + SMALLEST_NORM)
    found = _of_wide(found) if found.shape[1] > WIDE * found.shape[0] else _of_any(found)
    return tf.cast(tf.transpose(found) if is_tall else found, matrix.dtype)


def _of_any(found: tf.Tensor) -> tf.Tensor:
    for _ in range(NUM_STEPS):
        found = tf.matmul(_polynomial(tf.matmul(found, found, transpose_b=True)), found)
    return found


def _of_wide(found: tf.Tensor) -> tf.Tensor:
    """Return the same: each step multiplies by a polynomial of the rows' products, which the step
    changes in a way that needs no columns."""
    products = tf.matmul(found, found, transpose_b=True)
    factor = polynomial = _polynomial(products)
    for _ in range(NUM_STEPS - 1):
        products = tf.matmul(tf.matmul(polynomial, products), polynomial)
        polynomial = _polynomial(products)
        factor = tf.matmul(polynomial, factor)
    return tf.matmul(factor, found)


def _polynomial(products: tf.Tensor) -> tf.Tensor:
    first, third, fifth = COEFFICIENTS
    found = third * products + fifth * tf.matmul(products, products)
    return tf.linalg.set_diag(found, tf.linalg.diag_part(found) + first)


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
