"""The recorded tables: the training of each, and its grid."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from raybench.spec.objective import Objective
from raybench.spec.run import DatasetSpec, RunSpec

TABLES = Path(__file__).parents[1] / "tables"
DATA = TABLES / "data"
"""Folder that `table_data.py` writes to."""

Cell = tuple[str, float, int, int]
"""Optimizer, learning rate, global batch size, seed."""


def rates(number: int, **ranges: tuple[float, float]) -> dict[str, list[float]]:
    """Return `number` rates of each optimizer, evenly spaced in log, including the ends."""
    return {
        name: [float(f"{rate:.3g}") for rate in np.geomspace(low, high, number)]
        for name, (low, high) in ranges.items()
    }


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Grid of a table and its training."""

    workload: str
    dataset: DatasetSpec
    epochs: int
    eval_every_samples: int
    rates: dict[str, list[float]] = field(
        default_factory=lambda: rates(
            10,
            sgd=(1e-3, 3.0),
            lars=(3e-2, 100.0),
            adam=(1e-4, 1e-1),
            radam=(1e-4, 1e-1),
            lamb=(3e-4, 3e-1),
        )
    )
    """Learning rates of each optimizer, equally many."""
    batches: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    """Global batch sizes."""
    timed_batches: tuple[int, ...] = (16, 32, 64)
    """Batch sizes per worker whose steps are timed, those of a replay (`recorded.Table`)."""
    timed_samples: int = 2000
    """Samples of one measurement of the step time."""
    step_statistic: Literal["median", "least"] = "least"
    """Statistic over the measurements of a step. On a machine with other users, the least is
    nearest to the time on an idle machine."""
    curves: str | None = None
    """Table whose curves are used, so that only step times are measured."""
    note: str = ""
    """Remark on the figures of the table."""

    def cells(self, seed: int) -> list[Cell]:
        """Return the whole grid with a seed."""
        return [
            (optimizer, rate, batch, seed)
            for optimizer, batch in itertools.product(self.rates, self.batches)
            for rate in self.rates[optimizer]
        ]

    def spec_of(self, cell: Cell, **changes: Any) -> RunSpec:
        """Return the run spec of one cell, on one torch worker unless changed."""
        optimizer, rate, batch, seed = cell
        content: dict[str, Any] = {
            "workload": self.workload,
            "dataset": self.dataset,
            "epochs": self.epochs,
            "eval_every_samples": self.eval_every_samples,
            "objective": Objective(kind="best_at_budget", max_train_seconds=1e6),
            "optimizer": optimizer,
            "learning_rate": rate,
            "batch_size_per_worker": batch,
            "seed": seed,
        }
        return RunSpec(**(content | changes))


FLIGHTS = DatasetSpec(
    name="csv", path=str(DATA / "flights.csv"), label="late", limit=4000, validation_size=5000
)
TEXTS = DatasetSpec(
    name="csv",
    path=str(DATA / "docstrings.csv"),
    text="text",
    label="library",
    vocabulary_size=2000,
    sequence_length=64,
    limit=4000,
    validation_size=3000,
    test_size=500,
)
CIFAR = DatasetSpec(
    name="npz", path=str(DATA / "cifar.npz"), limit=1800, validation_size=1000, test_size=500
)
RATES = rates(
    6,
    sgd=(1e-2, 2.0),
    lars=(5e-1, 100.0),
    adam=(5e-4, 1e-1),
    muon=(5e-4, 1e-1),
    lamb=(1.5e-3, 3e-1),
)
TEXT_RATES = rates(
    6,
    sgd=(1e-1, 20.0),
    lars=(5e-1, 100.0),
    adam=(1e-3, 2e-1),
    muon=(1e-3, 2e-1),
    lamb=(5e-3, 1.0),
)
GRIDS: dict[str, Grid] = {
    "mnist_conv": Grid(
        workload="mnist_small",
        dataset=DatasetSpec(name="mnist", image_size=10, limit=4000, validation_size=5000),
        epochs=6,
        eval_every_samples=1000,
        timed_batches=(8, 16, 32, 64, 128, 256, 512),
        step_statistic="median",
    ),
    "mnist_mlp": Grid(
        workload="deep_mlp",
        dataset=DatasetSpec(name="mnist", image_size=14, limit=8000, validation_size=5000),
        epochs=8,
        eval_every_samples=2000,
        timed_batches=(8, 16, 32, 64, 128, 256, 512),
        step_statistic="median",
    ),
    "flights_mlp": Grid(
        workload="deep_mlp",
        dataset=FLIGHTS,
        epochs=3,
        eval_every_samples=600,
        rates=RATES,
    ),
    "docstrings_text": Grid(
        workload="text_bag",
        dataset=TEXTS,
        epochs=2,
        eval_every_samples=400,
        rates=TEXT_RATES,
    ),
    "cifar_resnet": Grid(
        workload="benchmarks.search.table_workloads:TableResnet",
        dataset=CIFAR,
        epochs=5,
        eval_every_samples=450,
        rates=rates(
            5,
            sgd=(2e-2, 2.0),
            lars=(1.0, 100.0),
            adam=(1e-3, 1e-1),
            muon=(1e-3, 1e-1),
            lamb=(3e-3, 3e-1),
        ),
        batches=(32, 64, 128, 256, 512),
        timed_batches=(32, 64),
    ),
    "docstrings_throttled": Grid(
        workload="benchmarks.search.table_workloads:ThrottledText",
        dataset=TEXTS,
        epochs=2,
        eval_every_samples=400,
        rates=TEXT_RATES,
        timed_samples=400,
        curves="docstrings_text",
        note="throttled: every training sample waits 2 ms, so that compute outweighs the exchange "
        "of gradients and several workers are best; the times are of steps that wait so, the "
        "curves those of docstrings_text",
    ),
}
