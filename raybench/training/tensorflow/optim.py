"""Optimizers in Keras, each computing the update of its torch namesake. Mirrors torch/optim.py."""

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
"""Types of variables that are updated by `tf.raw_ops.ResourceApply*`, in one pass over memory
instead of one per operation. Not bfloat16, in which beta2 = 0.999 would round to 1 and the second
moment would stay 0."""
Variable: TypeAlias = tf.Variable
Tensor: TypeAlias = tf.Tensor
States: TypeAlias = list[tf.Variable]


class Rates(NamedTuple):
    """Scalars of a step for all variables of one type, computed once per step."""

    learning_rate: tf.Tensor
    kept: tf.Tensor
    """1 - learning rate x weight decay: the factor by which decay multiplies a weight."""
    own: tuple[tf.Tensor, ...]
    """Result of `Optimizer._scalars`: further scalars that the method needs."""


def is_excluded(variable: tf.Variable) -> bool:
    """Return whether a variable gets no weight decay or trust ratio: a bias or norm parameter."""
    return len(variable.shape) <= 1


class Optimizer(keras.optimizers.Optimizer):
    """Base class of optimizers that update one variable at a time.

    Arguments that are not in `SETTINGS` are passed to keras.optimizers.Optimizer.
    """

    STATES: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    """Names of the state variables of each weight; they start at 0."""
    SETTINGS: ClassVar[dict[str, float]]
    """Default settings of the method; each becomes an attribute."""

    def __init__(
        self, learning_rate: float = 0.001, *, weight_decay: float = 0.0, **settings: Any
    ) -> None:
        method_settings = {
            name: settings.pop(name, default) for name, default in self.SETTINGS.items()
        }
        # Not passed to Keras, whose own weight decay is decoupled, decays biases too (it excludes
        # by name only), and would be applied in addition.
        super().__init__(learning_rate=learning_rate, **settings)
        self.decay_rate = weight_decay
        for name, value in method_settings.items():
            setattr(self, name, value)

    def build(self, variables: list[keras.Variable]) -> None:
        """Create the state variables of each variable."""
        if self.built:
            return
        super().build(variables)
        self._states = [
            [self.add_variable_from_reference(variable, name) for name in self._states_of(variable)]
            for variable in variables
        ]
        # `_update_one` gets a replica's own copy of a variable; this maps all copies to positions.
        strategy = tf.distribute.get_strategy()
        self._positions = {
            copy.ref(): position
            for position, variable in enumerate(variables)
            for copy in strategy.experimental_local_results(variable.value)
        }

    def apply(self, grads: list[Any], trainable_variables: Any = None) -> None:
        """Take one step with gradients already summed over the workers; call in replica context.

        Keras's own `apply` would sum them again.
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
            kind: self._rates(kind) for kind in {variable.dtype: None for _, variable in pairs}
        }
        tf.distribute.get_replica_context().merge_call(update, args=(pairs, rates))
        for variable in variables:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        self.iterations.assign_add(1)

    def _rates(self, kind: tf.DType) -> Rates:
        rate, step = (
            ops.cast(number, "float64") for number in (self.learning_rate, self.iterations + 1)
        )
        decay_factor = 1 - rate * self.decay_rate
        return Rates(
            tf.cast(rate, kind), tf.cast(decay_factor, kind), self._scalars(kind, step, rate)
        )

    def _update_one(self, variable: Variable, gradient: Tensor, rates: Rates) -> None:
        states = self._states[self._positions[variable.ref()]]
        gradient = tf.cast(gradient, variable.dtype)
        self._update(variable, gradient, [state.value for state in states], rates)

    def _decay_of(self, variable: Variable) -> float:
        """Return the weight decay of a variable."""
        return 0.0 if is_excluded(variable) else self.decay_rate

    def _decay(self, variable: Variable, rates: Rates) -> None:
        """Apply decoupled weight decay: w <- (1 - lr wd) w."""
        if self._decay_of(variable):
            variable.assign(variable * rates.kept)

    def _states_of(self, variable: keras.Variable) -> tuple[str, ...]:
        """Return the names of the state variables of a weight."""
        del variable
        return self.STATES

    def _scalars(self, kind: tf.DType, step: tf.Tensor, rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return the scalars that all updates of a step share, for variables of one type.

        `step` (from 1) and `rate` are float64: in float32, 1 - 0.999 is already off by 1e-5.
        """
        del kind, step, rate
        return ()

    def _update(self, variable: Variable, gradient: Tensor, states: States, rates: Rates) -> None:
        """Take one step for one variable."""
        raise NotImplementedError


