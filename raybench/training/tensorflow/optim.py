"""Optimizers in Keras, which compute the same updates as those of the same names in torch.

The equations are in `training.optimizers`. Mirrors torch/optim.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from raybench.spec.optimizer import DEFAULTS, is_library_class
from raybench.training.optimizers import (
    ADAMW_RMS,
    COEFFICIENTS,
    NO_MATRICES,
    SMALLEST_NORM,
    construct,
    newton_schulz,
)
from raybench.training.tensorflow.internals import all_layers, disable_gradient_sum

FUSED_DTYPES = (tf.float32, tf.float64)
"""Types of variables that are updated with `tf.raw_ops.ResourceApply*`, which takes a single pass
over memory instead of one per operation. bfloat16 is not among them, because in this type beta2 =
0.999 would be rounded to 1, and the second moment would stay 0."""
Variable: TypeAlias = tf.Variable
Tensor: TypeAlias = tf.Tensor
States: TypeAlias = list[tf.Variable]
"""State variables of one weight, such as its momentum buffer."""


class Rates(NamedTuple):
    """Scalars of a step for all variables of one data type, computed once per step."""

    learning_rate: tf.Tensor
    kept: tf.Tensor
    """1 - learning rate x weight decay: the factor by which weight decay multiplies a weight."""
    own: tuple[tf.Tensor, ...]
    """Further scalars that the optimizer needs, see `Optimizer._scalars`."""


def is_excluded(variable: tf.Variable) -> bool:
    """Return whether a variable is excluded from weight decay and trust ratios, because it is a
    bias or a parameter of a normalization layer."""
    return len(variable.shape) <= 1


class Optimizer(keras.optimizers.Optimizer):
    """Base class of optimizers that update one variable at a time.

    Arguments that are not in `SETTINGS` are passed to keras.optimizers.Optimizer.
    """

    STATES: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    """Names of the state variables of each weight, which start at 0."""
    SETTINGS: ClassVar[dict[str, float]]
    """Default settings of the optimizer, each of which becomes an attribute."""

    def __init__(
        self, learning_rate: float = 0.001, *, weight_decay: float = 0.0, **settings: Any
    ) -> None:
        method_settings = {
            name: settings.pop(name, default) for name, default in self.SETTINGS.items()
        }
        # The weight decay is not passed to Keras, whose weight decay is decoupled and also decays
        # biases (it excludes variables only by name), and would be applied in addition.
        super().__init__(learning_rate=learning_rate, **settings)
        self.decay_rate = weight_decay
        for name, value in method_settings.items():
            setattr(self, name, value)

    def build(self, variables: list[keras.Variable]) -> None:
        """Create the state variables for the variables that will be trained."""
        if self.built:
            return
        super().build(variables)
        self._states = [
            [
                self.add_variable_from_reference(variable, name)
                for name in self._state_names(variable)
            ]
            for variable in variables
        ]
        # `_update_one` gets one replica's copy of a variable. This maps each copy to the position
        # of its variable.
        strategy = tf.distribute.get_strategy()
        self._positions = {
            copy.ref(): position
            for position, variable in enumerate(variables)
            for copy in strategy.experimental_local_results(variable.value)
        }

    def apply(self, grads: list[Any], trainable_variables: Any = None) -> None:
        """Take one step with gradients that are already summed over the workers.

        Call it in replica context. The method of Keras that this one overrides would sum the
        gradients once more.
        """
        variables = trainable_variables or self._trainable_variables

        def update(strategy: tf.distribute.Strategy, pairs: Any, rates: Any) -> None:
            for gradient, variable in pairs:
                args = gradient, rates[variable.dtype]
                strategy.extended.update(variable, self._update_one, args=args, group=False)

        pairs = [
            (gradient, variable.value) for gradient, variable in zip(grads, variables, strict=True)
        ]
        rates = {
            dtype: self._rates(dtype) for dtype in {variable.dtype: None for _, variable in pairs}
        }
        tf.distribute.get_replica_context().merge_call(update, args=(pairs, rates))
        for variable in variables:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        self.iterations.assign_add(1)

    def _rates(self, dtype: tf.DType) -> Rates:
        """Return the scalars of the next step for variables of the type `dtype`."""
        rate, step = (
            ops.cast(number, "float64") for number in (self.learning_rate, self.iterations + 1)
        )
        decay_factor = 1 - rate * self.decay_rate
        return Rates(
            tf.cast(rate, dtype), tf.cast(decay_factor, dtype), self._scalars(dtype, step, rate)
        )

    def _update_one(self, variable: Variable, gradient: Tensor, rates: Rates) -> None:
        """Take one step for one replica's copy of a variable."""
        states = self._states[self._positions[variable.ref()]]
        gradient = tf.cast(gradient, variable.dtype)
        self._update(variable, gradient, [state.value for state in states], rates)

    def _weight_decay_of(self, variable: Variable) -> float:
        """Return the weight decay of a variable, 0 if it is excluded."""
        return 0.0 if is_excluded(variable) else self.decay_rate

    def _decay(self, variable: Variable, rates: Rates) -> None:
        """Apply decoupled weight decay: w <- (1 - lr wd) w."""
        if self._weight_decay_of(variable):
            variable.assign(variable * rates.kept)

    def _state_names(self, variable: keras.Variable) -> tuple[str, ...]:
        """Return the names of the state variables of a weight."""
        del variable
        return self.STATES

    def _scalars(self, dtype: tf.DType, step: tf.Tensor, rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return the scalars that the updates of all variables of one data type share in a step.

        Args:
            dtype: Data type of the variables and of the result.
            step: Number of the step, counted from 1; float64, because the bias corrections would be
                inaccurate in float32, in which 1 - 0.999 is already off by 1e-5.
            rate: Learning rate; float64.
        """
        del dtype, step, rate
        return ()

    def _update(self, variable: Variable, gradient: Tensor, states: States, rates: Rates) -> None:
        """Take one step for one variable with its gradient, which is summed over the workers.

        `states` are the state variables of the variable, in the order of `_state_names`.
        """
        raise NotImplementedError


class Sgd(Optimizer):
    """SGD with momentum, in which the learning rate multiplies the whole momentum buffer."""

    STATES = ("momentum_buffer",)
    SETTINGS = DEFAULTS["sgd"]
    nesterov = False

    def _update(self, variable: Variable, gradient: Tensor, states: States, rates: Rates) -> None:
        if weight_decay := self._weight_decay_of(variable):
            gradient += weight_decay * variable
        self._update_momentum(variable, gradient, states, rates)

    def _update_momentum(
        self, variable: Variable, gradient: Tensor, states: States, rates: Rates
    ) -> None:
        """Update momentum buffer and variable.

        b <- momentum b + g
        w <- w - lr b  (with `nesterov`: w - lr (g + momentum b))
        """
        (buffer,) = states
        if variable.dtype in FUSED_DTYPES:
            tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle,
                accum=buffer.handle,
                lr=rates.learning_rate,
                grad=gradient,
                momentum=tf.cast(self.momentum, variable.dtype),
                use_nesterov=self.nesterov,
            )
            return
        buffer.assign(self.momentum * buffer + gradient)
        direction = gradient + self.momentum * buffer if self.nesterov else buffer
        variable.assign_sub(rates.learning_rate * direction)


class Lars(Sgd):
    """LARS: layer-wise adaptive rate scaling."""

    SETTINGS = DEFAULTS["lars"]

    def _update(self, variable: Variable, gradient: Tensor, states: States, rates: Rates) -> None:
        if not is_excluded(variable):
            norm = tf.norm(variable)
            denominator = tf.norm(gradient) + self.decay_rate * norm
            if self.decay_rate:
                gradient += self.decay_rate * variable
            gradient *= _ratio(self.trust_coefficient * norm, denominator)
        self._update_momentum(variable, gradient, states, rates)


def _ratio(numerator: tf.Tensor, denominator: tf.Tensor) -> tf.Tensor:
    """Return the trust ratio: numerator / denominator, and 1 if either of them is 0."""
    both = (numerator > 0) & (denominator > 0)
    return tf.where(both, numerator / denominator, tf.ones_like(numerator))


class Adam(Optimizer):
    """Adam with decoupled weight decay."""

    SETTINGS = DEFAULTS["adam"]

    def _scalars(self, dtype: tf.DType, step: tf.Tensor, rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return step size and epsilon, both with the bias corrections."""
        betas: tuple[float, ...] = (self.beta1, self.beta2)
        if dtype in FUSED_DTYPES:
            # The kernel rounds the betas to the type of the variables. The corrections must use the
            # rounded betas, too; otherwise v_hat would be off by 1e-5.
            betas = tuple(float(np.asarray(beta, dtype.as_numpy_dtype)) for beta in betas)
        first, second = (correction(step, beta) for beta in betas)
        size = rate * tf.sqrt(second) / first
        return tf.cast(size, dtype), tf.cast(self.epsilon * tf.sqrt(second), dtype)

    def _update(self, variable: Variable, gradient: Tensor, states: States, rates: Rates) -> None:
        self._decay(variable, rates)
        (exp_avg, exp_avg_sq), (size, epsilon), dtype = states, rates.own, variable.dtype
        if dtype in FUSED_DTYPES:
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=exp_avg.handle,
                v=exp_avg_sq.handle,
                # Powers of 0 disable the kernel's own bias corrections, which are less accurate.
                beta1_power=tf.zeros((), dtype),
                beta2_power=tf.zeros((), dtype),
                lr=size,
                beta1=tf.cast(self.beta1, dtype),
                beta2=tf.cast(self.beta2, dtype),
                epsilon=epsilon,
                grad=gradient,
            )
            return
        self._update_moments(gradient, states)
        variable.assign_sub(size * exp_avg / (tf.sqrt(exp_avg_sq) + epsilon))

    def _update_moments(self, gradient: Tensor, states: States) -> None:
        """Update the moments with a gradient: m <- m + (1 - beta1)(g - m), and
        v <- v + (1 - beta2)(g^2 - v)."""
        exp_avg, exp_avg_sq = states
        exp_avg.assign_add((1 - self.beta1) * (gradient - exp_avg))
        exp_avg_sq.assign_add((1 - self.beta2) * (tf.square(gradient) - exp_avg_sq))


