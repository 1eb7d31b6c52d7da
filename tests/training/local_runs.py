"""Runs of the training loop in this process, without Ray: specs, contexts, trainers, clocks."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from raybench.data.dataset import Array, Batch, Dataset, Split
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
from raybench.training.samples import take_until, training_steps

SMALL = DatasetSpec(image_size=28, limit=300)
UNLIMITED = Objective(kind="best_at_budget", max_train_seconds=1e6)


def small_spec(framework: str, **changes: object) -> RunSpec:
    """Return a spec of three epochs of 300 digits in batches of 64."""
    content = {"dataset": SMALL, "objective": UNLIMITED, "epochs": 3.0, "learning_rate": 3e-3}
    return RunSpec(**({"framework": framework} | content | changes))


def dataset_of(inputs: Batch, labels: Array, num_outputs: int = 2, **options: Any) -> Dataset:
    """Return a dataset whose three splits are the same samples."""
    split = Split(inputs, labels)
    return Dataset("made up", num_outputs, split, split, split, **options)


def zeros_dataset(size: int, *, repeat: int = 1) -> Dataset:
    """Return a dataset of zeros, for tests in which only the number of samples matters."""
    return dataset_of(np.zeros((size, 2), np.float32), np.zeros(size, np.int64), repeat=repeat)


def first_steps(
    spec: RunSpec, dataset: Dataset, world: DistributedContext, num_samples: int
) -> list[Step]:
    """Return the first steps of a run, which have at least `num_samples` samples of all workers."""
    return take_until(training_steps(spec, dataset, world), num_samples)[0]


class FakeTrainer:
    """Trainer that does nothing; tests override some of its methods."""

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


class RankContext:
    """Context of one rank of a group whose other ranks do not exist; `gather` fails."""

    def __init__(self, rank: int = 0, num_workers: int = 1) -> None:
        self.rank, self.num_workers, self.device = rank, num_workers, "cpu"

    def gather(self, values: list[float]) -> list[list[float]]:
        raise AssertionError("a rank computes its steps without communication")


class ThreadWorld(RankContext):
    """Context of a rank in a group whose ranks are threads of this process."""

    gpus: tuple[int, ...] = ()

    def __init__(self, rank: int, rows: list[list[float]], barrier: threading.Barrier) -> None:
        super().__init__(rank, len(rows))
        self._rows, self._barrier = rows, barrier

    def gather(self, values: list[float]) -> list[list[float]]:
        self._rows[self.rank] = values
        self._barrier.wait(timeout=600)
        rows = list(self._rows)
        self._barrier.wait(timeout=600)
        return rows


def thread_worlds(number: int) -> list[ThreadWorld]:
    rows: list[list[float]] = [[] for _ in range(number)]
    barrier = threading.Barrier(number)
    return [ThreadWorld(rank, rows, barrier) for rank in range(number)]


T = TypeVar("T")


def run_on_ranks(number: int, work: Callable[[ThreadWorld], T]) -> list[T]:
    """Return the result of `work` on each rank; every rank has its own thread."""
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(work, thread_worlds(number)))


class Clock:
    """Clock whose time is set by the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def single_worker(framework: str) -> DistributedContext:
    """Return the context of a single worker."""
    return find_backend(framework).join(rank=0, num_workers=1, device="cpu", num_threads=1)


def new_trainer(
    spec: RunSpec,
    *,
    workload: Workload | None = None,
    dataset: Dataset | None = None,
    world: DistributedContext | None = None,
) -> tuple[BaseTrainer, Dataset, DistributedContext]:
    """Return a trainer of a spec, by default with the workload and data that the spec names."""
    if workload is None or dataset is None:
        named = load_workload_dataset(spec.workload, spec.dataset)
        workload, dataset = workload or named[0], dataset or named[1]
    world = world or single_worker(spec.framework)
    return find_backend(spec.framework).Trainer(spec, workload, dataset, world), dataset, world


def train(
    spec: RunSpec, ledger: Ledger | None = None, **options: Any
) -> tuple[list[Evaluation], BaseTrainer]:
    """Train to the end; return the curve and the trainer. `options` are those of `new_trainer`."""
    trainer, dataset, world = new_trainer(spec, **options)
    return list(run(spec, dataset, trainer, world, ledger or Ledger("setup"))), trainer


def augmented_batches(spec: RunSpec, split: Split, steps: list[Step]) -> list[list[np.ndarray]]:
    """Return the training batches: inputs and labels, with `mixup` also the other labels and the
    weights of both."""
    dataset, device, mixed = Dataset("split", 2, split, split, split), (), 2
    if spec.framework == "torch":
        device, mixed = (single_worker("torch").torch_device,), 3
    part = find_part(spec.framework, "batches").batches_of(spec, dataset, *device)["train"]
    batches = [
        [np.asarray(array) for array in (batch[0], batch[1], *batch[mixed])]
        for batch in part.batches(steps)
    ]
    part.close()
    return batches