class Sgd(Optimizer):
    """SGD with momentum, with the learning rate outside the momentum buffer."""

    STATES = ("momentum_buffer",)
    SETTINGS = DEFAULTS["sgd"]
    nesterov = False

    def _update(self, variable: Variable, gradient: Tensor, states: States, rates: Rates) -> None:
        if weight_decay := self._decay_of(variable):
            gradient += weight_decay * variable
        self._move(variable, gradient, states, rates)

    def _move(self, variable: Variable, gradient: Tensor, states: States, rates: Rates) -> None:
        """Update b <- momentum b + g; w <- w - lr b, with `nesterov` w - lr (g + momentum b)."""
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
    """Layer-wise adaptive rate scaling."""

    SETTINGS = DEFAULTS["lars"]

    def _update(self, variable: Variable, gradient: Tensor, states: States, rates: Rates) -> None:
        if not is_excluded(variable):
            norm = tf.norm(variable)
            denominator = tf.norm(gradient) + self.decay_rate * norm
            if self.decay_rate:
                gradient += self.decay_rate * variable
            gradient *= _ratio(self.trust_coefficient * norm, denominator)
        self._move(variable, gradient, states, rates)


def _ratio(numerator: tf.Tensor, denominator: tf.Tensor) -> tf.Tensor:
    """Return the ratio of norms, 1 where either is 0."""
    both = (numerator > 0) & (denominator > 0)
    return tf.where(both, numerator / denominator, tf.ones_like(numerator))


