"""Interface of a framework backend, and the import of a backend by the name of its framework.

Importing this module imports neither torch nor TensorFlow.
"""

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.metric import Metric
from raybench.training.memory import Memory

WARM_UP_STEPS = 2
"""Warm-up steps for each batch shape: the first one traces, allocates and picks kernels; the second
one runs like all later steps."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One worker's samples and learning rate for one optimizer step."""

    indices: NDArray[np.int64]
    """(passes, samples): positions in the training split; a row is one forward and backward pass.
    If the process holds several replicas, each takes an equal part of the columns, in order."""
    weights: NDArray[np.float32]
    """(passes, samples): weight of each sample's loss; 0 for padding. The weight is 1 / (samples of
    all workers in the step), so that the workers' gradients *sum* to the gradient of the global
    batch. `Split.weights`, if any, are a factor of it, except with mixup (`Samples.mixed`)."""
    shares: NDArray[np.float32]
    """(passes, replicas of this process): samples of a pass without padding, divided by the samples
    of all workers in the step. Scales losses that a model adds once per pass (weight penalties)."""
    rounds: NDArray[np.int64] | None = None
    """(passes, samples): how many times each sample was used before, `epoch * repeat + copy`; seeds
    its augmentation together with the run's seed and the index. None without augmentation."""
    learning_rate: float
    num_samples: int
    """Samples of this worker without padding, including samples to which the data give weight 0."""
    is_frozen: bool = False
    """Whether only the head is trained (`frozen_epochs`)."""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over the evaluated samples of one worker."""

    loss: float
    value: float
    """Sum of the values that the run's metric averages: correct answers, squared errors, ..."""
    squares: float
    """Sum of the squares of these values."""
    samples: int
    answers: NDArray[Any] | None = None
    """Predictions in order (`data.whole_set.predictions_of`), unless the metric is a mean."""


@dataclass(frozen=True, kw_only=True)
class StepLog:
    """Measurements of one `BaseTrainer.train` call on one worker, with one number per step."""

    seconds: list[float]
    """Seconds from the end of the previous step, or from the start of the call, to the end of the
    step, including work on the device; NaN if unknown."""
    part_squares: list[float]
    """Squared norm of the gradient that this worker sends: the sum over its samples, divided by the
    samples of all workers. Empty, like `whole_squares`, if no gradients are exchanged."""
    whole_squares: list[float]
    """Squared norm of the gradient that this worker receives, the sum over all workers."""


