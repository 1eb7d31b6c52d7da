"""Backends: what one offers to the shared run loop, and the way from a framework's name to it.

The framework is imported there, at the last moment.
"""

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from raybench.spec.errors import UserError
from raybench.spec.metric import Metric
from raybench.training.memory import BYTES_OF_A_PARAMETER, Memory, fitting_batch

WARM_UP_STEPS = 2
"""Warm-up steps of each shape: the first traces, allocates and picks kernels, the second runs as
later ones."""
LEAST_SCALE = 2.0**-24
"""Least loss scale in fp16: a run whose gradients overflow below it, 40 steps after the first
scale, has diverged. Far below it gradients would vanish, and a step of zeros would pass for one."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One optimizer step of one worker: which samples, at which learning rate."""

    indices: NDArray[np.int64]
    """(passes, samples): positions in the training split; a row is one forward and backward. With
    several replicas in the process each has an equal part of the columns, in their order."""
    weights: NDArray[np.float32]
    """(passes, samples): weight of a sample's loss. 1 / samples of all workers together, so
    that the workers' gradients *sum* to the global batch's; times `Split.weights` where the data
    have weights and nothing is mixed (`reading.Samples.mixed`); 0 for padding."""
    shares: NDArray[np.float32]
    """(passes, replicas of this process): samples of a pass, without padding, over those of all
    workers in the step. What a model adds to the loss of a whole pass counts so much of it."""
    rounds: NDArray[np.int64] | None = None
    """(passes, samples), where it is asked for: how often the sample stood in training before, by
    the order of training: epoch x repeat + its copy in the epoch. With seed and index it keys
    augmentation."""
    learning_rate: float
    num_samples: int
    """Samples of this worker, the padding left out: a weight of the data may be 0 too."""
    is_frozen: bool = False
    """Whether the head alone is trained (`frozen_epochs`)."""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over one worker's samples."""

    loss: float
    value: float
    """Sum of what the run's metric averages: right answers, squared errors, ..."""
    squares: float
    """Sum of the squares of the same."""
    samples: int


@dataclass(frozen=True, kw_only=True)
class StepLog:
    """Records of one worker of the steps of a `Trainer.train`, one number a step each."""

    seconds: list[float]
    """Seconds of each step, from the end of the one before (or the call) to its own end,
    synchronised; NaN: not known."""
    part_squares: list[float]
    """Squared norm of what this worker has given to the exchange: its summed gradient over the
    samples of all workers. Both are empty where nothing is exchanged."""
    whole_squares: list[float]
    """Squared norm of what it has got: the parts' sum."""


