"""What this worker records of its steps: their ends and squared norms. Mirrors torch's."""

import math
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from raybench.training.base import StepLog
from raybench.training.memory import forget_peak, peak_bytes

CLOCK_TOLERANCE_S = 0.1
"""By how much the two clocks may part within a call: one of them is slowed or hastened a little
(by 1 in 2,000 at most) to follow the time of other machines."""
Take = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
"""Takes the step of a number; its loss and its squares, on this worker."""


class StepRecorder:
    """Keeps the rows (end, part's square, whole's square) that traced calls return.

    An end is TensorFlow's own time of day, the only clock inside a traced loop: the seconds of a
    call in which somebody sets the machine's clock are not known.
    """

    def __init__(self, *, has_squares: bool) -> None:
        self._has_squares = has_squares
        self._seconds: list[float] = []
        self._squares: list[list[float]] = []
        # A worker sees its own alone: one, or one for each replica in its process.
        self._gpus = [f"GPU:{i}" for i in range(len(tf.config.get_visible_devices("GPU")))]
        for gpu in self._gpus:
            tf.config.experimental.reset_memory_stats(gpu)
        if not self._gpus:
            forget_peak()

    def begin(self) -> None:
        """Forget the steps before."""
        self._seconds, self._squares = [], []

    def start(self) -> tuple[float, float]:
        """Return the two clocks' times before a traced call."""
        return time.perf_counter(), float(tf.timestamp())

    def add(self, start: tuple[float, float], rows: tf.Tensor) -> None:
        """Take in what a traced call returned, that began at `start`."""
        table = rows.numpy()
        seconds = np.diff(table[:, 0], prepend=start[1])
        passed, of_day = (now - then for now, then in zip(self.start(), start, strict=True))
        if abs(passed - of_day) > CLOCK_TOLERANCE_S or (seconds < 0).any():
            seconds[:] = math.nan
        self._seconds += seconds.tolist()
        self._squares += table[:, 1:].tolist()

    def log(self) -> StepLog:
        """Return what was recorded since `begin`."""
        squares = self._squares if self._has_squares else []
        return StepLog(
            seconds=list(self._seconds),
            part_squares=[part for part, _ in squares],
            whole_squares=[whole for _, whole in squares],
        )

    def memory_peak_bytes(self) -> int | None:
        """The most memory since this was made; of several GPUs that of the fullest."""
        if self._gpus:
            told = [tf.config.experimental.get_memory_info(gpu) for gpu in self._gpus]
            return max(int(one["peak"]) for one in told)
        return peak_bytes()


def take_recorded(
    take: Take, num_steps: tf.Tensor, variables: list[tf.Variable]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Traced: take steps that write to `variables`; their loss, and a row of each."""
    total = tf.zeros(())
    rows = tf.TensorArray(tf.float64, size=num_steps, element_shape=[3])
    for step in tf.range(num_steps):
        loss, squares = take(step)
        total += loss
        rows = rows.write(step, tf.concat([[_time_after_writes(variables)], squares], axis=0))
    return total, rows.stack()


def _time_after_writes(variables: list[tf.Variable]) -> tf.Tensor:
    """Traced: the time of day, in seconds, when all that a step writes to these is written."""
    values = [tf.convert_to_tensor(variable) for variable in variables]
    with tf.control_dependencies(values):
        last = tf.reshape(values[-1], [-1])[:1]
    # A GPU runs behind what asks it to; a number that has arrived here has been computed.
    with tf.device("CPU:0"):
        arrived = tf.identity(last)
        with tf.control_dependencies([arrived]):
            return tf.timestamp()
