"""Pools: configurations that others trained with several seeds, replayed from their records.

The data are AlgoPerf's learning curves and Zeus's traces (`RAYBENCH_DATA`; their README states what
was measured). Only the order in which the seeds of a configuration are drawn is simulated.
"""

import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ALGOPERF = ("criteo1tb", "fastmri", "imagenet_vit", "librispeech_conformer", "ogbg")
ZEUS_TARGETS = {
    "cifar100": 0.6,
    "imagenet": 0.65,
    "squad": 84.0,
    "librispeech": 40.0,
    "movielens-1m": 0.41,
    "sentiment140": 0.84,
}
"""Targets of the source's own simulator."""
GPU = "V100"
"""The one of Zeus's four GPUs that AlgoPerf has, too; they differ by nearly constant factors."""
PATIENCE = 8.0
"""Time limit of runs in Zeus's pools over the best median, as in `recorded.py`."""
MIN_SEEDS, MIN_OPTIONS = 4, 4
"""Minimum number of runs of a batch size of Zeus, and of batch sizes of a task."""


@dataclass(frozen=True)
class Run:
    """One recorded training."""

    seconds: np.ndarray
    """Training seconds at each evaluation; at least one."""
    metric: np.ndarray
    """Metric at each evaluation, higher is better (the sign of a loss is reversed)."""
    reached_s: float
    """Seconds to the target; infinite for a miss."""

    @property
    def spent_s(self) -> float:
        """Training seconds up to the target, or to the end of the record."""
        return self.reached_s if math.isfinite(self.reached_s) else float(self.seconds[-1])


@dataclass(frozen=True)
class Option:
    """A configuration of a pool and its recorded runs."""

    group: str
    """The optimizer, or the only group if it is not searched."""
    setting: int
    """Number of the setting within the group."""
    runs: tuple[Run, ...]

    @cached_property
    def median_s(self) -> float:
        """True time: the median seconds to the target of all recorded runs."""
        return float(np.median([run.reached_s for run in self.runs]))


@dataclass(frozen=True)
class Pool:
    """A search problem with a known answer."""

    name: str
    options: tuple[Option, ...]
    max_seconds: float
    num_workers: int
    target: float
    """Target of the metric, higher is better."""
    start: float
    """Approximate metric before training: the worst recorded value."""

    @cached_property
    def best_s(self) -> float:
        """The least median time to the target."""
        return min(option.median_s for option in self.options)

    @property
    def groups(self) -> dict[str, list[int]]:
        """The settings of every group, in order."""
        found: dict[str, list[int]] = {}
        for option in self.options:
            found.setdefault(option.group, []).append(option.setting)
        return found

    def find(self, group: str, setting: int) -> int:
        """Return the number of an option."""
        pairs = [(option.group, option.setting) for option in self.options]
        return pairs.index((group, setting))


class Draws:
    """Draws recorded runs of an option, with or without replacement.

    With replacement the true time is exactly the median of the recorded seeds, but two runs may be
    the same. Without replacement (in random order, anew after the last one), a policy that repeats
    an option as often as it has seeds knows its true time.
    """

    def __init__(self, pool: Pool, rng: np.random.Generator, *, is_once: bool = False) -> None:
        self._pool, self._rng, self._is_once = pool, rng, is_once
        self._left: dict[int, list[int]] = {}
        self.used: dict[int, set[int]] = {}
        """Seeds that were drawn, by option."""

    def next(self, option: int) -> Run:
        """Return the next run of an option."""
        runs = self._pool.options[option].runs
        left = self._left.setdefault(option, [])
        if not left:
            left.extend(self._rng.permutation(len(runs)).tolist())
        seed = left.pop()
        if not self._is_once:
            left.clear()
        self.used.setdefault(option, set()).add(seed)
        return runs[seed]

    def unused_s(self, option: int) -> float | None:
        """Return the median seconds to the target of the seeds not drawn; None if all were."""
        runs = self._pool.options[option].runs
        unused = [run for seed, run in enumerate(runs) if seed not in self.used.get(option, set())]
        return float(np.median([run.reached_s for run in unused])) if unused else None


