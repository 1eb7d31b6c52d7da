"""State of a run besides the model: averaged weights, loss scale, frozen layers, random states;
and the whole state as bytes. Mirrors torch/state.py.

The state is an `.npz` file with the values of all variables, in a fixed order. It is read without
pickle.
"""

import contextlib
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from raybench.models.base import Workload, head_error
from raybench.spec.run import RunSpec
from raybench.training.base import DistributedContext
from raybench.training.saved import check_same_model, foreign_state_error
from raybench.training.tensorflow.internals import all_layers, seed_states
from raybench.training.tensorflow.named import NamedModel

Array = npt.NDArray[Any]

Copies = list[list[tf.Variable]]
"""Copies of variables: for each replica in this process, a list with its copy of each variable."""


def replica_copies(variables: list[keras.Variable], strategy: tf.distribute.Strategy) -> Copies:
    """Return each replica's copies of variables, in the order of `variables`."""
    values = [strategy.experimental_local_results(variable.value) for variable in variables]
    return [list(copies) for copies in zip(*values, strict=True)]


def pack_state(
    replicas: list[list[Array]], world: DistributedContext, *, input_s: float, is_frozen: bool
) -> bytes:
    """Return the state of a run as bytes on rank 0, and b"" on other ranks.

    Collective: all ranks must call it. An array that is equal on all replicas of all ranks is
    stored once. If an array differs, as random states do, its numbers are stored for each replica.

    Args:
        replicas: For each replica in this process, the values of its variables.
        world: The group of workers.
        input_s: Seconds for which this worker has waited for data.
        is_frozen: Whether the backbone is frozen.
    """
    checksums: list[list[float]] = []
    for arrays in replicas:
        checksums += world.gather([float(zlib.crc32(array.tobytes())) for array in arrays])
    columns = enumerate(zip(*checksums, strict=True))
    differing = [index for index, column in columns if len(set(column)) > 1]
    rows: list[list[float]] = []
    for arrays in replicas:
        numbers = (float(number) for index in differing for number in arrays[index].flat)
        rows += world.gather([input_s, *numbers])
    if world.rank:
        return b""
    named = {f"{index:06d}": _plain(array) for index, array in enumerate(replicas[0])}
    named |= {"differing": np.array(differing, np.int64), "rows": np.array(rows)}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, is_frozen=np.array(is_frozen), **named)
    return buffer.getvalue()


def unpack_state(state: bytes, copies: Copies, rank: int) -> tuple[float, bool]:
    """Load a state that `pack_state` has returned.

    Args:
        state: The state.
        copies: Variables of each replica in this process, into which the state is loaded.
        rank: Rank of this process.

    Returns:
        `input_s` and `is_frozen`, as passed to `pack_state`.

    Raises:
        UserError: The state belongs to a different model, or raybench did not write it.
    """
    try:
        with np.load(io.BytesIO(state), allow_pickle=False) as arrays:
            differing = arrays["differing"].tolist()
            rows = arrays["rows"][rank : rank + len(copies)]
            is_frozen = bool(arrays["is_frozen"])
            saved = [arrays[name] for name in sorted(arrays.files) if name.isdigit()]
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise foreign_state_error(error) from None
    check_same_model(
        {f"variable {index}": array.shape for index, array in enumerate(saved)},
        {f"variable {index}": tuple(variable.shape) for index, variable in enumerate(copies[0])},
    )
    for variables, row in zip(copies, rows, strict=True):
        first = 1
        for index in differing:
            shape, size = saved[index].shape, saved[index].size
            saved[index] = row[first : first + size].reshape(shape).astype(saved[index].dtype)
            first += size
        set_values(variables, saved)
    return float(rows[0][0]), is_frozen


def values_of(variables: list[tf.Variable]) -> list[Array]:
    """Return the values of one replica's variables."""
    return [variable.numpy() for variable in variables]


def set_values(variables: list[tf.Variable], values: list[Array]) -> None:
    """Set variables to values that `values_of` has returned."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(tf.cast(value, variable.dtype))


def seed_layers(
    model: keras.Model, strategy: tf.distribute.Strategy, seed: int
) -> list[keras.Variable]:
    """Seed all random numbers of this process, and return the random states that the model uses.

    Python, numpy and the random layers of this process's first replica are seeded with `seed`. The
    random layers of the second replica are seeded with `seed` + 1, and so on. Call this function in
    the scope of the strategy.
    """
    keras.utils.set_random_seed(seed % 2**32)
    states = seed_states(model)
    for replica, replica_states in enumerate(replica_copies(states, strategy)):
        for position, state in enumerate(replica_states):
            state.assign(np.array([(seed + replica) % 2**32, position], dtype=np.uint32))
    return states


def _plain(array: Array) -> Array:
    """Return an array in a type that numpy can write without pickle: bfloat16 becomes float32."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array


