"""What our Keras optimizers have in common: states, weight decay of their own, and the config."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import keras
import tensorflow as tf
from keras import ops


class Rates(NamedTuple):
    """What one variable's step is taken with."""

    learning_rate: tf.Tensor
    """float64"""
    weight_decay: float
    excluded: bool
    """Whether it is a bias or norm parameter that is left out of weight decay and ratio."""


class Optimizer(keras.optimizers.Optimizer):
    """An optimizer whose update takes one variable with its states.

    `exclude_1d` leaves biases and norm parameters (ndim <= 1) without weight decay and ratio.
    Arguments that are not in `SETTINGS` are those of keras.optimizers.Optimizer.
    """

    STATES: ClassVar[tuple[str, ...]]
    """Names of the variables kept for each weight; they start at 0."""
    SETTINGS: ClassVar[dict[str, float]]
    """The settings of the method, each an attribute, with their defaults."""

    def __init__(
        self,
        learning_rate: float = 0.001,
        *,
        weight_decay: float = 0.0,
        exclude_1d: bool = True,
        **settings: Any,
    ) -> None:
        own = {name: settings.pop(name, default) for name, default in self.SETTINGS.items()}
        # Keras must not see the weight decay: its own is decoupled, decays biases too (it leaves
        # out by name only), and would come on top.
        super().__init__(learning_rate=learning_rate, **settings)
        self.decay_rate = weight_decay
        self.exclude_1d = exclude_1d
        for name, value in own.items():
            setattr(self, name, value)

    def build(self, variables: list[keras.Variable]) -> None:
        """Create the states of each variable."""
        if self.built:
            return
        super().build(variables)
        self._states = [
            [self.add_variable_from_reference(variable, name) for name in self.states_of(variable)]
            for variable in variables
        ]
        # `update_step` is given one worker's own copy, where a strategy keeps several.
        strategy = tf.distribute.get_strategy()
        self._positions = {
            copy.ref(): position
            for position, variable in enumerate(variables)
            for copy in strategy.experimental_local_results(variable.value)
        }

    def apply_exchanged(self, gradients: list[tf.Tensor], variables: list[keras.Variable]) -> None:
        """`apply`, for gradients that are the same on all workers already, or of this one alone.

        In replica context. Keras's own `apply` sums them over the workers, with no say in how.
        """

        def update(strategy: tf.distribute.Strategy, pairs: Any, rate: Any) -> None:
            for gradient, variable in pairs:
                strategy.extended.update(variable, step, args=(gradient, rate), group=False)

        def step(variable: tf.Variable, gradient: tf.Tensor, rate: Any) -> None:
            self.update_step(gradient, variable, rate)

        pairs = [(gradient, one.value) for gradient, one in zip(gradients, variables, strict=True)]
        context = tf.distribute.get_replica_context()
        context.merge_call(update, args=(pairs, self.learning_rate))
        for variable in variables:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        self.count()
        self.iterations.assign_add(1)

    def apply(self, grads: list[Any], trainable_variables: Any = None) -> None:
        """Take one step with gradients that are summed over the workers here."""
        super().apply(grads, trainable_variables)
        self.count()

    def update_step(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: keras.Variable
    ) -> None:
        """Update one variable; called by `apply` for each."""
        position = self._positions[variable.ref()]
        excluded = self.exclude_1d and len(variable.shape) <= 1
        rates = Rates(
            learning_rate=ops.cast(learning_rate, "float64"),
            weight_decay=0.0 if excluded else self.decay_rate,
            excluded=excluded,
        )
        gradient = tf.cast(tf.convert_to_tensor(gradient), variable.dtype)
        self.update(variable, gradient, [state.value for state in self._states[position]], rates)

    def states_of(self, variable: keras.Variable) -> tuple[str, ...]:
        """Names of the variables kept for a weight."""
        del variable
        return self.STATES

    def count(self) -> None:
        """Take in the rate of a step, after its updates; traced, in replica context."""
        return

    def update(
        self, variable: tf.Variable, gradient: tf.Tensor, states: list[tf.Variable], rates: Rates
    ) -> None:
        """Take one step with one variable."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        own = {name: getattr(self, name) for name in self.SETTINGS}
        decay = {"weight_decay": self.decay_rate, "exclude_1d": self.exclude_1d}
        return super().get_config() | own | decay


def decay(variable: tf.Variable, rates: Rates) -> None:
    """w <- (1 - lr wd) w: decoupled weight decay, times the rate."""
    if rates.weight_decay:
        factor = 1 - rates.learning_rate * rates.weight_decay
        variable.assign(variable * tf.cast(factor, variable.dtype))