def correction(step: tf.Tensor, beta: float) -> tf.Tensor:
    """Return Adam's bias correction 1 - beta^t for step t, in the type of `step`."""
    return 1 - tf.pow(tf.constant(beta, step.dtype), step)


class RAdam(Adam):
    """Rectified Adam."""

    def _scalars(self, dtype: tf.DType, step: tf.Tensor, rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return two step sizes, one of which is 0: that of the update m, for steps without
        rectification, and that of the update m / (sqrt(v) + epsilon), for steps with it."""
        is_rectified, term = rectification_term(step, self.beta2)
        first, second = (correction(step, beta) for beta in (self.beta1, self.beta2))
        plain, rectified, zero = rate / first, rate * term * tf.sqrt(second) / first, 0 * rate
        sizes = tf.where(is_rectified, zero, plain), tf.where(is_rectified, rectified, zero)
        return tf.cast(sizes[0], dtype), tf.cast(sizes[1], dtype)

    def _update(self, variable: Variable, gradient: Tensor, states: States, rates: Rates) -> None:
        self._decay(variable, rates)
        self._update_moments(gradient, states)
        (exp_avg, exp_avg_sq), (plain, rectified) = states, rates.own
        variable.assign_sub((plain + rectified / (tf.sqrt(exp_avg_sq) + self.epsilon)) * exp_avg)


def rectification_term(step: tf.Tensor, beta2: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Return whether RAdam rectifies a step (rho_t > 5), and the rectification term r_t as float64.

    The term has no meaning if rho_t <= 5. The equations are in `training.optimizers`.

    Args:
        step: Number of the step t, counted from 1; float64.
        beta2: Decay of the second moment.
    """
    rho_inf = 2 / (1 - beta2) - 1
    power = tf.pow(tf.constant(beta2, tf.float64), step)
    rho = rho_inf - 2 * step * power / (1 - power)
    squared = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
    rectified = rho > 5
    return rectified, tf.sqrt(tf.where(rectified, squared, tf.ones_like(squared)))


class Lamb(Adam):
    """LAMB: layer-wise adaptive moments."""

    SETTINGS = DEFAULTS["lamb"]

    def _scalars(self, dtype: tf.DType, step: tf.Tensor, rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return the scalars a and e for which m_hat / (sqrt(v_hat) + epsilon) equals
        a m / (sqrt(v) + e)."""
        del rate
        first, second = (correction(step, beta) for beta in (self.beta1, self.beta2))
        scale = tf.sqrt(second) / first
        return tf.cast(scale, dtype), tf.cast(self.epsilon * tf.sqrt(second), dtype)

    def _update(self, variable: Variable, gradient: Tensor, states: States, rates: Rates) -> None:
        self._update_moments(gradient, states)
        (exp_avg, exp_avg_sq), (scale, epsilon) = states, rates.own
        update = scale * exp_avg / (tf.sqrt(exp_avg_sq) + epsilon)
        step_size = rates.learning_rate
        if not is_excluded(variable):
            if self.decay_rate:
                update += self.decay_rate * variable
            step_size *= _ratio(tf.norm(variable), tf.norm(update))
        variable.assign_sub(step_size * update)


Shape = tuple[int, int]
"""Number of rows (inputs) and columns (outputs) of a weight matrix."""


TRANSPOSED = tuple(getattr(keras.layers, f"Conv{n}DTranspose") for n in (1, 2, 3))
"""Convolutions whose kernels have the output channels on the second-to-last axis."""


def hidden_matrices(model: keras.Model | None, variables: list[keras.Variable]) -> dict[int, Shape]:
    """Return the matrix shapes of the weights that Muon orthogonalizes, keyed by `id(weight)`.

    These are weights between a model's inputs and its head, which is the last weight with two
    dimensions or more. Left out are embeddings, biases, depthwise filters, and weights that have a
    single row or column if flattened to (inputs, outputs).

    Args:
        model: The model; None to treat all `variables` as weights of dense layers and convolutions.
        variables: Variables that are trained.
    """
    weights = [
        weight for weight in (model.weights if model else variables) if len(weight.shape) > 1
    ]
    shapes = {id(weight): (math.prod(weight.shape[:-1]), weight.shape[-1]) for weight in weights}
    layers = all_layers(model) if model else []
    # Of several nested layers that have a variable, the innermost comes last.
    owners = {id(variable): (variable, layer) for layer in layers for variable in layer.weights}
    for variable, layer in owners.values():
        words = f"{type(layer).__name__} {variable.name}".lower()
        # Biases are recognized by name, because attention has two-dimensional ones (a row per
        # head).
        if "bias" in variable.name or any(word in words for word in NO_MATRICES):
            shapes.pop(id(variable), None)
        elif isinstance(layer, keras.layers.EinsumDense) and variable is layer.kernel:
            shapes[id(variable)] = _einsum_shape(layer)
        elif isinstance(layer, TRANSPOSED):
            outputs = variable.shape[-2]
            shapes[id(variable)] = math.prod(variable.shape) // outputs, outputs
    head = {id(weight) for weight in weights[-1:]}
    return {key: shape for key, shape in shapes.items() if key not in head and min(shape) > 1}


def _einsum_shape(layer: keras.layers.EinsumDense) -> Shape:
    """Return the matrix shape of the kernel of an EinsumDense layer.

    For example, a kernel of shape (inputs, heads, width), whose last two axes are outputs, is a
    matrix of shape (inputs, heads * width).
    """
    kernel, outputs = layer.equation.partition(",")[2].split("->")
    sizes = dict(zip(kernel, layer.kernel.shape, strict=True))
    columns = math.prod(size for axis, size in sizes.items() if axis in outputs)
    return math.prod(sizes.values()) // columns, columns


def orthogonalize(matrix: tf.Tensor) -> tf.Tensor:
    """Return a matrix with the same singular vectors and with all singular values near 1.

    For a zero matrix, the result is 0. See `orthogonalize` in torch/optim.py.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    result = tf.transpose(matrix) if is_tall else matrix
    if result.dtype != tf.float64:
        result = tf.cast(result, tf.float32)
    result = result / (tf.norm(result) + SMALLEST_NORM)
    result = newton_schulz(
        result, lambda matrix: tf.matmul(matrix, matrix, transpose_b=True), _polynomial
    )
    return tf.cast(tf.transpose(result) if is_tall else result, matrix.dtype)


def _polynomial(gram_matrix: tf.Tensor) -> tf.Tensor:
    """Return the Newton-Schulz polynomial of a Gram matrix (see `newton_schulz`)."""
    first, third, fifth = COEFFICIENTS
    result = third * gram_matrix + fifth * tf.matmul(gram_matrix, gram_matrix)
    return tf.linalg.set_diag(result, tf.linalg.diag_part(result) + first)


class Muon(Adam):
    """Muon: orthogonalized momentum for hidden matrices, AdamW for all other weights."""

    SETTINGS = DEFAULTS["muon"]

    def __init__(
        self, learning_rate: float = 0.001, *, model: keras.Model | None = None, **settings: Any
    ) -> None:
        super().__init__(learning_rate, **settings)
        self._model = model
        self._matrices: dict[int, Shape] = {}

    def build(self, variables: list[keras.Variable]) -> None:
        """Create the state variables for the variables that will be trained."""
        if self.built:
            return
        self._matrices = hidden_matrices(self._model, variables)
        self._model = None
        super().build(variables)
        self._shapes = [self._matrices.get(id(variable)) for variable in variables]

    def _state_names(self, variable: keras.Variable) -> tuple[str, ...]:
        return ("momentum_buffer",) if id(variable) in self._matrices else self.STATES

    def _update(self, variable: Variable, gradient: Tensor, states: States, rates: Rates) -> None:
        shape = self._shapes[self._positions[variable.ref()]]
        if shape is None:
            super()._update(variable, gradient, states, rates)
            return
        self._decay(variable, rates)
        (buffer,) = states
        buffer.assign_add((1 - self.momentum) * (gradient - buffer))
        direction = (1 - self.momentum) * gradient + self.momentum * buffer
        update = tf.reshape(orthogonalize(tf.reshape(direction, shape)), variable.shape)
        rate = rates.learning_rate * (ADAMW_RMS * math.sqrt(max(shape)))
        variable.assign_sub(rate * update)


OPTIMIZERS: dict[str, Callable[..., keras.optimizers.Optimizer]] = {
    "adam": Adam,
    "radam": RAdam,
    "lars": Lars,
    "lamb": Lamb,
    "sgd": Sgd,
    "adamw": Adam,
    "muon": Muon,
}
"""Classes of optimizers, keyed by name."""


def build_optimizer(
    name: str,
    model: keras.Model | None = None,
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    options: Mapping[str, Any] = MappingProxyType({}),
    **settings: float,
) -> keras.optimizers.Optimizer:
    """Create an optimizer; the caller must call its `build(model.trainable_variables)` before use.

    It takes the same names and settings as `raybench.training.torch.optim.build_optimizer`, and the
    optimizers compute the same updates. Change the learning rate between steps with
    `optimizer.learning_rate.assign`.

    Args:
        name: Key of `OPTIMIZERS`, or a class of a library, such as `keras:Nadam`.
        model: Model whose variables are trained. Muon needs it to find the hidden matrices. With a
            library's class, it is needed to exclude biases from weight decay.
        learning_rate: Initial learning rate.
        weight_decay: Weight decay of variables with two dimensions or more.
        options: Arguments of a library's class.
        **settings: Settings that replace those of `spec.optimizer.DEFAULTS`.
    """
    if is_library_class(name):
        given = {"learning_rate": learning_rate, "weight_decay": weight_decay, "options": options}
        return _library_optimizer(name, model, **given)
    method_settings: dict[str, Any] = DEFAULTS[name] | settings
    if name == "muon":
        method_settings["model"] = model
    return OPTIMIZERS[name](
        learning_rate=learning_rate, weight_decay=weight_decay, **method_settings
    )


def _library_optimizer(
    name: str, model: keras.Model | None, **given: Any
) -> keras.optimizers.Optimizer:
    """Create an optimizer from a class of a library; see `optimizers.construct`."""
    base = keras.optimizers.Optimizer
    built: keras.optimizers.Optimizer = construct(name, "keras.optimizers", base, **given)
    if not given["weight_decay"]:
        built.weight_decay = None
    elif model is not None:
        biases = [variable for variable in model.trainable_variables if len(variable.shape) <= 1]
        built.exclude_from_weight_decay(var_list=biases)
    disable_gradient_sum(built)
    return built
