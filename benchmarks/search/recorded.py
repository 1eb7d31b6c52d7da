"""Recorded grids: learning curves and step times of really trained configurations, by table.

`record_table.py` writes them. A `Task` is a table with a target: what a search is for.
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
"""A table's batches per worker are those whose every product with these is a recorded one."""
SLOTS = 8
CHANCE = 0.1
"""Accuracy of an answer that never looks, in tables that do not say it."""
REACHING = 0.10
"""The default target is one that this share of the recorded cells ever reaches."""
PATIENCE = 8.0
"""max_train_seconds over the best time to target: a user's guess, made without knowing it."""
LATENCY_SHARE = 0.85
"""Of two workers' exchange time. Gloo on this machine: 2 x 0.45 ms of latency and 1.1 GB/s, and
the gradients of these small networks are 0.2 MB at most."""


@dataclass(frozen=True)
class Config:
    """What a tool proposes; the replay takes the recorded rate nearest to `rate`, in log."""

    optimizer: str
    rate: float
    batch_size_per_worker: int
    num_workers: int


@dataclass(frozen=True)
class Point:
    """A trial at an evaluation. `score` is what every tool minimises (log seconds to target)."""

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
    """What a user would write down before the search; all that a tool may know."""

    rates: dict[str, tuple[float, float]]
    """Per optimizer, log-uniform."""
    batch_sizes_per_worker: tuple[int, ...]
    num_workers: tuple[int, ...]
    objective: Objective
    """time_to_accuracy with the task's target and max_train_seconds."""
    num_evaluations: int
    """Of a trial that nothing ends early."""
    baseline_value: float = CHANCE

    def rate(self, optimizer: str, share: float) -> float:
        """Map 0..1 to the optimizer's range, for tools without conditional ranges."""
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
        # A diverged run ends early: it stays where it was, so that seeds can be averaged.
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
        """What a second worker adds to a step; the gradients do not depend on the batch."""
        added = [
            s - self._step_s[optimizer, batch, 1]
            for (optimizer, batch, workers), s in self._step_s.items()
            if workers == 2
        ]
        return max(float(np.median(added)), 0.0)

    def step_s(self, optimizer: str, batch: int, workers: int) -> float:
        """Seconds of a step: measured for one and two workers, extrapolated beyond.

        step(k) = step(1) + exchange(2) f(k). The ring all-reduce takes 2 (k-1) messages of
        1/k of the gradients each: its latency grows with k-1 and its transfer with 2 (k-1)/k,
        both 1 at k=2.
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
        """Return samples, train seconds and accuracies: the seeds' mean, or one given or drawn."""
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
        """Return the accuracy that 10 % of the cells ever reach, rounded down to half a point."""
        highest = np.nanmax(self.mean, axis=-1)
        return math.floor(200 * float(np.quantile(highest, 1 - REACHING))) / 200

    def tta(self, config: Config, target: float) -> float:
        """Train seconds of the mean curve's first evaluation at the target, or infinity."""
        _, seconds, accuracies = self.curve(config)
        hits = (s for s, accuracy in zip(seconds, accuracies, strict=True) if accuracy >= target)
        return next(hits, math.inf)

    def best(self, target: float) -> tuple[Config, float]:
        """Return the exhaustive best and its time to target."""
        times = {config: self.tta(config, target) for config in self.configs()}
        config = min(times, key=lambda c: times[c])
        return config, times[config]


def _mean_over_seeds(accuracy: np.ndarray) -> np.ndarray:
    there = ~np.isnan(accuracy)
    counts = there.sum(axis=-2)
    sums = np.where(there, accuracy, 0.0).sum(axis=-2)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


class Task:
    """A table with a target: what a search is for."""

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
        """Return what the tools are told."""
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
        """Return the true time to target, infinite beyond max_train_seconds."""
        seconds = self.table.tta(config, self.target)
        return seconds if seconds <= self.t_max else math.inf

    def expected_s(self, config: Config) -> float:
        """Return the expected running time over the recorded seeds: of who trains it again."""
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
        """Return a trial's evaluations and what ends it, if its tool does not."""
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