class DistributedContext(Protocol):
    """The group of workers that train a run, as seen by one of these workers."""

    rank: int
    num_workers: int
    device: str
    """Name of this worker's device, as in the records of results."""
    gpus: tuple[int, ...]
    """GPUs that the worker trains on, as indices into those visible to the process."""

    @property
    def through(self) -> str:
        """Library of the all-reduce: `gloo`, `ring` or `nccl`; undefined for a single worker."""
        ...

    def time_all_reduce(self, num_bytes: int, rounds: int) -> list[float]:
        """Time all-reduces over all workers.

        Args:
            num_bytes: Size of each all-reduce in bytes (float32).
            rounds: Number of all-reduces.

        Returns:
            Seconds of each all-reduce on this worker.
        """
        add_up, seconds = self._adder(num_bytes // 4), []
        for _ in range(rounds):
            self.gather([0.0])
            began = time.perf_counter()
            add_up()
            seconds.append(time.perf_counter() - began)
        return seconds

    def _adder(self, num_values: int) -> Callable[[], float]:
        """Return a function that sums `num_values` numbers over all workers and waits for the
        result."""
        ...

    def gather(self, values: list[float]) -> list[list[float]]:
        """Return every rank's values (float64), in rank order.

        Collective: all ranks must call it, so it is also a barrier.
        """
        ...


class BaseTrainer(Protocol):
    """A model in training on one worker; each backend has a subclass `Trainer`."""

    module: Any
    """The backend's module `model`."""
    metric: Metric
    """Metric of the objective."""
    num_parameters: int
    batch_statistics: bool
    """Whether a layer normalizes over the batch of one worker."""
    notes: list[str]
    """Remarks for the user about the newly built model, one sentence each."""
    flops_per_sample: float | None = None
    """See `Evaluation.flops_per_sample`; set by `warm_up` if `record_steps` is set."""

    def warm_up(self, *steps: Step) -> None:
        """Run training and evaluation on throw-away data in the shape of each step, then restore
        all state."""
        self._freeze(steps[0].is_frozen)  # a continued run may start after the frozen epochs
        num_rows = max(self._evaluation_batch, *(int(step.indices.max()) + 1 for step in steps))
        real = self._splits
        with self._restored():
            self._splits = {name: part.stand_in(num_rows) for name, part in real.items()}
            for step in steps:
                for _ in range(WARM_UP_STEPS):
                    self.train([step])
            if self._recorder:
                self.flops_per_sample = self._count_flops(steps[0])
            self.evaluate("validation", slice(0, self._evaluation_batch))
            self._splits = real
            self._freeze(steps[0].is_frozen)

    def _count_flops(self, step: Step) -> float | None:
        """Return the floating-point operations of one sample's forward and backward pass; None if
        unknown."""
        del step
        return None

    def train(self, steps: list[Step]) -> float:
        """Take optimizer steps.

        Ends with the device synchronized.

        Returns:
            Weighted loss of this worker, summed over the steps.
        """
        ...

    def evaluate(self, part: str, rows: slice) -> Totals:
        """Return sums of loss and metric over rows of the `validation` or `test` split."""
        ...

    _splits: dict[str, Any]
    """Splits by name, as batches for this worker."""
    _evaluation_batch: int
    """Largest batch size of an evaluation."""
    _memory: Memory
    """Memory in use by this worker's tensors."""
    _world: Any
    _freeze: Any
    """Method that freezes (True) or unfreezes the backbone, on all ranks at the same step."""
    _restored: Any
    """Context manager that restores model, optimizer and random states when it exits."""
    _recorder: Any
    """Step recorder; None unless `record_steps` is set."""
    _earlier_input_s: float = 0.0
    """Seconds spent waiting for data before the checkpoint from which the run was resumed."""

    def input_seconds(self) -> float:
        """Return the seconds that training has waited for data so far."""
        waited: float = self._splits["train"].waited_seconds()
        return self._earlier_input_s + waited

    def step_log(self) -> StepLog:
        """Return the measurements of the last `train` call; requires `record_steps`."""
        log: StepLog = self._recorder.log()
        return log

    def memory_peak_bytes(self) -> int | None:
        """Return the peak memory in bytes since this trainer was created; with several GPUs, the
        peak of the fullest one."""
        return self._memory.peak()

    def skipped_steps(self) -> int:
        """Return the number of steps skipped because an fp16 gradient was not finite."""
        number: int = self._loss_scale.num_skipped
        return number

    _spec: Any
    _loss_scale: Any
    _model: Any
    _optimizer: Any
    _averaging: Any

    def save(self) -> bytes:
        """Return the weights in the framework's own format: `torch.save`'s, or `.weights.h5`."""
        with self._averaging.in_place():
            weights: bytes = self.module.save_weights(self._model)
        return weights

    def load(self, weights: bytes) -> None:
        """Load weights that `save` returned."""
        self.module.load_weights(self._model, weights)
        self._averaging.forget()

    def state(self) -> bytes:
        """Return the state from which training continues: model, optimizer, random states of all
        ranks.

        Collective: all ranks send rank 0 their random states; ranks other than 0 return b"". The
        state holds only tensors, numbers and names.
        """
        ...

    def restore(self, state: bytes) -> None:
        """Continue from the state that `state` returned on rank 0; call before or after `warm_up`.

        Nothing in the state is executed.

        Raises:
            UserError: The workload now builds another model, or raybench did not write `state`.
        """
        ...

    def close(self) -> None:
        """Release memory; the trainer cannot be used afterwards."""
        for part in self._splits.values():
            part.close()
        self._splits.clear()


PACKAGES = {"torch": "raybench.training.torch", "tensorflow": "raybench.training.tensorflow"}


def find_backend(framework: str) -> Any:
    """Import the `loop` module of a backend, which has `Trainer(spec, workload, dataset, world)`
    and `join`.

    Raises:
        UserError: The framework is not installed.
    """
    return find_part(framework, "loop")


def find_part(framework: str, name: str) -> Any:
    """Import a module of a backend, such as `model`; raises UserError like `find_backend`."""
    try:
        return importlib.import_module(f"{PACKAGES[framework]}.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("raybench"):
            raise
        raise UserError(
            f"framework {framework}: the package '{error.name}' is not installed; "
            f"run: pip install 'raybench[{framework}]'.",
            ErrorCode.NOT_INSTALLED,
        ) from None
