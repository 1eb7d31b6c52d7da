"""The TensorFlow training loop: one traced function per run takes many steps in a call.

`model.fit` fails for Keras 3 with two workers (keras#20585), and a call from Python per step
is slower, so the loop over steps is inside `tf.function`, on arrays held in device memory.
"""

import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from raybench.backends.base import Step, Totals
from raybench.backends.optimizers import settings_of
from raybench.backends.tensorflow.internals import no_new_gradients
from raybench.backends.tensorflow.model import (
    batch_statistics,
    build_model,
    load_weights,
    loss_and_correct,
    num_parameters,
    prepare_inputs,
    save_weights,
)
from raybench.backends.tensorflow.optim import build_optimizer
from raybench.backends.tensorflow.parts import part_of, signature
from raybench.backends.tensorflow.state import (
    differing,
    own_numbers,
    pack_state,
    seed_layers,
    set_values,
    unpack_state,
    values_of,
)
from raybench.core.spec import RunSpec
from raybench.data.dataset import Dataset
from raybench.workloads.base import Workload

EVALUATION_BATCH = 1024
"""Samples per forward pass of an evaluation."""
WARM_UP_STEPS = 2
"""The first traces, the second runs as all later ones do."""


class World:
    """This process's place among the workers, and the strategy that joins them."""

    def __init__(
        self, *, rank: int = 0, num_workers: int = 1, strategy: tf.distribute.Strategy | None = None
    ) -> None:
        self.rank, self.num_workers = rank, num_workers
        self.strategy = strategy or tf.distribute.get_strategy()
        gpus = tf.config.list_physical_devices("GPU")
        details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
        self.device = str(details.get("device_name", "gpu")) if gpus else "cpu"
        rows = tf.TensorSpec([num_workers, None], tf.float64)
        self._sum_over_workers = tf.function(self._reduce_rows, [rows])

    def gather(self, values: list[float]) -> list[list[float]]:
        """Return every rank's values (float64), in rank order; a barrier for all ranks."""
        if self.num_workers == 1:
            return [values]
        # `strategy.gather` traces anew at every call, 50 ms; this sum of rows that are 0 on
        # all ranks but one is traced once and takes one.
        rows = np.zeros((self.num_workers, len(values)))
        rows[self.rank] = values
        return self._sum_over_workers(tf.constant(rows)).numpy().tolist()

    def _reduce_rows(self, rows: tf.Tensor) -> tf.Tensor:
        total = self.strategy.run(_all_reduce, args=(rows,))
        return self.strategy.experimental_local_results(total)[0]


