"""Averages of the weights, evaluated and saved in their place. Mirrors torch's."""

import contextlib
from collections.abc import Iterator
from itertools import chain

import keras
import tensorflow as tf

from raybench.backends.tensorflow.optim import ScheduleFreeAdamW
from raybench.backends.tensorflow.state import copies_of
from raybench.core.spec import RunSpec


class Averaging:
    """The moving average of `ema_decay`, or that which Schedule-Free AdamW keeps, or neither.

        mean <- mean + (1 - decay) / (1 - decay^t) (w - mean),  t the steps so far

    The divisor is Adam's correction: the average is over the steps taken, and the weights of the
    beginning have no part in it. Of trainable weights alone: moving averages of batch normalisation
    are the model's own, as with the `use_ema` of Keras's optimizers.

    To be made in the scope of the strategy.
    """

    def __init__(self, spec: RunSpec, model: keras.Model, strategy: tf.distribute.Strategy) -> None:
        self._decay, self._strategy = spec.ema_decay, strategy
        self._weights = list(model.trainable_variables)
        self._means: list[keras.Variable] = []
        self.variables: list[keras.Variable] = []
        """What a run goes on from."""
        if self._decay is not None:
            self._means = [_zeros_like(one) for one in self._weights]
            self._num_steps = keras.Variable(
                0, dtype="int64", trainable=False, aggregation="only_first_replica"
            )
            self.variables = [self._num_steps, *self._means]

    def update(self) -> None:
        """Take in the weights after a step; traced, in replica context."""
        if self._decay is None:
            return
        self._num_steps.assign_add(1)
        steps = tf.cast(self._num_steps.value, tf.float64)
        decay = tf.constant(self._decay, tf.float64)
        share = tf.cast((1 - decay) / (1 - tf.pow(decay, steps)), tf.float32)

        def move(mean: tf.Variable, weight: tf.Variable) -> None:
            mean.assign_add(tf.cast(share, mean.dtype) * (weight - mean))

        def move_all(strategy: tf.distribute.Strategy) -> None:
            for mean, weight in zip(self._means, self._weights, strict=True):
                strategy.extended.update(mean.value, move, args=(weight.value,), group=False)

        tf.distribute.get_replica_context().merge_call(move_all)

    @contextlib.contextmanager
    def in_place(self, optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
        """Put the averages in the place of the weights inside."""
        pairs = self._averages(optimizer)
        trained = [weight.read_value() for weight, _ in pairs]
        for weight, average in pairs:
            weight.assign(average)
        yield
        for (weight, _), value in zip(pairs, trained, strict=True):
            weight.assign(value)

    def forget(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Begin anew, with weights that were not trained here: they are their own average."""
        if isinstance(optimizer, ScheduleFreeAdamW):
            for ahead in optimizer.weights_and_aheads()[1]:
                ahead.assign(tf.zeros_like(ahead.value))
        if self._decay is not None:
            self._num_steps.assign(0)

    def _averages(
        self, optimizer: keras.optimizers.Optimizer
    ) -> list[tuple[tf.Variable, tf.Variable | tf.Tensor]]:
        """Return each replica's weights with what takes their place: none before the first step."""
        if isinstance(optimizer, ScheduleFreeAdamW):
            back = 1 / optimizer.beta1 - 1
            both = self._side_by_side(*optimizer.weights_and_aheads())
            return [(weight, weight - back * ahead) for weight, ahead in both]
        if self._decay is None or not int(self._num_steps.numpy()):
            return []
        return self._side_by_side(self._weights, self._means)

    def _side_by_side(
        self, weights: list[keras.Variable], others: list[keras.Variable]
    ) -> list[tuple[tf.Variable, tf.Variable]]:
        """Return each replica's own weights, with the others of the same place."""
        each = [chain.from_iterable(copies_of(one, self._strategy)) for one in (weights, others)]
        return list(zip(*each, strict=True))


def _zeros_like(weight: keras.Variable) -> keras.Variable:
    return keras.Variable(
        initializer="zeros", shape=weight.shape, dtype=weight.dtype, trainable=False
    )
