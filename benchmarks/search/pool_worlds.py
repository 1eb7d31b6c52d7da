"""Pools: fixed configurations that others trained several times, to be replayed with their seeds.

AlgoPerf's learning curves and Zeus's traces (`RAYBENCH_DATA`; their README says what is measured
and what is not). Nothing is simulated but the order in which a configuration's seeds are met.
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
"""Those of the source's own simulator."""
GPU = "V100"
"""Of Zeus's four, which differ by nearly constant factors; AlgoPerf's is the same."""
PATIENCE = 8.0
"""Seconds a run may take in Zeus's pools, over the best median: a user's guess (`recorded.py`)."""
MIN_SEEDS, MIN_OPTIONS = 4, 4
"""A batch size of Zeus that was run less often is left out, and a task with fewer of them."""


@dataclass(frozen=True)
class Run:
    """One recorded training."""

    seconds: np.ndarray
    """Of training, at each evaluation; at least one."""
    metric: np.ndarray
    """There, the more the better (a loss has its sign turned); NaN: not a number."""
    reached_s: float
    """Seconds to the target; infinite where it was not reached."""

    @property
    def spent_s(self) -> float:
        """Seconds the run cost: up to the target, or to where its record ends."""
        return self.reached_s if math.isfinite(self.reached_s) else float(self.seconds[-1])


@dataclass(frozen=True)
class Option:
    """A configuration: its place in the pool, and its recorded runs."""

    group: str
    """The optimizer; one of all where it is not searched."""
    setting: int
    """Within the group."""
    runs: tuple[Run, ...]

    @cached_property
    def median_s(self) -> float:
        """The truth: the median of all recorded runs' seconds to the target."""
        return float(np.median([run.reached_s for run in self.runs]))


@dataclass(frozen=True)
class Pool:
    """A search problem with a known answer."""

    name: str
    options: tuple[Option, ...]
    max_seconds: float
    num_workers: int
    target: float
    """Of the metric, the more the better."""
    start: float
    """What the metric is before training, about: the worst value recorded."""

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
    """Hands out an option's recorded runs: any of them each time, or every one once.

    With replacement the recorded seeds are all there is, and the truth is their median exactly;
    but two runs may be the same one. Each once (in a random order, anew once all were met), a
    policy that repeats as often as there are seeds has seen the truth itself.
    """

    def __init__(self, pool: Pool, rng: np.random.Generator, *, is_once: bool = False) -> None:
        self._pool, self._rng, self._is_once = pool, rng, is_once
        self._left: dict[int, list[int]] = {}
        self.used: dict[int, set[int]] = {}
        """The seeds that were met, by option."""

    def next(self, option: int) -> Run:
        """Train an option once more."""
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
        """Return the median seconds to the target of the seeds not met; None: all were."""
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
    """Build a task's pool over batch sizes; None where too few were run often enough.

    A run's curve is what its epochs to all targets tell: the best target met by every epoch. How
    long a run trained that missed is not recorded; it is taken to have gone on for as long as the
    longest known run of the task.
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
    """Return the run as it is where nothing may train for longer; the first evaluation stays."""
    kept = max(1, int((run.seconds <= most).sum()))
    reached = run.reached_s if run.reached_s <= most else math.inf
    return Run(run.seconds[:kept], run.metric[:kept], reached)


def _pool(name: str, options: list[Option], most: float, num_workers: int, target: float) -> Pool:
    values = [run.metric[0] for option in options for run in option.runs]
    finite = [value for value in values if math.isfinite(value)]
    start = min([*finite, target - abs(target)])
    return Pool(name, tuple(options), most, num_workers, target, start)
