"""The TensorFlow training loop: one traced function takes many steps per call.

`model.fit` of Keras 3 fails with two workers (keras#20585), and a call from Python for each step
would be slower, so the loop over steps runs inside a `tf.function` (`_take`).
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from raybench.data.dataset import Dataset
from raybench.data.whole_set import predictions_of
from raybench.models.base import Workload
from raybench.spec.run import RunSpec
from raybench.training.base import BaseTrainer, Step, StepLog, Totals
from raybench.training.memory import Memory, evaluation_batch
from raybench.training.optimizers import settings_of
from raybench.training.tensorflow import model as keras_model
from raybench.training.tensorflow.batches import (
    batches_of,
    gathered,
    signature,
    training_signature,
)
from raybench.training.tensorflow.layers import AveragedStatistics, synchronize
from raybench.training.tensorflow.model import (
    Inputs,
    Losses,
    Mixed,
    added_loss,
    prepare_inputs,
)
from raybench.training.tensorflow.named import start_from
from raybench.training.tensorflow.optim import build_optimizer
from raybench.training.tensorflow.state import (
    Averaging,
    Copies,
    Freezing,
    LossScale,
    copies_of,
    pack_state,
    seed_layers,
    set_values,
    unpack_state,
    values_of,
)
from raybench.training.tensorflow.world import Exchange, World, set_arithmetic
from raybench.training.tensorflow.world import join as join

Data = tuple[Inputs, tf.Tensor, Mixed]
"""Inputs, labels and `Mixed` labels, from which a pass selects some rows."""


Take = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
"""Function that takes the step with a given index; returns its loss and squared gradient norms (2,)
on this worker."""


class GpuMemory(Memory):
    """Measures the memory of a worker's GPUs; the peak is that of the fullest GPU."""

    def __init__(self, num_gpus: int) -> None:
        # A worker sees only its own GPUs: one, or one per replica in its process.
        self._gpus = [f"GPU:{index}" for index in range(num_gpus)]
        super().__init__()

    def peak(self) -> int:
        """Return the peak in bytes since this object was created."""
        memory = [tf.config.experimental.get_memory_info(gpu) for gpu in self._gpus]
        return max(int(gpu_memory["peak"]) for gpu_memory in memory)

    def _reset(self) -> None:
        for gpu in self._gpus:
            tf.config.experimental.reset_memory_stats(gpu)


class StepRecorder:
    """Records the rows (end of step, squared norm sent, squared norm received) of traced calls.

    The end of a step is TensorFlow's time of day, the only clock inside a traced loop. If the
    machine's clock is set back during a call, the step times of that call are NaN.
    """

    def __init__(self, *, has_norms: bool) -> None:
        self._has_squares = has_norms
        self._seconds: list[float] = []
        self._squares: list[list[float]] = []

    def begin(self) -> None:
        """Discard earlier steps."""
        self._seconds, self._squares = [], []

    def add(self, start: float, rows: tf.Tensor) -> None:
        """Add the rows of a traced call that began at `start`."""
        table = rows.numpy()
        seconds = np.diff(table[:, 0], prepend=start)
        if (seconds < 0).any():
            seconds[:] = math.nan
        self._seconds += seconds.tolist()
        self._squares += table[:, 1:].tolist()

    def log(self) -> StepLog:
        """Return what was measured since `begin`."""
        squares = self._squares if self._has_squares else []
        return StepLog(
            seconds=list(self._seconds),
            part_squares=[part for part, _ in squares],
            whole_squares=[whole for _, whole in squares],
        )


