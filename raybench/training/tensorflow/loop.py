"""The training steps in TensorFlow: one traced function takes many steps per call.

`model.fit` of Keras 3 fails with two workers (keras#20585), and a call from Python for each step
would be slower. Therefore the loop over steps runs inside a `tf.function` (`Trainer._take_steps`).
Mirrors torch/loop.py.
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
from raybench.data.split_metrics import predictions_of
from raybench.models.base import Workload
from raybench.spec.run import RunSpec
from raybench.training.base import BaseTrainer, Step, StepLog, Totals
from raybench.training.machine import Memory
from raybench.training.optimizers import settings_of
from raybench.training.samples import evaluation_batch
from raybench.training.tensorflow import model as keras_model
from raybench.training.tensorflow.batches import (
    batches_of,
    gathered,
    signature,
    training_signature,
)
from raybench.training.tensorflow.internals import unregister_new_gradient_functions
from raybench.training.tensorflow.model import (
    AveragedStatistics,
    Inputs,
    Losses,
    Mixed,
    added_loss,
    prepare_inputs,
    synchronize,
)
from raybench.training.tensorflow.named import start_from
from raybench.training.tensorflow.optim import build_optimizer
from raybench.training.tensorflow.state import (
    Averaging,
    Copies,
    Freezing,
    LossScale,
    pack_state,
    replica_copies,
    seed_layers,
    set_values,
    unpack_state,
    values_of,
)
from raybench.training.tensorflow.world import GpuMemory, set_arithmetic
from raybench.training.tensorflow.world import World as World
from raybench.training.tensorflow.world import join as join

Data = tuple[Inputs, tf.Tensor, Mixed]
"""Inputs, labels and `Mixed`, from which each pass selects some rows."""
Take = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
"""Function that takes the step with a given index. It returns the loss on this worker, and the
squared norms of the gradients sent and received, shape (2,)."""


WIRE = {"none": None, "fp16": tf.float16, "bf16": tf.bfloat16}
"""Data type to which gradients are converted for the exchange, keyed by `gradient_compression`.
None leaves them unchanged."""
MIB = 2**20


class Exchange:
    """Sums gradients over the workers; its methods run on each replica, inside a `tf.function`."""

    def __init__(self, spec: RunSpec) -> None:
        between_processes = spec.num_workers > spec.replicas_per_process
        self.measures = between_processes and spec.exchange_gradients and spec.record_steps
        """Whether `squares` measures norms, which it does only if the run records steps and several
        processes exchange gradients."""
        self._num_workers, self._is_on = spec.num_workers, spec.exchange_gradients
        self._wire = WIRE[spec.gradient_compression]
        self.options = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=round(spec.bucket_mb * MIB)
        )
        """Options of the all-reduces, in addition to those of the strategy (`communication`)."""

    def __call__(self, parts: list[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sum of the gradients of all workers.

        If the run does not exchange gradients (`exchange_gradients`), return this worker's
        gradients times the number of workers.
        """
        if not self._is_on:
            return [tf.convert_to_tensor(part) * self._num_workers for part in parts]
        sent = [tf.cast(part, self._wire) for part in parts] if self._wire else parts
        context = tf.distribute.get_replica_context()
        with unregister_new_gradient_functions():
            received = context.all_reduce(tf.distribute.ReduceOp.SUM, sent, self.options)
        if not self._wire:
            return received
        return [tf.cast(whole, part.dtype) for whole, part in zip(received, parts, strict=True)]

    def squares(self, parts: list[tf.Tensor], wholes: list[tf.Tensor]) -> tf.Tensor:
        """Return the squared norms of the gradients sent and received, shape (2,), float64; zeros
        if they are not measured.

        Args:
            parts: Gradients of this worker.
            wholes: Sums of the gradients of all workers.
        """
        if not self.measures:
            return tf.zeros(2, tf.float64)
        return tf.stack([_square(parts), _square(wholes)])


def _square(gradients: list[tf.Tensor]) -> tf.Tensor:
    """Return the squared norm of all gradients together, float64."""
    halves = [tf.nn.l2_loss(tf.convert_to_tensor(gradient)) for gradient in gradients]
    return 2 * tf.reduce_sum(tf.cast(tf.stack(halves), tf.float64))