class DistributedContext(Protocol):
    """The workers of a group, seen from one of them."""

    rank: int
    num_workers: int
    device: str
    """Name of this worker's device, for the records."""
    gpus: tuple[int, ...]
    """GPUs that the worker trains on, numbered among those that the process sees."""

    @property
    def through(self) -> str:
        """Library that carries sums over workers: `gloo`, `ring`, `nccl`; of several workers
        only."""
        ...

    def time_all_reduce(self, num_bytes: int, rounds: int) -> list[float]:
        """Return the seconds of each of some sums over all workers of so many bytes (float32)."""
        add_up, seconds = self._adder(num_bytes // 4), []
        for _ in range(rounds):
            self.gather([0.0])
            began = time.perf_counter()
            add_up()
            seconds.append(time.perf_counter() - began)
        return seconds

    def _adder(self, num_values: int) -> Callable[[], float]:
        """Return what adds up so many numbers of all workers, and waits for it."""
        ...

    def gather(self, values: list[float]) -> list[list[float]]:
        """Return every rank's values (float64), in rank order; a barrier for all ranks."""
        ...


class BaseTrainer(Protocol):
    """One model in training on one worker; each backend has its class of that name."""

    module: Any
    """The framework's `model`."""
    metric: Metric
    """Metric by which the run is judged."""
    num_parameters: int
    batch_statistics: bool
    """Whether a layer normalises over the samples of one worker's batch."""

    def warm_up(self, *steps: Step) -> None:
        """Run training and evaluation code on throw-away data, in the shape of each step, then
        restore every state.

        Evaluations get as many samples in a forward pass as take no more memory than training.
        """
        self._freeze(steps[0].is_frozen)  # of a run that goes on where the backbone is let go
        num_rows = max(self._evaluation_batch, *(int(one.indices.max()) + 1 for one in steps))
        real, few = self._splits, max(2, self._spec.batch_size_per_worker)
        with self._restored():
            self._splits = {name: part.noise(num_rows) for name, part in real.items()}
            taken = self._evaluation_bytes(few) if self._evaluation_batch > few else None
            for one in steps:
                for _ in range(WARM_UP_STEPS):
                    self.train([one])
            if taken is not None:
                self._fit_evaluation(few, *taken)
            self.evaluate("validation", slice(0, self._evaluation_batch))
            self._splits = real
            self._freeze(steps[0].is_frozen)

    def _evaluation_bytes(self, few: int) -> tuple[int | None, int]:
        """Return the bytes that are taken before an evaluation (None: not known), and those that
        `few` samples take in a forward pass."""
        # What the first leaves is no sample's: traces, work space. A GPU picks kernels for each
        # size; in the process's own memory TensorFlow keeps what was freed, of one sample here.
        first = few if self._world.gpus else 1
        self.evaluate("validation", slice(0, first))
        before = self._memory.begin()
        samples = self.evaluate("validation", slice(0, few)).samples
        peak = self._memory.peak()
        if before is None or peak is None:
            return None, 0
        return before, (peak - before) * few // max(1, samples - first % few)

    def _fit_evaluation(self, few: int, before: int | None, taken: int) -> None:
        """Set the samples of a forward pass of an evaluation after training, on all ranks alike;
        the rest as `_evaluation_bytes` has it."""
        trained = 0 if before is None else (self._memory.peak() or before) - before
        room = trained - BYTES_OF_A_PARAMETER * self.num_parameters
        fitting = fitting_batch(few, self._evaluation_batch, taken, room)
        self._evaluation_batch = int(min(self._world.gather([float(fitting)]))[0])

    def train(self, steps: list[Step]) -> float:
        """Take optimizer steps; return this worker's weighted loss, summed over steps.

        Ends with the device synchronised.
        """
        ...

    def evaluate(self, part: str, rows: slice) -> Totals:
        """Sums of loss and metric over rows of the `validation` or `test` split."""
        ...

    _splits: dict[str, Any]
    """The splits as the worker takes them, by their names."""
    _evaluation_batch: int
    """Most samples of a forward pass of an evaluation."""
    _memory: Memory
    """Memory of this worker's tensors."""
    _world: Any
    _freeze: Any
    """Freezes the backbone (True) or lets it go, on all ranks at the same step."""
    _restored: Any
    """Puts model, optimizer and random states back after what is done inside."""
    _recorder: Any
    """Step recorder; None without `record_steps`."""
    _earlier_input_s: float = 0.0
    """Seconds of input in the run that this one continues."""

    def input_seconds(self) -> float:
        """Seconds that training has waited for data so far."""
        waited: float = self._splits["train"].waited_seconds()
        return self._earlier_input_s + waited

    def step_log(self) -> StepLog:
        """Records of the steps of the last `train`; for `record_steps` alone."""
        log: StepLog = self._recorder.log()
        return log

    def memory_peak_bytes(self) -> int | None:
        """The most memory since this trainer was made, in bytes; of several GPUs that of the
        fullest."""
        return self._memory.most()

    def skipped_steps(self) -> int:
        """Steps of this run that were not taken, because a gradient of fp16 was not finite."""
        number: int = self._loss_scale.num_skipped
        return number

    def has_finite_gradients(self) -> bool:
        """Whether a step may still be taken: the loss scale of fp16 is at least `LEAST_SCALE`."""
        value: float = self._loss_scale.value
        return value >= LEAST_SCALE

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
        """Take weights that `save` returned."""
        self.module.load_weights(self._model, weights)
        self._averaging.forget()

    def predict(self, inputs: Any) -> NDArray[Any]:
        """Return the model's outputs for arrays as a dataset has them."""
        found: NDArray[Any] = self.module.predict(self._model, inputs)
        return found

    def state(self) -> bytes:
        """Return all that training goes on from: model, optimizer, random states of all ranks.

        For every rank at once, since they hand rank 0 their random states; what it returns
        serves all of them, the others return nothing. Holds tensors, numbers and names alone.
        """
        ...

    def restore(self, state: bytes) -> None:
        """Take what `state` returned on rank 0; before `warm_up` or after it.

        UserError if the workload builds another model by now, or `state` is not of this kind;
        nothing that it holds is run.
        """
        ...

    def close(self) -> None:
        """Release memory; the trainer is not used afterwards."""
        for part in self._splits.values():
            part.close()
        self._splits.clear()


PACKAGES = {"torch": "raybench.training.torch", "tensorflow": "raybench.training.tensorflow"}


def find_backend(framework: str) -> Any:
    """Import a backend's loop, which holds `Trainer(spec, workload, dataset, world)` and `join`.

    A framework that is not installed raises UserError.
    """
    return find_part(framework, "loop")


def find_part(framework: str, name: str) -> Any:
    """Import a module of a backend, such as `model`; UserError as `find_backend`."""
    try:
        return importlib.import_module(f"{PACKAGES[framework]}.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("raybench"):
            raise
        raise UserError(
            f"framework {framework}: the package '{error.name}' is not installed; "
            f"run: pip install 'raybench[{framework}]'."
        ) from None
