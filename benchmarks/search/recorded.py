"""Recorded tables: learning curves and step times of grids of configurations that were trained.

`record_table.py` writes them. A `Task` is a table with a target.
"""

import itertools
import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from raybench.spec.objective import Objective, search_score
from raybench.stats.replicates import Replicate, expected_running_time

TABLES = Path(__file__).parents[1] / "tables"
NAMES = (
    "mnist_conv",
    "mnist_mlp",
    "flights_mlp",
    "docstrings_text",
    "cifar_resnet",
    "docstrings_throttled",
)
"""Tables that benchmarks replay unless told otherwise."""
WORKERS = (1, 2, 4, 8)
"""Worker counts. A table has the batch sizes per worker whose product with each of these is a
recorded global batch size."""
SLOTS = 8
CHANCE = 0.1
"""Baseline accuracy of tables that do not record one."""
REACHING = 0.10
"""Share of the recorded cells that reach the default target."""
PATIENCE = 8.0
"""`max_train_seconds` over the best time to target: the guess of a user who does not know it."""
LATENCY_SHARE = 0.85
"""Share of latency in the exchange time of two workers. Measured with Gloo on the recording
machine: 2 x 0.45 ms of latency and 1.1 GB/s; gradients of these networks have at most 0.2 MB."""


@dataclass(frozen=True)
class Config:
    """A configuration that a tool proposes; replayed at the recorded rate nearest to `rate`."""

    optimizer: str
    rate: float
    batch_size_per_worker: int
    num_workers: int


@dataclass(frozen=True)
class Point:
    """A trial at an evaluation. Every tool minimizes `score` (log seconds to target)."""

    evaluation: int
    samples: int
    train_s: float
    value: float
    """Accuracy."""
    best_value: float
    score: float
    time_to_target_s: float | None


@dataclass(frozen=True)
class Space:
    """The search space that a user writes, which is all that a tool knows."""

    rates: dict[str, tuple[float, float]]
    """Log-uniform range of each optimizer."""
    batch_sizes_per_worker: tuple[int, ...]
    num_workers: tuple[int, ...]
    objective: Objective
    """Time to the task's target, with its `max_train_seconds`."""
    num_evaluations: int
    """Evaluations of a trial that is not ended early."""
    baseline_value: float = CHANCE

    def rate(self, optimizer: str, share: float) -> float:
        """Map a share (0 to 1) to the optimizer's range, for tools without conditional ranges."""
        low, high = self.rates[optimizer]
        return float(low * (high / low) ** share)

    def share(self, optimizer: str, rate: float) -> float:
        """Return the inverse of `rate`."""
        low, high = self.rates[optimizer]
        return math.log(rate / low) / math.log(high / low)


