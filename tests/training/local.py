"""Runs of the training loop in this process, without Ray."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from raybench.data.dataset import Dataset, Split
from raybench.models.base import Workload
from raybench.models.find import load_workload_dataset
from raybench.spec.metric import ACCURACY
from raybench.spec.objective import Objective
from raybench.spec.run import DatasetSpec, RunSpec
from raybench.stats.clock import Ledger
from raybench.stats.record import Evaluation
from raybench.training.base import (
    BaseTrainer,
    DistributedContext,
    Step,
    StepLog,
    Totals,
    find_backend,
    find_part,
)
from raybench.training.run import run

SMALL = DatasetSpec(image_size=28, limit=300)
FOR_EVER = Objective(kind="best_at_budget", max_train_seconds=1e6)


def small_spec(framework: str, **changes: object) -> RunSpec:
    """Three epochs of 300 digits in batches of 64."""
    content = {"dataset": SMALL, "objective": FOR_EVER, "epochs": 3.0, "learning_rate": 3e-3}
    return RunSpec(**({"framework": framework} | content | changes))


def zeros(size: int, *, repeat: int = 1) -> Dataset:
    """Return a dataset of zeros, for tests in which only the number of samples matters."""
    split = Split(np.zeros((size, 2), np.float32), np.zeros(size, np.int64))
    return Dataset("made up", 2, train=split, validation=split, test=split, repeat=repeat)


class NoTraining:
    """A trainer that does nothing; tests override parts of it."""

    metric, num_parameters, batch_statistics, flops_per_sample = ACCURACY, 1, False, None

    def warm_up(self, *steps: Step) -> None:
        pass

    def train(self, steps: list[Step]) -> float:
        return 0.0

    def evaluate(self, part: str, rows: slice) -> Totals:
        return Totals(loss=0.0, value=0.0, squares=0.0, samples=1)

    def input_seconds(self) -> float:
        return 0.0

    def memory_peak_bytes(self) -> int | None:
        return None

    def step_log(self) -> StepLog:
        return StepLog(seconds=[], part_squares=[], whole_squares=[])


class Place:
    """A worker of a group without the other workers; exchanging values fails."""

    def __init__(self, rank: int = 0, num_workers: int = 1) -> None:
        self.rank, self.num_workers, self.device = rank, num_workers, "cpu"

    def gather(self, values: list[float]) -> list[list[float]]:
        raise AssertionError("every rank computes its steps without asking")


class ThreadWorld(Place):
    """A rank of a group whose ranks are threads of this process."""

    gpus: tuple[int, ...] = ()

    def __init__(self, rank: int, rows: list[list[float]], barrier: threading.Barrier) -> None:
        super().__init__(rank, len(rows))
        self._rows, self._barrier = rows, barrier

    def gather(self, values: list[float]) -> list[list[float]]:
        self._rows[self.rank] = values
        self._barrier.wait(timeout=600)
        found = list(self._rows)
        self._barrier.wait(timeout=600)
        return found


def thread_worlds(number: int) -> list[ThreadWorld]:
    rows: list[list[float]] = [[] for _ in range(number)]
    barrier = threading.Barrier(number)
    return [ThreadWorld(rank, rows, barrier) for rank in range(number)]


T = TypeVar("T")


def on_ranks(number: int, work: Callable[[ThreadWorld], T]) -> list[T]:
    """Return the results of the work on each rank, each in its own thread."""
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(work, thread_worlds(number)))


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def alone(framework: str) -> DistributedContext:
    """Return the context of a single worker."""
    return find_backend(framework).join(rank=0, num_workers=1, device="cpu", num_threads=1)


def new_trainer(
    spec: RunSpec,
    *,
    workload: Workload | None = None,
    dataset: Dataset | None = None,
    world: DistributedContext | None = None,
) -> tuple[BaseTrainer, Dataset, DistributedContext]:
    """Return a trainer of a spec, with its own workload and data unless others are given."""
    if workload is None or dataset is None:
        own = load_workload_dataset(spec.workload, spec.dataset)
        workload, dataset = workload or own[0], dataset or own[1]
    world = world or alone(spec.framework)
    return find_backend(spec.framework).Trainer(spec, workload, dataset, world), dataset, world


def train(
    spec: RunSpec, ledger: Ledger | None = None, **given: Any
) -> tuple[list[Evaluation], BaseTrainer]:
    """Run a spec to its end; return its curve and the trainer, which still holds the model."""
    trainer, dataset, world = new_trainer(spec, **given)
    return list(run(spec, dataset, trainer, world, ledger or Ledger("setup"))), trainer


def augmented_batches(spec: RunSpec, split: Split, steps: list[Step]) -> list[list[np.ndarray]]:
    """Return the batches of the training split: inputs, labels, and with `mixup` the other labels
    and the weights of both."""
    dataset, mixed = Dataset("split", 2, train=split, validation=split, test=split), 2
    device = ()
    if spec.framework == "torch":
        device, mixed = (alone("torch").torch_device,), 3
    part = find_part(spec.framework, "batches").batches_of(spec, dataset, *device)["train"]
    batches = [
        [np.asarray(one) for one in (batch[0], batch[1], *batch[mixed])]
        for batch in part.batches(steps)
    ]
    part.close()
    return batches
