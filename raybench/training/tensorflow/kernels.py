"""Common parts of our Keras optimizers: states, weight decay of their own, and a step with
gradients that are summed already.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, TypeAlias

import keras
import tensorflow as tf
from keras import ops

Variable: TypeAlias = tf.Variable
Tensor: TypeAlias = tf.Tensor
States: TypeAlias = list[tf.Variable]


class Rates(NamedTuple):
    """Numbers of one variable's step; tensors are of its type, computed once a step."""

    learning_rate: tf.Tensor
    kept: tf.Tensor
    """1 - learning rate x weight decay: the share of a weight that decay leaves."""
    own: tuple[tf.Tensor, ...]
    """Numbers that the method computes of step and rate (`Optimizer.scalars`)."""
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

        variables = trainable_variables or self._trainable_variables

        def update(strategy: tf.distribute.Strategy, pairs: Any, shared: Any) -> None:
            for gradient, variable in pairs:
                args = gradient, shared[variable.dtype]
                strategy.extended.update(variable, self._update_one, args=args, group=False)

        pairs = [(gradient, one.value) for gradient, one in zip(grads, variables, strict=True)]
        shared = {kind: self._shared(kind) for kind in {one.dtype: None for _, one in pairs}}
        tf.distribute.get_replica_context().merge_call(update, args=(pairs, shared))
        for variable in variables:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        self.iterations.assign_add(1)

    def _shared(self, kind: tf.DType) -> tuple[tf.Tensor, ...]:
        """Return the tensors of `Rates` for all variables of a type."""
        rate, step = (ops.cast(one, "float64") for one in (self.learning_rate, self.iterations + 1))
        kept = 1 - rate * self.decay_rate
        return tf.cast(rate, kind), tf.cast(kept, kind), *self._scalars(kind, step, rate)

    def _update_one(
        self,
        variable: tf.Variable,
        gradient: tf.Tensor,
        shared: tuple[tf.Tensor, ...],
    ) -> None:
        rate, kept, *own = shared
        excluded = len(variable.shape) <= 1
        weight_decay = 0.0 if excluded else self.decay_rate
        rates = Rates(rate, kept, tuple(own), weight_decay, excluded)
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

    def _update(self, variable: Variable, gradient: Tensor, states: States, rates: Rates) -> None:
        """Take one step with one variable."""
        raise NotImplementedError


def decay(variable: tf.Variable, rates: Rates) -> None:
    """w <- (1 - lr wd) w: decoupled weight decay, times the rate."""
    if rates.weight_decay:
        variable.assign(variable * rates.kept)