class StepRecorder:
    """Records the times of steps and the norms of their gradients.

    The traced function returns a row for each step: the time of its end, and the squared norms of
    the gradients sent and received. The time is TensorFlow's time of day, the only clock inside a
    traced loop. If the machine's clock is set back during a call, the step times of that call are
    NaN.
    """

    def __init__(self, *, has_norms: bool) -> None:
        self._has_squares = has_norms
        self._seconds: list[float] = []
        self._squares: list[list[float]] = []

    def begin(self) -> None:
        """Start a new recording."""
        self._seconds, self._squares = [], []

    def add(self, start: float, rows: tf.Tensor) -> None:
        """Add the steps of a traced call.

        Args:
            start: Time of day in seconds at which the call began.
            rows: One row for each step, shape (steps, 3).
        """
        table = rows.numpy()
        seconds = np.diff(table[:, 0], prepend=start)
        if (seconds < 0).any():
            seconds[:] = math.nan
        self._seconds += seconds.tolist()
        self._squares += table[:, 1:].tolist()

    def log(self) -> StepLog:
        """Return the measurements since `begin`."""
        squares = self._squares if self._has_squares else []
        return StepLog(
            seconds=list(self._seconds),
            part_squares=[part for part, _ in squares],
            whole_squares=[whole for _, whole in squares],
        )