class Averaging:
    """Exponential moving average of the weights, as in torch/state.py. Does nothing unless the run
    sets `ema_decay`.

    Create it in the scope of the strategy.
    """

    def __init__(self, spec: RunSpec, model: keras.Model, strategy: tf.distribute.Strategy) -> None:
        self._decay, self._strategy = spec.ema_decay, strategy
        self._weights = list(model.trainable_variables)
        self._means: list[keras.Variable] = []
        self.variables: list[keras.Variable] = []
        """Variables that belong to the state of training."""
        if self._decay is not None:
            self._means = [
                keras.Variable(
                    initializer="zeros", shape=weight.shape, dtype=weight.dtype, trainable=False
                )
                for weight in self._weights
            ]
            self._num_steps = keras.Variable(
                0, dtype="int64", trainable=False, aggregation="only_first_replica"
            )
            self.variables = [self._num_steps, *self._means]

    def update(self) -> None:
        """Update the average with the weights after a step; runs on each replica, inside a
        `tf.function`."""
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
    def in_place(self) -> Iterator[None]:
        """Context manager that uses the averages as the model's weights, if any step was taken."""
        has_steps = self._decay is not None and int(self._num_steps.numpy()) > 0
        pairs = self._weight_average_pairs() if has_steps else []
        trained = [weight.read_value() for weight, _ in pairs]
        for weight, average in pairs:
            weight.assign(average)
        yield
        for (weight, _), value in zip(pairs, trained, strict=True):
            weight.assign(value)

    def forget(self) -> None:
        """Restart the average; until the next step, `in_place` leaves the model's weights as they
        are."""
        if self._decay is not None:
            self._num_steps.assign(0)

    def _weight_average_pairs(self) -> list[tuple[tf.Variable, tf.Variable]]:
        """Return pairs of a weight and its average, for all replicas in this process."""
        both = self._weights, self._means
        each = [
            chain.from_iterable(replica_copies(variables, self._strategy)) for variables in both
        ]
        return list(zip(*each, strict=True))


FIRST_SCALE, GROWTH_STEPS = 2.0**16, 2000
"""Initial loss scale, and number of steps without overflow after which the scale is doubled. Both
are torch's defaults."""


class LossScale:
    """Loss scale of `precision: fp16`, as in torch/state.py; it is 1 with other precisions.

    Create it in the scope of the strategy.
    """

    def __init__(self, precision: str) -> None:
        self.variables: list[keras.Variable] = []
        """Variables that belong to the state of training: the scale, the number of steps since it
        changed, and the number of skipped steps. Empty with other precisions."""
        if precision == "fp16":
            self.variables = [
                keras.Variable(first, dtype=kind, trainable=False, aggregation="only_first_replica")
                for first, kind in ((FIRST_SCALE, "float32"), (0, "int64"), (0, "int64"))
            ]

    @property
    def num_skipped(self) -> int:
        """Number of skipped steps."""
        return int(self.variables[2].numpy()) if self.variables else 0

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        """Return a loss multiplied by the loss scale; runs inside a `tf.function`."""
        return loss * self.variables[0].value if self.variables else loss

    def unscaled(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Return gradients divided by the loss scale; runs inside a `tf.function`."""
        if not self.variables:
            return gradients
        return [gradient / self.variables[0].value for gradient in gradients]

    def step(self, gradients: list[tf.Tensor], update: Callable[[list[tf.Tensor]], None]) -> None:
        """Call `update` with the gradients if all of them are finite; otherwise skip the step.

        Runs on each replica, inside a `tf.function`.
        """
        if not self.variables:
            update(gradients)
            return
        scale, num_even, num_skipped = self.variables

        def take_or_skip(strategy: tf.distribute.Strategy, finite: Any, gradients: Any) -> None:
            def take() -> None:
                strategy.extended.call_for_each_replica(update, args=(gradients,))
                grows = tf.equal(num_even.value + 1, GROWTH_STEPS)
                scale.assign(tf.where(grows, 2 * scale.value, scale.value))
                num_even.assign(tf.where(grows, tf.zeros((), tf.int64), num_even.value + 1))

            def skip() -> None:
                scale.assign(scale.value / 2)
                num_even.assign(0)
                num_skipped.assign(num_skipped.value + 1)

            # Runs in cross-replica context, because inside a branch of `tf.cond`, an update could
            # not switch to that context.
            tf.cond(strategy.experimental_local_results(finite)[0], take, skip)

        each = [tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients]
        args = tf.reduce_all(tf.stack(each)), gradients
        tf.distribute.get_replica_context().merge_call(take_or_skip, args=args)


class Freezing:
    """Freezes and unfreezes the backbone of a model, which is everything except its head.

    Frozen layers get no gradient, no update and no weight decay, and their batch normalization
    keeps its statistics. Dropout is off in the frozen backbone of a `NamedModel`. In frozen layers
    of a user's model it stays on, because Keras cannot turn it off.
    """

    def __init__(self, model: keras.Model, workload: Workload) -> None:
        self._layers = _backbone(model, workload)
        self.is_on = False
        """Whether the backbone is frozen."""

    def set(self, is_on: bool) -> None:
        """Freeze (True) or unfreeze (False) the backbone, in functions traced from now on."""
        self.is_on = is_on
        for layer in self._layers:
            layer.trainable = not is_on


def _backbone(model: keras.Model, workload: Workload) -> list[keras.layers.Layer]:
    """Return the layers of the backbone.

    This is the `backbone` of a `NamedModel`, or the layers whose names do not start with the
    workload's `head`.

    Raises:
        UserError: None or all of the layers belong to the backbone.
    """
    if isinstance(model, NamedModel) and workload.head is None:
        return [model.backbone]
    layers = [
        layer
        for layer in all_layers(model)
        if layer.trainable_variables and _has_own_variables(layer)
    ]
    backbone = [layer for layer in layers if not layer.name.startswith(workload.head or "\0")]
    if workload.head is None or not backbone or len(backbone) == len(layers):
        raise head_error(workload, [layer.name for layer in layers], "layers")
    return backbone


def _has_own_variables(layer: keras.layers.Layer) -> bool:
    """Return whether a layer has trainable variables besides those of its inner layers."""
    below = {
        id(variable) for inner in all_layers(layer)[1:] for variable in inner.trainable_variables
    }
    return any(id(variable) not in below for variable in layer.trainable_variables)