class Trainer:
    """One Keras model in training on one worker."""

    def __init__(self, spec: RunSpec, workload: Workload, dataset: Dataset, world: World) -> None:
        self._spec, self._workload, self._world = spec, workload, world
        keras.mixed_precision.set_dtype_policy(
            "float32" if spec.precision == "fp32" else "mixed_bfloat16"
        )
        with world.strategy.scope():
            self._model = build_model(workload, spec.seed)
            self.num_parameters = num_parameters(self._model)
            self.batch_statistics = batch_statistics(self._model)
            # Dropout differs between ranks and between seeds, and repeats with both.
            seed_layers(self._model, spec.seed * 1_000_003 + world.rank)
            self._optimizer = build_optimizer(spec.optimizer, **settings_of(spec))
            self._optimizer.build(self._model.trainable_variables)
        splits = {"train": dataset.train, "validation": dataset.validation, "test": dataset.test}
        self._parts = {name: part_of(split, spec.prefetch) for name, split in splits.items()}
        # Sizes are left open, so that one trace serves every batch, the last partial one too.
        inputs, labels = signature(dataset.train)
        steps = [tf.TensorSpec([None, None, None], kind) for kind in (tf.int64, tf.float32)]
        rates = tf.TensorSpec([None], tf.float32)
        self._train_steps = tf.function(self._take_steps, [inputs, labels, *steps, rates])
        self._evaluate_batch = tf.function(self._evaluate_on, [inputs, labels])
        self._earlier_input_s = 0.0

    def warm_up(self, step: Step) -> None:
        """Run training and evaluation code on noise, then restore every state."""
        variables = self._model.variables + self._optimizer.variables
        saved = values_of(variables)
        num_rows = max(int(step.indices.max()) + 1, EVALUATION_BATCH)
        real = self._parts
        self._parts = {name: part.noise(num_rows) for name, part in real.items()}
        for _ in range(WARM_UP_STEPS):
            self.train([step])
        self.evaluate("validation", slice(0, EVALUATION_BATCH))
        self._parts = real
        set_values(variables, saved)

    def train(self, steps: list[Step]) -> float:
        """Take optimizer steps; return this worker's weighted loss, summed over steps."""
        total = 0.0
        for batch in self._parts["train"].batches(steps):
            total += float(self._train_steps(*batch))
        return total  # float() waited for the device

    def evaluate(self, part: str, rows: slice) -> Totals:
        """Loss and correct answers on rows of the `validation` or `test` split."""
        loss, correct, samples = 0.0, 0.0, 0
        for inputs, labels in self._parts[part].slices(rows, EVALUATION_BATCH):
            batch_loss, batch_correct = self._evaluate_batch(inputs, labels)
            samples += len(labels)
            loss += float(batch_loss)
            correct += float(batch_correct)
        return Totals(loss=loss, correct=correct, samples=samples)

    def input_seconds(self) -> float:
        """Seconds that training has waited for data so far."""
        return self._earlier_input_s + self._parts["train"].waited_seconds()

    def save(self) -> bytes:
        """Return the weights as Keras's `.weights.h5` file."""
        return save_weights(self._model)

    def load(self, weights: bytes) -> None:
        """Take weights that `save` returned."""
        load_weights(self._model, weights)

    def state(self) -> bytes:
        """Return all that training goes on from, as an `.npz` file; see Trainer."""
        # On every rank: some variables are read by all workers together.
        arrays = values_of(self._model.variables + self._optimizer.variables)
        own = differing(arrays, self._world.gather)
        rows = self._world.gather(own_numbers(self.input_seconds(), arrays, own))
        return b"" if self._world.rank else pack_state(arrays, own, rows)

    def restore(self, state: bytes) -> None:
        """Take what `state` returned on rank 0."""
        rank = self._world.rank
        self._earlier_input_s = unpack_state(state, self._model, self._optimizer, rank)

    def close(self) -> None:
        """Release model, optimizer, traced functions and data."""
        for part in self._parts.values():
            part.close()
        self._parts.clear()
        del self._model, self._optimizer, self._train_steps, self._evaluate_batch
        keras.backend.clear_session()

    def _take_steps(
        self, inputs: tf.Tensor, labels: tf.Tensor, indices: Any, weights: Any, rates: Any
    ) -> tf.Tensor:
        """Traced: indices and weights are (steps, passes, samples), rates is (steps,)."""
        total = tf.zeros(())
        for step in tf.range(tf.shape(rates)[0]):
            loss = self._world.strategy.run(
                self._take_step, args=(inputs, labels, indices[step], weights[step], rates[step])
            )
            total += self._world.strategy.experimental_local_results(loss)[0]
        return total

    def _take_step(
        self, inputs: tf.Tensor, labels: tf.Tensor, indices: Any, weights: Any, rate: Any
    ) -> tf.Tensor:
        """Traced, in replica context: forward and backward per pass, then one update."""
        self._optimizer.learning_rate.assign(rate)
        variables = self._model.trainable_variables
        loss, gradients = self._one_pass(inputs, labels, indices[0], weights[0])
        if self._spec.accumulate > 1:
            for index in tf.range(1, tf.shape(indices)[0]):
                more, added = self._one_pass(inputs, labels, indices[index], weights[index])
                loss += more
                gradients = [old + new for old, new in zip(gradients, added, strict=True)]
        with no_new_gradients():
            self._optimizer.apply(gradients, variables)
        return loss

    def _one_pass(
        self, inputs: tf.Tensor, labels: tf.Tensor, rows: Any, weights: Any
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        batch = prepare_inputs(tf.gather(inputs, rows))
        variables = self._model.trainable_variables
        with tf.GradientTape() as tape:
            outputs = self._model(batch, training=True)
            losses, _ = loss_and_correct(self._workload, outputs, tf.gather(labels, rows))
            loss = tf.reduce_sum(losses * weights)
        gradients = tape.gradient(
            loss, [v.value for v in variables], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return loss, gradients

    def _evaluate_on(self, inputs: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Traced: summed loss and number of correct answers of a batch."""
        outputs = self._model(prepare_inputs(inputs), training=False)
        losses, hits = loss_and_correct(self._workload, outputs, labels)
        return (
            tf.reduce_sum(tf.cast(losses, tf.float64)),
            tf.reduce_sum(tf.cast(hits, tf.float64)),
        )


def _all_reduce(rows: tf.Tensor) -> tf.Tensor:
    # An argument of a traced function has no device yet, which the reduction asks for.
    here = tf.identity(rows)
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)


def join(*, rank: int, num_workers: int, device: str, num_threads: int) -> World:
    """Return this process's World; Ray Train has written TF_CONFIG already."""
    del device  # TensorFlow sees only the worker's own devices
    if num_workers == 1:  # a cluster of one would listen on the network, for nobody
        os.environ.pop("TF_CONFIG", None)
    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(num_threads)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    return World(rank=rank, num_workers=num_workers, strategy=strategy)
