"""TensorFlow's fused training operations behind two typed functions.

`tf.raw_ops.ResourceApply*` update weight and state in one pass over memory; the keras.ops that
Keras's own optimizers are made of take one pass each. Types without a usable kernel go the plain
way: in bfloat16, beta2 = 0.999 rounds to 1 and the second moment would stay 0.

What our Keras optimizers have in common: states, weight decay of their own, and the config.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf
from keras import ops

Variable: TypeAlias = tf.Variable
Tensor: TypeAlias = tf.Tensor
States: TypeAlias = list[tf.Variable]


class Rates(NamedTuple):
    """What one variable's step is taken with; tensors are of its type, computed once a step."""

    learning_rate: tf.Tensor
    kept: tf.Tensor
    """1 - learning rate x weight decay: the share of a weight that decay leaves."""
    own: tuple[tf.Tensor, ...]
    """What the method computes of step and rate (`Optimizer.scalars`)."""
    weight_decay: float
    excluded: bool
    """Whether it is a bias or norm parameter that is left out of weight decay and ratio."""


class Optimizer(keras.optimizers.Optimizer):
    """An optimizer whose update takes one variable with its states.

    Biases and norm parameters (ndim <= 1) get neither weight decay nor ratio. Arguments that are
    not in `SETTINGS` are those of keras.optimizers.Optimizer.
    """

    STATES: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    """Names of the variables kept for each weight; they start at 0."""
    SETTINGS: ClassVar[dict[str, float]]
    """The settings of the method, each an attribute, with their defaults."""

    def __init__(
        self, learning_rate: float = 0.001, *, weight_decay: float = 0.0, **settings: Any
    ) -> None:
        own = {name: settings.pop(name, default) for name, default in self.SETTINGS.items()}
        # Keras must not see the weight decay: its own is decoupled, decays biases too (it leaves
        # out by name only), and would come on top.
        super().__init__(learning_rate=learning_rate, **settings)
        self.decay_rate = weight_decay
        for name, value in own.items():
            setattr(self, name, value)

    def build(self, variables: list[keras.Variable]) -> None:
        """Create the states of each variable."""
        if self.built:
            return
        super().build(variables)
        self._states = [
            [self.add_variable_from_reference(variable, name) for name in self._states_of(variable)]
            for variable in variables
        ]
        # An update is given one worker's own copy, where a strategy keeps several.
        strategy = tf.distribute.get_strategy()
        self._positions = {
            copy.ref(): position
            for position, variable in enumerate(variables)
            for copy in strategy.experimental_local_results(variable.value)
        }

    def apply(self, grads: list[Any], trainable_variables: Any = None) -> None:
        """Take one step with gradients that are the same on all workers already, or of this one
        alone; in replica context. Keras's own sums them over the workers, with no say in how."""

        def update(strategy: tf.distribute.Strategy, pairs: Any, shared: Any) -> None:
            for gradient, variable in pairs:
                args = gradient, shared[variable.dtype.name]
                strategy.extended.update(variable, self._update_one, args=args, group=False)

        variables = trainable_variables or self._trainable_variables
        pairs = [(gradient, one.value) for gradient, one in zip(grads, variables, strict=True)]
        kinds = {variable.dtype.name: variable.dtype for _, variable in pairs}
        shared = {name: self._shared(kind) for name, kind in kinds.items()}
        tf.distribute.get_replica_context().merge_call(update, args=(pairs, shared))
        for variable in variables:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        self._count()
        self.iterations.assign_add(1)

    def _shared(self, kind: tf.DType) -> tuple[tf.Tensor, ...]:
        """Return the tensors of `Rates` for all variables of a type."""
        rate, step = (ops.cast(one, "float64") for one in (self.learning_rate, self.iterations + 1))
        kept = 1 - rate * self.decay_rate
        return tf.cast(rate, kind), tf.cast(kept, kind), *self._scalars(kind, step, rate)

    def _update_one(
        self, variable: tf.Variable, gradient: tf.Tensor, shared: tuple[tf.Tensor, ...]
    ) -> None:
        rate, kept, *own = shared
        excluded = len(variable.shape) <= 1
        rates = Rates(rate, kept, tuple(own), 0.0 if excluded else self.decay_rate, excluded)
        gradient = tf.cast(gradient, variable.dtype)
        states = self._states[self._positions[variable.ref()]]
        self._update(variable, gradient, [state.value for state in states], rates)

    def _states_of(self, variable: keras.Variable) -> tuple[str, ...]:
        """Names of the variables kept for a weight."""
        del variable
        return self.STATES

    def _scalars(self, kind: tf.DType, step: tf.Tensor, rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return what all updates of a step need for variables of a type; step (from 1) and rate
        are float64: in float32, 1 - 0.999 alone is off by 1e-5."""
        del kind, step, rate
        return ()

    def _count(self) -> None:
        """Take in the rate of a step, after its updates; traced, in replica context."""
        return

    def _update(self, variable: Variable, gradient: Tensor, states: States, rates: Rates) -> None:
        """Take one step with one variable."""
        raise NotImplementedError


def decay(variable: tf.Variable, rates: Rates) -> None:
    """w <- (1 - lr wd) w: decoupled weight decay, times the rate."""
    if rates.weight_decay:
        variable.assign(variable * rates.kept)


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
