"""What TensorFlow traces of training: many steps in one call, each of passes and an update.

torch traces nothing: its steps are in its loop.
"""

from itertools import chain
from typing import Any

import keras
import tensorflow as tf

from raybench.backends.tensorflow.arrays import gathered
from raybench.backends.tensorflow.averaging import Averaging
from raybench.backends.tensorflow.exchange import Exchange
from raybench.backends.tensorflow.judging import Judge, Mixed
from raybench.backends.tensorflow.model import Inputs, prepare_inputs
from raybench.backends.tensorflow.optim import clip_gradients
from raybench.backends.tensorflow.optim.base import Optimizer
from raybench.backends.tensorflow.parts import mixed_signature, signature
from raybench.backends.tensorflow.recording import take_recorded
from raybench.backends.tensorflow.state import copies_of
from raybench.backends.tensorflow.world import World
from raybench.core.spec import RunSpec
from raybench.data.dataset import Split

Data = tuple[Inputs, tf.Tensor, Mixed]
"""Inputs, labels and what they are mixed with, of which a pass takes some rows."""


def steps_signature(spec: RunSpec, train: Split) -> list[Any]:
    """Return the types of what `TracedSteps.take` is given.

    Sizes are left open, so that one trace serves every batch, the last partial one too.
    """
    steps = [tf.TensorSpec([None, None, None], kind) for kind in (tf.int64, tf.float32)]
    rates = tf.TensorSpec([None], tf.float32)
    return [*signature(train), mixed_signature(spec, train), *steps, rates]


class TracedSteps:
    """Steps of a model in training, as code that is traced."""

    def __init__(
        self,
        spec: RunSpec,
        world: World,
        model: keras.Model,
        optimizer: Optimizer,
        averaging: Averaging,
        judge: Judge,
    ) -> None:
        self._spec, self._world = spec, world
        self._model, self._optimizer, self._averaging = model, optimizer, averaging
        self._judge = judge
        self._exchange = Exchange(spec)
        self.has_squares = self._exchange.measures
        """Whether what `take` records has the squared norms of gradients."""

    def take(
        self,
        inputs: Inputs,
        labels: tf.Tensor,
        mixed: Mixed,
        indices: Any,
        weights: Any,
        rates: Any,
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Traced: indices and weights are (steps, passes, samples), rates is (steps,).

        Returns the loss and, where they are recorded, a row of each step.
        """

        def take_one(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            arguments = (inputs, labels, mixed), indices[step], weights[step], rates[step]
            strategy = self._world.strategy
            losses, squares = strategy.run(self._take_step, args=arguments)
            loss = tf.add_n(strategy.experimental_local_results(losses))
            return loss, strategy.experimental_local_results(squares)[0]

        num_steps = tf.shape(rates)[0]
        if self._spec.record_steps:
            copies = copies_of(self._model.trainable_variables, self._world.strategy)
            return take_recorded(take_one, num_steps, list(chain.from_iterable(copies)))
        total = tf.zeros(())
        for step in tf.range(num_steps):
            total += take_one(step)[0]
        return total, None

    def _take_step(
        self, data: Data, indices: Any, weights: Any, rate: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Traced, in replica context: forward and backward per pass, then one update."""
        self._optimizer.learning_rate.assign(rate)
        variables = self._model.trainable_variables
        indices, weights = self._own(indices), self._own(weights)
        loss, gradients = self._one_pass(data, indices[0], weights[0])
        if self._spec.accumulate > 1:
            for index in tf.range(1, tf.shape(indices)[0]):
                more, added = self._one_pass(data, indices[index], weights[index])
                loss += more
                gradients = [old + new for old, new in zip(gradients, added, strict=True)]
        exchanged = self._exchange(gradients) if self._spec.num_workers > 1 else gradients
        self._optimizer.apply_exchanged(self._clipped(exchanged), variables)
        self._averaging.update()
        return loss, self._exchange.squares(gradients, exchanged)

    def _clipped(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        most = self._spec.clip_norm
        return gradients if most is None else clip_gradients(gradients, most)

    def _own(self, columns: tf.Tensor) -> tf.Tensor:
        """Traced, in replica context: this replica's columns of a step (`Step.indices`)."""
        replicas = self._spec.replicas_per_process
        if replicas == 1:
            return columns
        width = tf.shape(columns)[1] // replicas
        first = tf.distribute.get_replica_context().replica_id_in_sync_group * width
        return columns[:, first : first + width]

    def _one_pass(self, data: Data, rows: Any, weights: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with self._world.where_data_are():
            inputs, labels, mixed = tf.nest.map_structure(lambda one: gathered(one, rows), data)
        batch = prepare_inputs(inputs)
        variables = self._model.trainable_variables
        with tf.GradientTape() as tape:
            outputs = self._model(batch, training=True)
            losses = self._judge.training_losses(outputs, labels, mixed)
            loss = tf.reduce_sum(losses * weights)
        gradients = tape.gradient(
            loss, [v.value for v in variables], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        # That of an embedding comes as its rows alone, which no sum over passes takes.
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]