def take_recorded(
    take: Take, num_steps: tf.Tensor, variables: list[tf.Variable]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Take steps and record them; runs inside a `tf.function`.

    Args:
        take: Function that takes one step.
        num_steps: Number of steps.
        variables: Variables to which the steps write; a step ends with its last write.

    Returns:
        The total loss, and one row per step for `StepRecorder`, shape (steps, 3).
    """
    total = tf.zeros(())
    rows = tf.TensorArray(tf.float64, size=num_steps, element_shape=[3])
    for step in tf.range(num_steps):
        loss, squares = take(step)
        total += loss
        rows = rows.write(step, tf.concat([[_time_after_writes(variables)], squares], axis=0))
    return total, rows.stack()


def _time_after_writes(variables: list[tf.Variable]) -> tf.Tensor:
    """Return the time of day in seconds at which all writes to `variables` are done; runs inside a
    `tf.function`."""
    values = [tf.convert_to_tensor(variable) for variable in variables]
    with tf.control_dependencies(values):
        last = tf.reshape(values[-1], [-1])[:1]
    # A GPU runs behind the host; but once a value was copied to the CPU, it has been computed.
    with tf.device("CPU:0"):
        arrived = tf.identity(last)
        with tf.control_dependencies([arrived]):
            return tf.timestamp()


HALF = {"bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
"""Data type policy of Keras for 16-bit precision, keyed by precision of the run."""
EVALUATION_BATCH = 1024
"""Largest batch size of an evaluation."""


class Trainer(BaseTrainer):
    """A Keras model that is trained on one worker, or on the replicas of one process."""

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
            # Dropout then differs between ranks and between seeds, and is reproducible.
            seed = spec.seed * 1_000_003 + world.rank
            self._random_states = seed_layers(self._model, world.strategy, seed)
            self._optimizer = build_optimizer(spec.optimizer, self._model, **settings_of(spec))
            self._optimizer.build(self._model.trainable_variables)
            self._averaging = Averaging(spec, self._model, world.strategy)
            self._loss_scale = LossScale(spec.precision)
        self._freezing = Freezing(self._model, workload) if spec.frozen_epochs else None
        copies = self._optimizer_copies() if self._freezing else []
        self._initial_optimizer_values = [values_of(variables) for variables in copies]
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
            is_frozen: tf.function(self._take_steps, input_signature) for is_frozen in (False, True)
        }
        self._evaluate_batch = tf.function(self._evaluate_on, signature(dataset.train))

    def train(self, steps: list[Step]) -> float:
        """Take optimizer steps; return their total loss. See `BaseTrainer.train`."""
        if self._recorder:
            self._recorder.begin()
        total = 0.0
        for is_frozen, group in groupby(steps, attrgetter("is_frozen")):
            self._freeze(is_frozen)
            total += self._train_group(list(group), self._train_steps[is_frozen])
        return total

    def _train_group(
        self, steps: list[Step], take: tf.types.experimental.PolymorphicFunction
    ) -> float:
        """Take steps with one traced function, and return their total loss.

        The backbone is frozen in all of the steps or in none.
        """
        total = 0.0
        began = float(tf.timestamp()) if self._recorder else 0.0
        for batch in self._splits["train"].batches(steps):
            loss, rows = take(*batch)
            total += float(loss)  # waits for the device
            if self._recorder:
                self._recorder.add(began, rows)
                began = float(tf.timestamp())
        return total

    def _take_steps(
        self,
        inputs: Inputs,
        labels: tf.Tensor,
        mixed: Mixed,
        indices: Any,
        weights: Any,
        shares: Any,
        rates: Any,
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Take the steps of a `Batch`, whose entries are the arguments.

        Runs inside a `tf.function`.

        Returns:
            The total loss, and one row per step for `StepRecorder`. If the run does not record
            steps, the rows are None.
        """

        def take_one(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            """Take the step with this index on all replicas; return the total loss, and the squared
            gradient norms of the first replica."""
            step_values = [array[step] for array in (indices, weights, shares)]
            arguments = (inputs, labels, mixed), *step_values, rates[step]
            strategy = self._world.strategy
            losses, squares = strategy.run(self._take_step, args=arguments)
            loss = tf.add_n(strategy.experimental_local_results(losses))
            return loss, strategy.experimental_local_results(squares)[0]

        num_steps = tf.shape(rates)[0]
        if self._spec.record_steps:
            copies = replica_copies(self._model.trainable_variables, self._world.strategy)
            return take_recorded(take_one, num_steps, list(chain.from_iterable(copies)))
        total = tf.zeros(())
        for step in tf.range(num_steps):
            total += take_one(step)[0]
        return total, None

    def _take_step(
        self, data: Data, indices: Any, weights: Any, shares: Any, rate: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Take one step; return its loss and squared gradient norms.

        Runs on each replica, inside a `tf.function`.

        Args:
            data: Data from which the passes select rows.
            indices: Rows of the samples, shape (passes, samples of all replicas).
            weights: Weights of the samples, in the same shape.
            shares: `Step.shares`, shape (passes, replicas).
            rate: Learning rate of the step.
        """
        self._optimizer.learning_rate.assign(rate)
        pass_values = [self._own_columns(columns) for columns in (indices, weights, shares)]
        loss, gradients = self._pass_gradients(data, *(values[0] for values in pass_values))
        if self._spec.accumulate > 1:
            for index in tf.range(1, tf.shape(pass_values[0])[0]):
                pass_loss, added = self._pass_gradients(
                    data, *(values[index] for values in pass_values)
                )
                loss += pass_loss
                gradients = [old + new for old, new in zip(gradients, added, strict=True)]
        exchanged = self._exchange(gradients) if self._spec.num_workers > 1 else gradients
        # Divided by the loss scale after the exchange, so that fp16 compression overflows where the
        # backward pass does.
        gradients, exchanged = map(self._loss_scale.unscaled, (gradients, exchanged))
        self._loss_scale.step(exchanged, self._update)
        return loss, self._exchange.squares(gradients, exchanged)

    def _update(self, gradients: list[tf.Tensor]) -> None:
        """Update the weights and their average; runs on each replica, inside a `tf.function`."""
        if self._spec.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self._spec.clip_norm)
        self._optimizer.apply(gradients, self._model.trainable_variables)
        self._averaging.update()

    def _own_columns(self, columns: tf.Tensor) -> tf.Tensor:
        """Return this replica's columns of an array of a step, shape (passes, columns); see
        `Step.indices`. Runs on each replica, inside a `tf.function`."""
        replicas = self._spec.replicas_per_process
        if replicas == 1:
            return columns
        width = tf.shape(columns)[1] // replicas
        first = tf.distribute.get_replica_context().replica_id_in_sync_group * width
        return columns[:, first : first + width]

    def _pass_gradients(
        self, data: Data, rows: Any, weights: Any, shares: Any
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Gather the samples of a pass, and return its loss and gradients.

        Runs on each replica, inside a `tf.function`.
        """
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
        """Return the loss of a pass, and the gradients of this loss times the loss scale.

        Runs on each replica, inside a `tf.function`.

        Args:
            inputs: Inputs of the samples.
            labels: Labels of the samples.
            mixed: See `Mixed`.
            weights: Weights of the samples' losses.
            share: Factor of the losses that the model itself adds (`Step.shares`).
        """
        variables = self._model.trainable_variables
        with tf.GradientTape() as tape:
            outputs = self._model(prepare_inputs(inputs), training=True)
            losses = self._losses.training_losses(outputs, labels, mixed)
            loss = tf.reduce_sum(losses * weights) + share * added_loss(self._model)
            scaled = self._loss_scale.scaled(loss)
        gradients = tape.gradient(
            scaled, [v.value for v in variables], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        # The gradient of an embedding is sparse; it must be dense to be summed over passes.
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def evaluate(self, part: str, rows: slice) -> Totals:
        """Return sums of loss and metric over rows of a split. See `BaseTrainer.evaluate`."""
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
        """Return the state of training as an `.npz` file. See `BaseTrainer.state`."""
        replicas = [values_of(variables) for variables in self._copies()]
        is_frozen = self._freezing is not None and self._freezing.is_on
        waited_s = self.input_seconds()
        return pack_state(replicas, self._world, input_s=waited_s, is_frozen=is_frozen)

    def restore(self, state: bytes) -> None:
        """Continue from a state. See `BaseTrainer.restore`."""
        self._earlier_input_s, is_frozen = unpack_state(state, self._copies(), self._world.rank)
        if self._freezing:
            self._freezing.set(is_frozen)

    def close(self) -> None:
        """Release model, optimizer, traced functions and data."""
        super().close()
        del self._model, self._optimizer, self._averaging, self._compiled, self._random_states
        del self._train_steps, self._evaluate_batch, self._average_statistics
        keras.backend.clear_session()

    @contextlib.contextmanager
    def _restored(self) -> Iterator[None]:
        """Context manager that restores model, optimizer and random states on exit."""
        copies = self._copies()
        saved = [values_of(variables) for variables in copies]
        yield
        for variables, values in zip(copies, saved, strict=True):
            set_values(variables, values)

    def _freeze(self, is_on: bool) -> None:
        """Freeze (True) or unfreeze (False) the backbone.

        Unfreezing resets the optimizer, including its state for the head.
        """
        if self._freezing is None or self._freezing.is_on == is_on:
            return
        self._freezing.set(is_on)
        if not is_on:
            for variables, values in zip(
                self._optimizer_copies(), self._initial_optimizer_values, strict=True
            ):
                set_values(variables, values)

    def _optimizer_copies(self) -> Copies:
        """Return each replica's copies of the optimizer's variables."""
        return replica_copies(self._optimizer.variables, self._world.strategy)

    def _copies(self) -> Copies:
        """Return each replica's copies of all variables that are the state of training."""
        variables = self._model.variables + self._optimizer.variables
        variables += self._averaging.variables + self._loss_scale.variables
        variables += self._random_states  # with Keras's global state, which the model does not list
        return replica_copies(
            list({id(variable): variable for variable in variables}.values()), self._world.strategy
        )

    def _evaluate_on(self, inputs: Inputs, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Evaluate a batch; runs inside a `tf.function`.

        Returns:
            Three float64 sums over the batch, shape (3,): of the losses, of the samples' values for
            the metric, and of the squares of these values. Also the samples' values themselves.
        """
        outputs = self._model(prepare_inputs(inputs), training=False)
        losses, values = self._losses.losses_and_values(outputs, labels)
        sums = [tf.cast(numbers, tf.float64) for numbers in (losses, values)]
        sums.append(tf.square(sums[1]))
        return tf.stack([tf.reduce_sum(numbers) for numbers in sums]), values