class Table:
    """The recorded curves and step times of one workload."""

    batches_per_worker: tuple[int, ...]
    baseline_value: float = CHANCE

    def __init__(self, name: str, folder: Path = TABLES):
        self.name = name
        self.meta: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
        self.baseline_value = float(self.meta.get("baseline_value", self.baseline_value))
        batches = self.meta["batches"]
        self.batches_per_worker = tuple(
            batch for batch in batches if all(batch * workers in batches for workers in WORKERS)
        )
        arrays = np.load(folder / f"{self.meta.get('curves', name)}.npz")
        correct, self.samples = arrays["correct"].astype(float), arrays["samples"]
        # A diverged run ended early: its last value is repeated, so that seeds can be averaged.
        for i in range(1, correct.shape[-1]):
            ended = (correct[..., i] < 0) & (correct[..., i - 1] >= 0)
            others = (correct[..., i] >= 0).any(axis=-1, keepdims=True)
            correct[..., i] = np.where(ended & others, correct[..., i - 1], correct[..., i])
        self.accuracy = np.where(correct < 0, np.nan, correct / self.meta["num_validation"])
        empty = int(np.isnan(self.accuracy[..., 0]).all(axis=-1).sum())
        if empty:
            raise SystemExit(f"{name}: {empty} cells are not recorded yet (record_table.py)")
        self.mean = _mean_over_seeds(self.accuracy)
        statistic = self.meta.get("step_statistic", "median")
        self._step_s = {
            (row["optimizer"], row["batch"], row["workers"]): float(row[statistic])
            for row in self.meta["step_s"]
        }

    @cached_property
    def _exchange_s(self) -> float:
        """Seconds that a second worker adds to a step, whatever the batch size."""
        added = [
            s - self._step_s[optimizer, batch, 1]
            for (optimizer, batch, workers), s in self._step_s.items()
            if workers == 2
        ]
        return max(float(np.median(added)), 0.0)

    def step_s(self, optimizer: str, batch: int, workers: int) -> float:
        """Return the seconds of a step: measured for one and two workers, extrapolated beyond.

        step(k) = step(1) + exchange(2) f(k). The ring all-reduce sends 2 (k-1) messages of 1/k of
        the gradients each, so its latency grows with k-1 and its transfer time with 2 (k-1)/k. Both
        factors are 1 for k=2.
        """
        if workers <= 2:
            return self._step_s[optimizer, batch, workers]
        growth = LATENCY_SHARE * (workers - 1) + (1 - LATENCY_SHARE) * 2 * (workers - 1) / workers
        return self._step_s[optimizer, batch, 1] + self._exchange_s * growth

    def cell(self, config: Config) -> tuple[int, int, int]:
        """Return the indices of optimizer, nearest recorded rate and global batch."""
        rates = np.log(self.meta["rates"][config.optimizer])
        return (
            self.meta["optimizers"].index(config.optimizer),
            int(np.abs(rates - math.log(config.rate)).argmin()),
            self.meta["batches"].index(config.batch_size_per_worker * config.num_workers),
        )

    def seeds(self, config: Config) -> list[int]:
        """Return the seeds that a configuration was recorded with."""
        return np.flatnonzero(~np.isnan(self.accuracy[self.cell(config)][:, 0])).tolist()

    def curve(
        self, config: Config, rng: np.random.Generator | None = None, *, seed: int | None = None
    ) -> tuple[list[int], list[float], list[float]]:
        """Return the evaluations of a configuration.

        Args:
            config: The configuration.
            rng: Draws one of the recorded seeds if given.
            seed: One of the recorded seeds. Without `rng` and `seed`, seeds are averaged.

        Returns:
            Samples, train seconds and accuracies.
        """
        optimizer, rate, batch = self.cell(config)
        accuracy = self.mean[optimizer, rate, batch]
        if rng is not None:
            seed = int(rng.choice(self.seeds(config)))
        if seed is not None:
            accuracy = self.accuracy[optimizer, rate, batch, seed]
        accuracy = accuracy[~np.isnan(accuracy)]
        samples = self.samples[batch, : len(accuracy)]
        step = self.step_s(config.optimizer, config.batch_size_per_worker, config.num_workers)
        seconds = samples / (config.batch_size_per_worker * config.num_workers) * step
        return samples.tolist(), seconds.tolist(), accuracy.tolist()

    def configs(self) -> list[Config]:
        """Return the whole grid."""
        return [
            Config(optimizer, rate, batch, workers)
            for optimizer in self.meta["optimizers"]
            for rate, batch, workers in itertools.product(
                self.meta["rates"][optimizer], self.batches_per_worker, WORKERS
            )
        ]

    def default_target(self) -> float:
        """Return the accuracy that 10 % of the cells reach, rounded down to half a percent."""
        highest = np.nanmax(self.mean, axis=-1)
        return math.floor(200 * float(np.quantile(highest, 1 - REACHING))) / 200

    def tta(self, config: Config, target: float) -> float:
        """Return the seconds until the mean curve reaches the target; infinite if it does not."""
        _, seconds, accuracies = self.curve(config)
        hits = (s for s, accuracy in zip(seconds, accuracies, strict=True) if accuracy >= target)
        return next(hits, math.inf)

    def best(self, target: float) -> tuple[Config, float]:
        """Return the best configuration of the grid and its time to target."""
        times = {config: self.tta(config, target) for config in self.configs()}
        config = min(times, key=lambda c: times[c])
        return config, times[config]