class Adam(Optimizer):
    """Adam with decoupled weight decay."""

    SETTINGS = DEFAULTS["adam"]

    def _scalars(self, kind: tf.DType, step: tf.Tensor, rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return step size and epsilon, both including the bias corrections."""
        betas: tuple[float, ...] = (self.beta1, self.beta2)
        if kind in FUSED_DTYPES:
            # The kernel rounds the betas to the variables' type, so the corrections must use the
            # rounded betas; otherwise v_hat is off by 1e-5.
            betas = tuple(float(np.asarray(beta, kind.as_numpy_dtype)) for beta in betas)
        first, second = (correction(step, beta) for beta in betas)
        size = rate * tf.sqrt(second) / first
        return tf.cast(size, kind), tf.cast(self.epsilon * tf.sqrt(second), kind)

    def _update(self, variable: Variable, gradient: Tensor, states: States, rates: Rates) -> None:
        self._decay(variable, rates)
        (exp_avg, exp_avg_sq), (size, epsilon), kind = states, rates.own, variable.dtype
        if kind in FUSED_DTYPES:
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=exp_avg.handle,
                v=exp_avg_sq.handle,
                # Powers of 0 disable the kernel's own corrections, which it computes in `kind`.
                beta1_power=tf.zeros((), kind),
                beta2_power=tf.zeros((), kind),
                lr=size,
                beta1=tf.cast(self.beta1, kind),
                beta2=tf.cast(self.beta2, kind),
                epsilon=epsilon,
                grad=gradient,
            )
            return
        self._take_in(gradient, states)
        variable.assign_sub(size * exp_avg / (tf.sqrt(exp_avg_sq) + epsilon))

    def _take_in(self, gradient: Tensor, states: States) -> None:
        """Update the moments: m <- m + (1 - beta1)(g - m), v <- v + (1 - beta2)(g^2 - v)."""
        exp_avg, exp_avg_sq = states
        exp_avg.assign_add((1 - self.beta1) * (gradient - exp_avg))
        exp_avg_sq.assign_add((1 - self.beta2) * (tf.square(gradient) - exp_avg_sq))


def correction(step: tf.Tensor, beta: float) -> tf.Tensor:
    """Return Adam's bias correction 1 - beta^t, in the type of `step`."""
    return 1 - tf.pow(tf.constant(beta, step.dtype), step)


class RAdam(Adam):
    """Rectified Adam."""

    def _scalars(self, kind: tf.DType, step: tf.Tensor, rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return the step sizes of m and of m / (sqrt(v) + epsilon); one of them is 0."""
        is_rectified, term = rectification_term(step, self.beta2)
        first, second = (correction(step, beta) for beta in (self.beta1, self.beta2))
        plain, rectified, zero = rate / first, rate * term * tf.sqrt(second) / first, 0 * rate
        sizes = tf.where(is_rectified, zero, plain), tf.where(is_rectified, rectified, zero)
        return tf.cast(sizes[0], kind), tf.cast(sizes[1], kind)

    def _update(self, variable: Variable, gradient: Tensor, states: States, rates: Rates) -> None:
        self._decay(variable, rates)
        self._take_in(gradient, states)
        (exp_avg, exp_avg_sq), (plain, rectified) = states, rates.own
        variable.assign_sub((plain + rectified / (tf.sqrt(exp_avg_sq) + self.epsilon)) * exp_avg)


def rectification_term(step: tf.Tensor, beta2: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Return whether rho_t > 5, and r_t in float64 (meaningless if rho_t <= 5)."""
    rho_inf = 2 / (1 - beta2) - 1
    power = tf.pow(tf.constant(beta2, tf.float64), step)
    rho = rho_inf - 2 * step * power / (1 - power)
    squared = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
    rectified = rho > 5
    return rectified, tf.sqrt(tf.where(rectified, squared, tf.ones_like(squared)))


class Lamb(Adam):
    """Layer-wise adaptive moments."""

    SETTINGS = DEFAULTS["lamb"]

    def _scalars(self, kind: tf.DType, step: tf.Tensor, rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return a and e so that m_hat / (sqrt(v_hat) + epsilon) = a m / (sqrt(v) + e)."""
        del rate
        first, second = (correction(step, beta) for beta in (self.beta1, self.beta2))
        scale = tf.sqrt(second) / first
        return tf.cast(scale, kind), tf.cast(self.epsilon * tf.sqrt(second), kind)

    def _update(self, variable: Variable, gradient: Tensor, states: States, rates: Rates) -> None:
        self._take_in(gradient, states)
        (exp_avg, exp_avg_sq), (scale, epsilon) = states, rates.own
        update = scale * exp_avg / (tf.sqrt(exp_avg_sq) + epsilon)
        step_size = rates.learning_rate
        if not is_excluded(variable):
            if self.decay_rate:
                update += self.decay_rate * variable
            step_size *= _ratio(tf.norm(variable), tf.norm(update))
        variable.assign_sub(step_size * update)


Shape = tuple[int, int]
"""Rows (inputs) and columns (outputs) of a weight matrix."""


TRANSPOSED = tuple(getattr(keras.layers, f"Conv{n}DTranspose") for n in (1, 2, 3))
"""Convolutions whose kernels have the output channels on the last axis but one."""


def hidden_matrices(model: keras.Model | None, variables: list[keras.Variable]) -> dict[int, Shape]:
    """Return the matrix shapes of the weights between a model's inputs and its head, by `id`.

    The head is the last weight of two dimensions or more. Embeddings, biases, depthwise filters and
    weights with a single row or column when flattened to (inputs, outputs) are left out. Without a
    model, all `variables` count as weights of dense layers and convolutions.
    """
    weights = [
        weight for weight in (model.weights if model else variables) if len(weight.shape) > 1
    ]
    shapes = {id(weight): (math.prod(weight.shape[:-1]), weight.shape[-1]) for weight in weights}
    layers = all_layers(model) if model else []
    owners = {
        id(variable): (variable, layer) for layer in layers for variable in layer.weights
    }  # the innermost
    for variable, layer in owners.values():
        words = f"{type(layer).__name__} {variable.name}".lower()
        # Biases by name too, because attention has two-dimensional biases (one row per head).
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
    """Return the matrix shape of a kernel such as (inputs, heads, width), of which the last two
    axes are outputs."""
    kernel, outputs = layer.equation.partition(",")[2].split("->")
    sizes = dict(zip(kernel, layer.kernel.shape, strict=True))
    columns = math.prod(size for axis, size in sizes.items() if axis in outputs)
    return math.prod(sizes.values()) // columns, columns


def orthogonalize(matrix: tf.Tensor) -> tf.Tensor:
    """Return U S V^T with singular values S near 1 instead of the matrix's; 0 for a zero matrix."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    result = tf.transpose(matrix) if is_tall else matrix
    if result.dtype != tf.float64:
        result = tf.cast(result, tf.float32)
    result = result / (tf.norm(result) + SMALLEST_NORM)
    result = newton_schulz(
        result, lambda matrix: tf.matmul(matrix, matrix, transpose_b=True), _polynomial
    )
    return tf.cast(tf.transpose(result) if is_tall else result, matrix.dtype)


def _polynomial(products: tf.Tensor) -> tf.Tensor:
    first, third, fifth = COEFFICIENTS
    result = third * products + fifth * tf.matmul(products, products)
    return tf.linalg.set_diag(result, tf.linalg.diag_part(result) + first)


class Muon(Adam):
    """Orthogonalized momentum for hidden matrices, AdamW for the other weights."""

    SETTINGS = DEFAULTS["muon"]

    def __init__(
        self, learning_rate: float = 0.001, *, model: keras.Model | None = None, **settings: Any
    ) -> None:
        super().__init__(learning_rate, **settings)
        self._model = model
        self._matrices: dict[int, Shape] = {}

    def build(self, variables: list[keras.Variable]) -> None:
        """Create the state variables of each variable."""
        if self.built:
            return
        self._matrices = hidden_matrices(self._model, variables)
        self._model = None
        super().build(variables)
        self._shapes = [self._matrices.get(id(variable)) for variable in variables]

    def _states_of(self, variable: keras.Variable) -> tuple[str, ...]:
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


def build_optimizer(
    name: str,
    model: keras.Model | None = None,
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    options: Mapping[str, Any] = MappingProxyType({}),
    **settings: float,
) -> keras.optimizers.Optimizer:
    """Return an optimizer; call its `build(model.trainable_variables)` before use.

    Takes the same names and settings as `raybench.training.torch.optim.build_optimizer` and
    computes the same updates. Change the rate between steps with `optimizer.learning_rate.assign`.

    Args:
        name: Key of `OPTIMIZERS`, or a class of a library such as `keras:Nadam`.
        model: Model. Muon finds its hidden matrices; a library's class does not decay its biases.
        learning_rate: Initial learning rate.
        weight_decay: Weight decay of variables with two dimensions or more.
        options: Arguments of a library's class.
        **settings: Settings that replace those of `spec.optimizer.DEFAULTS`.
    """
    if is_library_class(name):
        given = {"learning_rate": learning_rate, "weight_decay": weight_decay, "options": options}
        return _of_library(name, model, **given)
    method_settings: dict[str, Any] = DEFAULTS[name] | settings
    if name == "muon":
        method_settings["model"] = model
    return OPTIMIZERS[name](
        learning_rate=learning_rate, weight_decay=weight_decay, **method_settings
    )


def _of_library(name: str, model: keras.Model | None, **given: Any) -> keras.optimizers.Optimizer:
    base = keras.optimizers.Optimizer
    built: keras.optimizers.Optimizer = construct(name, "keras.optimizers", base, **given)
    if not given["weight_decay"]:
        built.weight_decay = None
    elif model is not None:
        biases = [variable for variable in model.trainable_variables if len(variable.shape) <= 1]
        built.exclude_from_weight_decay(var_list=biases)
    disable_gradient_sum(built)
    return built