def take_recorded(
    take: Take, num_steps: tf.Tensor, variables: list[tf.Variable]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Traced: take steps that write to `variables`; return the total loss and one row per step for
    `StepRecorder`."""
    total = tf.zeros(())
    rows = tf.TensorArray(tf.float64, size=num_steps, element_shape=[3])
    for step in tf.range(num_steps):
        loss, squares = take(step)
        total += loss
        rows = rows.write(step, tf.concat([[_time_after_writes(variables)], squares], axis=0))
    return total, rows.stack()


def _time_after_writes(variables: list[tf.Variable]) -> tf.Tensor:
    """Traced: return the time of day in seconds once all writes of a step are done."""
    values = [tf.convert_to_tensor(variable) for variable in variables]
    with tf.control_dependencies(values):
        last = tf.reshape(values[-1], [-1])[:1]
    # A GPU runs behind the host, but a value that has been copied to the CPU has been computed.
    with tf.device("CPU:0"):
        arrived = tf.identity(last)
        with tf.control_dependencies([arrived]):
            return tf.timestamp()


HALF = {"bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
EVALUATION_BATCH = 1024
"""Largest evaluation batch size."""


class Trainer(BaseTrainer):
    """A Keras model in training on one worker, or on the replicas of one process."""

    module = keras_model

    def __init__(self, spec: RunSpec, workload: Workload, dataset: Dataset, world: World) -> None:
        replicas = world.strategy.num_replicas_in_sync
        assert replicas == spec.num_workers, (
            f"{replicas} replicas for {spec.num_workers} workers: gradients are added up"
        )
        self._spec, self._workload, self._world = spec, workload, world
        keras.mixed_precision.set_dtype_policy(HALF.get(spec.precision, "float32"))
        with world.strategy.scope():
            self._model = keras_model.build_model(workload, spec.seed)
            set_arithmetic(spec.precision)  # the user's code may have changed it
            self.notes = start_from(self._model, workload, spec.weights)
            self.num_parameters = keras_model.num_parameters(self._model)
            self.batch_statistics = (
                keras_model.batch_statistics(self._model) and not spec.sync_batch_norm
            )
            if spec.sync_batch_norm and spec.num_workers > 1:
                synchronize(self._model)
            # Dropout differs between ranks and between seeds, but is reproducible.
            seed = spec.seed * 1_000_003 + world.rank
            self._streams = seed_layers(self._model, world.strategy, seed)
            self._optimizer = build_optimizer(spec.optimizer, self._model, **settings_of(spec))
            self._optimizer.build(self._model.trainable_variables)
            self._averaging = Averaging(spec, self._model, world.strategy)
            self._loss_scale = LossScale(spec.precision)
        self._freezing = Freezing(self._model, workload) if spec.frozen_epochs else None
        copies = self._optimizer_copies() if self._freezing else []
        self._fresh = [values_of(variables) for variables in copies]
        self._losses = Losses.for_run(spec, workload, dataset)
        self.metric = self._losses.metric
        self._evaluation_batch = evaluation_batch(spec, dataset, EVALUATION_BATCH)
        self._splits = batches_of(spec, dataset)
        self._exchange = Exchange(spec)
        self._compiled = None
        if spec.compile == "xla":
            self._compiled = tf.function(self._gradients, jit_compile=True)
        self._average_statistics = AveragedStatistics(self._model, world.strategy)
        self._recorder = None
        self._memory = GpuMemory(len(world.gpus)) if world.gpus else Memory()
        if spec.record_steps:
            self._recorder = StepRecorder(has_norms=self._exchange.measures)
        input_signature = training_signature(spec, dataset.train)
        self._train_steps = {
            is_frozen: tf.function(self._take, input_signature) for is_frozen in (False, True)
        }
        self._evaluate_batch = tf.function(self._evaluate_on, signature(dataset.train))

    def train(self, steps: list[Step]) -> float:
        """Take optimizer steps; return their total loss. See BaseTrainer."""
        if self._recorder:
            self._recorder.begin()
        total = 0.0
        for is_frozen, some in groupby(steps, attrgetter("is_frozen")):
            self._freeze(is_frozen)
            total += self._train_alike(list(some), self._train_steps[is_frozen])
        return total

    def _train_alike(
        self, steps: list[Step], take: tf.types.experimental.PolymorphicFunction
    ) -> float:
        """Take steps by one traced function; the backbone is frozen in all of them or in none."""
        total = 0.0
        began = float(tf.timestamp()) if self._recorder else 0.0
        for batch in self._splits["train"].batches(steps):
            loss, rows = take(*batch)
            total += float(loss)  # waits for the device
            if self._recorder:
                self._recorder.add(began, rows)
                began = float(tf.timestamp())
        return total

    def _take(
        self,
        inputs: Inputs,
        labels: tf.Tensor,
        mixed: Mixed,
        indices: Any,
        weights: Any,
        shares: Any,
        rates: Any,
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Traced: take the steps of a `Batch`.

        Returns the total loss and, with `record_steps`, one row per step for `StepRecorder`.
        """

        def take_one(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            of_step = [array[step] for array in (indices, weights, shares)]
            arguments = (inputs, labels, mixed), *of_step, rates[step]
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
        self, data: Data, indices: Any, weights: Any, shares: Any, rate: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Traced, in replica context: take one step; return its loss and squared gradient norms."""
        self._optimizer.learning_rate.assign(rate)
        of_passes = [self._own(columns) for columns in (indices, weights, shares)]
        loss, gradients = self._one_pass(data, *(passes[0] for passes in of_passes))
        if self._spec.accumulate > 1:
            for index in tf.range(1, tf.shape(of_passes[0])[0]):
                more, added = self._one_pass(data, *(passes[index] for passes in of_passes))
                loss += more
                gradients = [old + new for old, new in zip(gradients, added, strict=True)]
        exchanged = self._exchange(gradients) if self._spec.num_workers > 1 else gradients
        # Unscaled after the exchange, so fp16 compression overflows where the backward pass does.
        gradients, exchanged = map(self._loss_scale.unscaled, (gradients, exchanged))
        self._loss_scale.step(exchanged, self._update)
        return loss, self._exchange.squares(gradients, exchanged)

    def _update(self, gradients: list[tf.Tensor]) -> None:
        """Traced, in replica context: update the weights and their average."""
        if self._spec.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self._spec.clip_norm)
        self._optimizer.apply(gradients, self._model.trainable_variables)
        self._averaging.update()

    def _own(self, columns: tf.Tensor) -> tf.Tensor:
        """Traced, in replica context: return this replica's columns of a step (`Step.indices`)."""
        replicas = self._spec.replicas_per_process
        if replicas == 1:
            return columns
        width = tf.shape(columns)[1] // replicas
        first = tf.distribute.get_replica_context().replica_id_in_sync_group * width
        return columns[:, first : first + width]

    def _one_pass(
        self, data: Data, rows: Any, weights: Any, shares: Any
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with self._world.data_device():
            inputs, labels, mixed = tf.nest.map_structure(
                lambda tensor: gathered(tensor, rows), data
            )
        arguments = inputs, labels, mixed, weights, shares[0]
        if self._compiled is None:
            return self._gradients(*arguments)
        # A batch of another size would be compiled during training time.
        is_full = tf.shape(rows)[0] == self._spec.batch_size_per_worker
        return tf.cond(
            is_full, partial(self._compiled, *arguments), partial(self._gradients, *arguments)
        )

    def _gradients(
        self, inputs: Inputs, labels: tf.Tensor, mixed: Mixed, weights: tf.Tensor, share: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Traced: return the loss of a pass and the gradients of the scaled loss; `share` weights
        the losses that the model adds."""
        variables = self._model.trainable_variables
        with tf.GradientTape() as tape:
            outputs = self._model(prepare_inputs(inputs), training=True)
            losses = self._losses.training_losses(outputs, labels, mixed)
            loss = tf.reduce_sum(losses * weights) + share * added_loss(self._model)
            scaled = self._loss_scale.scaled(loss)
        gradients = tape.gradient(
            scaled, [v.value for v in variables], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        # The gradient of an embedding is sparse, and cannot be summed over passes without this.
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def evaluate(self, part: str, rows: slice) -> Totals:
        """Return sums of loss and metric over rows of a split. See BaseTrainer."""
        self._average_statistics()
        sums, samples = np.zeros(3), 0
        all_values: list[tf.Tensor] = []
        with self._averaging.in_place():
            for inputs, labels in self._splits[part].slices(rows, self._evaluation_batch):
                batch, values = self._evaluate_batch(inputs, labels)
                sums += batch.numpy()
                samples += len(labels)
                all_values += [values] * (not self.metric.is_mean)
        loss, value, squares = map(float, sums)
        answers = (
            predictions_of(self.metric, tf.concat(all_values, 0).numpy()) if all_values else None
        )
        return Totals(loss=loss, value=value, squares=squares, samples=samples, answers=answers)

    def state(self) -> bytes:
        """Return the state of training as an `.npz` file; see BaseTrainer."""
        replicas = [values_of(variables) for variables in self._copies()]
        is_frozen = self._freezing is not None and self._freezing.is_on
        waited_s = self.input_seconds()
        return pack_state(replicas, self._world, input_s=waited_s, is_frozen=is_frozen)

    def restore(self, state: bytes) -> None:
        """Continue from a state. See BaseTrainer."""
        self._earlier_input_s, is_frozen = unpack_state(state, self._copies(), self._world.rank)
        if self._freezing:
            self._freezing.set(is_frozen)

    def close(self) -> None:
        """Release model, optimizer, traced functions and data."""
        super().close()
        del self._model, self._optimizer, self._averaging, self._compiled, self._streams
        del self._train_steps, self._evaluate_batch, self._average_statistics
        keras.backend.clear_session()

    @contextlib.contextmanager
    def _restored(self) -> Iterator[None]:
        copies = self._copies()
        saved = [values_of(variables) for variables in copies]
        yield
        for variables, values in zip(copies, saved, strict=True):
            set_values(variables, values)

    def _freeze(self, is_on: bool) -> None:
        """Freeze the backbone or unfreeze it.

        Unfreezing resets the optimizer.
        """
        if self._freezing is None or self._freezing.is_on == is_on:
            return
        self._freezing.set(is_on)
        if not is_on:
            for variables, values in zip(self._optimizer_copies(), self._fresh, strict=True):
                set_values(variables, values)

    def _optimizer_copies(self) -> Copies:
        return copies_of(self._optimizer.variables, self._world.strategy)

    def _copies(self) -> Copies:
        variables = self._model.variables + self._optimizer.variables
        variables += self._averaging.variables + self._loss_scale.variables
        variables += self._streams  # includes Keras's global state, which the model does not list
        return copies_of(
            list({id(variable): variable for variable in variables}.values()), self._world.strategy
        )

    def _evaluate_on(self, inputs: Inputs, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Traced: return the sums of loss, metric and squared metric over a batch, and the metric's
        values."""
        outputs = self._model(prepare_inputs(inputs), training=False)
        losses, values = self._losses.losses_and_values(outputs, labels)
        sums = [tf.cast(numbers, tf.float64) for numbers in (losses, values)]
        sums.append(tf.square(sums[1]))
        return tf.stack([tf.reduce_sum(numbers) for numbers in sums]), values