def _mean_over_seeds(accuracy: np.ndarray) -> np.ndarray:
    is_recorded = ~np.isnan(accuracy)
    counts = is_recorded.sum(axis=-2)
    sums = np.where(is_recorded, accuracy, 0.0).sum(axis=-2)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


class Task:
    """A table with a target."""

    def __init__(self, table: Table, target: float | None = None):
        self.table = table
        self.target = table.default_target() if target is None else target
        self.best_config, self.best_s = table.best(self.target)
        if math.isinf(self.best_s):
            raise SystemExit(f"{table.name}: no configuration reaches {self.target:.1%}")
        self.t_max = PATIENCE * self.best_s
        self.objective = Objective(target=self.target, max_train_seconds=self.t_max)

    @property
    def space(self) -> Space:
        """Return the search space of the table."""
        rates = self.table.meta["rates"]
        return Space(
            rates={name: (min(values), max(values)) for name, values in rates.items()},
            batch_sizes_per_worker=self.table.batches_per_worker,
            num_workers=WORKERS,
            objective=self.objective,
            num_evaluations=self.table.mean.shape[-1],
            baseline_value=self.table.baseline_value,
        )

    def tta(self, config: Config) -> float:
        """Return the true time to target; infinite beyond `max_train_seconds`."""
        seconds = self.table.tta(config, self.target)
        return seconds if seconds <= self.t_max else math.inf

    def seed_seconds(self, config: Config) -> np.ndarray:
        """Return the seconds to the target with each recorded seed; infinite for a miss."""
        seconds = []
        for seed in self.table.seeds(config):
            _, times, accuracies = self.table.curve(config, seed=seed)
            is_hit = np.asarray(accuracies) >= self.target
            seconds.append(times[int(is_hit.argmax())] if is_hit.any() else math.inf)
        return np.array(seconds)

    def expected_s(self, config: Config) -> float:
        """Return the expected running time over the recorded seeds."""
        repeats = []
        for seed in self.table.seeds(config):
            _, seconds, accuracies = self.table.curve(config, seed=seed)
            within = [s for s in seconds if s <= self.t_max]
            reached = [s for s, a in zip(within, accuracies, strict=False) if a >= self.target]
            missed = Replicate(seconds[min(len(within), len(seconds) - 1)], False)
            repeats.append(Replicate(reached[0], True) if reached else missed)
        return expected_running_time(repeats)

    @cached_property
    def least_expected_s(self) -> float:
        """Return the least expected running time of the grid."""
        return min(map(self.expected_s, self.table.configs()))

    def close_configs(self, margin: float) -> int:
        """Count the configurations of the grid within a margin of the best."""
        times = [self.tta(config) for config in self.table.configs()]
        return sum(seconds <= (1 + margin) * self.best_s for seconds in times)

    def trial(
        self, config: Config, rng: np.random.Generator | None = None
    ) -> tuple[list[Point], str]:
        """Return the evaluations of a trial, and what ends it if the tool does not stop it."""
        points: list[Point] = []
        best = 0.0
        for samples, seconds, accuracy in zip(*self.table.curve(config, rng), strict=True):
            best = max(best, accuracy)
            # As in a real run, max_train_seconds acts at the first evaluation after it.
            reached = accuracy >= self.target and seconds <= self.t_max
            score = search_score(
                self.objective,
                time_to_target_s=seconds if reached else None,
                best_value=best,
                baseline_value=self.table.baseline_value,
            )
            time_to_target = seconds if reached else None
            number = len(points) + 1
            points.append(Point(number, samples, seconds, accuracy, best, score, time_to_target))
            if reached or seconds >= self.t_max:
                return points, "target" if reached else "max_train_seconds"
        return points, "epochs"