def pools(data: Path) -> Iterator[Pool]:
    """Read every pool of the folder `RAYBENCH_DATA`."""
    for name in ALGOPERF:
        (file,) = (data / "algoperf").glob(f"{name}_*.json.gz")
        with gzip.open(file) as stream:
            yield _algoperf(name, json.load(stream))
    epochs = pd.read_csv(data / "zeus" / "epochs_to_target.csv")
    profiles = pd.read_csv(data / "zeus" / "epoch_seconds.csv")
    for task, target in ZEUS_TARGETS.items():
        pool = _zeus(task, target, epochs[epochs["task"] == task], profiles)
        if pool is not None:
            yield pool


def _algoperf(name: str, content: dict[str, Any]) -> Pool:
    sign = 1.0 if content["direction"] == "max" else -1.0
    runs: dict[int, list[Run]] = {number: [] for number in range(len(content["configs"]))}
    for row in content["runs"]:
        known = row["seconds"] or [0.0]  # no evaluation was logged: its seconds are not known
        values = [math.nan if v is None else sign * v for v in row["metric"]] or [math.nan]
        reached = math.inf if row["reached_s"] is None else row["reached_s"]
        runs[row["config"]].append(Run(np.array(known), np.array(values), reached))
    options, counts = [], dict[str, int]()
    for number, config in enumerate(content["configs"]):
        group = config["optimizer"]
        counts[group] = counts.get(group, -1) + 1
        options.append(Option(group, counts[group], tuple(runs[number])))
    return _pool(name, options, float(content["max_seconds"]), 8, sign * content["target"])


def _zeus(task: str, target: float, epochs: pd.DataFrame, profiles: pd.DataFrame) -> Pool | None:
    """Build a task's pool of batch sizes; None if too few were run often enough.

    The curve of a run follows from its epochs to all targets: the best target reached by each
    epoch. How long a run that missed has trained is not recorded; it is assumed to be as long as
    the longest known run of the task.
    """
    sign = 1.0 if epochs["direction"].iloc[0] == "max" else -1.0
    (optimizer,) = epochs["optimizer"].unique()
    last = float(epochs["epochs"].max())
    mine = profiles[
        (profiles["task"] == task) & (profiles["gpu"] == GPU) & (profiles["optimizer"] == optimizer)
    ]
    full = mine[mine["power_limit_w"] == mine["power_limit_w"].max()]
    epoch_s = full.set_index("batch_size")["seconds_per_epoch"]
    found: list[tuple[Run, ...]] = []
    for batch, rows in epochs.groupby("batch_size"):
        if batch in epoch_s.index and rows["seed"].nunique() >= MIN_SEEDS:
            seconds = float(epoch_s[batch])
            runs = [_zeus_run(run, seconds, last, sign, target) for _, run in rows.groupby("seed")]
            found.append(tuple(runs))
    if len(found) < MIN_OPTIONS:
        return None
    most = PATIENCE * min(Option("batch", 0, runs).median_s for runs in found)
    options = [
        Option("batch", number, tuple(_ended(run, most) for run in runs))
        for number, runs in enumerate(found)
    ]
    return _pool(f"zeus {task}", options, most, 1, sign * target)


def _zeus_run(rows: pd.DataFrame, epoch_s: float, last: float, sign: float, target: float) -> Run:
    met = rows.dropna(subset="epochs")
    by_epoch = (sign * met["target"]).groupby(met["epochs"]).max().sort_index().cummax()
    by_epoch = by_epoch.reindex([float(epoch) for epoch in range(1, int(last) + 1)]).ffill()
    hit = met.loc[np.isclose(met["target"], target), "epochs"]
    reached = float(hit.iloc[0]) if len(hit) else math.inf
    ends = int(min(reached, last))
    seconds = epoch_s * np.arange(1, ends + 1)
    return Run(seconds, by_epoch.to_numpy()[:ends], epoch_s * reached)


def _ended(run: Run, most: float) -> Run:
    """Return a run cut at the time limit `most`; the first evaluation stays."""
    kept = max(1, int((run.seconds <= most).sum()))
    reached = run.reached_s if run.reached_s <= most else math.inf
    return Run(run.seconds[:kept], run.metric[:kept], reached)


def _pool(name: str, options: list[Option], most: float, num_workers: int, target: float) -> Pool:
    values = [run.metric[0] for option in options for run in option.runs]
    finite = [value for value in values if math.isfinite(value)]
    start = min([*finite, target - abs(target)])
    return Pool(name, tuple(options), most, num_workers, target, start)
