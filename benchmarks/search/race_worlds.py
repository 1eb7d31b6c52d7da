"""Worlds for `race.py`: configurations whose true times are known, and seeds drawn from them.

A study holds one draw: the search's own run of every configuration, the runs a race can ask for
(round r has one seed for all), and fresh ones. Made worlds have log-normal times; recorded ones
draw from measured repetitions with replacement, so their medians are the truth.
"""

import gzip
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import ndtri

from raybench.stats.replicates import Replicate

ROUNDS, PRINTED, LATER = 24, 3, 20
COLUMNS = 1 + ROUNDS + PRINTED + LATER
REAL = Path(__file__).parents[1] / "results" / "search_real.json"
ICC = 0.26
"""Share of the variance that a seed does to all configurations alike (`search_real.json`)."""
SEEDS = 20
"""Of configurations near the best there; those far from it were run less often."""
LIMIT = 3.0
"""`max_train_seconds` in best medians, in the worlds with misses."""


@dataclass(frozen=True)
class Study:
    """One draw: outcomes by configuration and column, nothing stopped early."""

    seconds: np.ndarray
    """(configurations, COLUMNS): to the target, or spent where it was missed."""
    hits: np.ndarray

    def own(self, config: int) -> Replicate:
        """The search's run."""
        return self._repeat(config, 0)

    def run(self, config: int, number: int) -> Replicate:
        """The run of a round, not stopped early."""
        return self._repeat(config, 1 + number)

    def printed(self, config: int) -> list[Replicate]:
        """The exclusive runs of the winner, from which its time is printed."""
        return [self._repeat(config, 1 + ROUNDS + i) for i in range(PRINTED)]

    def later(self, config: int) -> list[Replicate]:
        """What fresh runs take afterwards."""
        return [self._repeat(config, 1 + ROUNDS + PRINTED + i) for i in range(LATER)]

    def ranking(self) -> list[int]:
        """Configurations whose own run hit, best first."""
        hit = np.flatnonzero(self.hits[:, 0])
        return [int(one) for one in hit[np.argsort(self.seconds[hit, 0], kind="stable")]]

    def _repeat(self, config: int, column: int) -> Replicate:
        return Replicate(float(self.seconds[config, column]), bool(self.hits[config, column]))


@dataclass(frozen=True)
class World:
    """Where studies are drawn, and what is true there."""

    name: str
    medians: np.ndarray
    """True median seconds of every configuration; infinite where most runs miss."""
    expected: np.ndarray
    """True expected running times [s]."""
    draw: Callable[[np.random.Generator], Study]
    by_expected: bool = False
    """Whether the best is the one of least expected running time, not of least median."""

    @property
    def truth(self) -> np.ndarray:
        """What configurations are judged by."""
        return self.expected if self.by_expected else self.medians

    def regret(self, config: int) -> float:
        """How much slower than the best one."""
        return float(self.truth[config] / self.truth.min() - 1)


def plateau(sigma: float, icc: float = ICC, *, count: int = 30, width: float = 0.4) -> World:
    """Configurations evenly spaced, the last `width` slower than the best."""
    truth = np.linspace(1.0, 1.0 + width, count)
    sigmas = np.full(count, sigma)
    name = f"plateau of {count}, sigma {sigma:g}, shared {icc:.0%}"
    return _made(name, truth, sigmas, icc)


def uneven(count: int = 30) -> World:
    """A plateau on which configurations differ in sigma as `search_real.json`'s do."""
    truth = np.linspace(1.0, 1.4, count)
    # Spread over the plateau by the golden ratio, so that neither end is the noisier one.
    sigmas = 0.12 + 0.42 * (0.618034 * np.arange(count) % 1.0)
    return _made(f"plateau of {count}, sigma 0.12 to 0.54", truth, sigmas, ICC)


def misses(count: int = 30, sigma: float = 0.3) -> World:
    """Two in five configurations hit in 40 to 100 % of their runs; truth is the ERT."""
    place = 0.618034 * np.arange(count) % 1.0
    baseline_value = np.where(place < 0.4, 0.4 + 0.6 * place / 0.4, 1.0)
    median = np.linspace(1.0, 1.4, count)
    normal = ndtri((np.arange(4000) + 0.5) / 4000)
    times = median[:, None] * np.exp(sigma * normal)
    in_time = times < LIMIT
    hit = baseline_value * in_time.mean(1)
    spent = baseline_value * np.where(in_time, times, 0.0).mean(1) + (1 - hit) * LIMIT
    name = f"misses: 40 % hit in 40 - 100 %, sigma {sigma:g}"

    def draw(rng: np.random.Generator) -> Study:
        found = _lognormal(rng, median, np.full(count, sigma), ICC)
        hits = (rng.random(found.hits.shape) < baseline_value[:, None]) & (found.seconds < LIMIT)
        return Study(np.where(hits, found.seconds, LIMIT), hits)

    # The median of all runs is that quantile of the hits; few are beyond the limit.
    middle = np.where(baseline_value > 0.5, 0.5 / baseline_value, 0.5)
    medians = np.where(baseline_value > 0.5, median * np.exp(sigma * ndtri(middle)), np.inf)
    return World(name, medians, spent / hit, draw, by_expected=True)


def real() -> World:
    """20 seeds of the near-best configurations of real searches; a seed is the same for all."""
    found = [one["runs"] for one in json.loads(REAL.read_text())["truth"]]
    runs = np.array([times for times in found if len(times) == SEEDS and None not in times])

    def draw(rng: np.random.Generator) -> Study:
        seconds = runs[:, rng.integers(runs.shape[1], size=COLUMNS)]
        return Study(seconds, np.ones(seconds.shape, bool))

    name = f"search_real.json, {len(runs)} x {SEEDS} seeds"
    return World(name, np.median(runs, axis=1), runs.mean(axis=1), draw)


def pool(file: Path) -> World:
    """A pool of AlgoPerf's: five runs a configuration, no seed in common."""
    with gzip.open(file) as opened:
        content = json.load(opened)
    seconds: list[list[float]] = [[] for _ in content["configs"]]
    hits: list[list[bool]] = [[] for _ in content["configs"]]
    for run in content["runs"]:
        # What a run without an evaluation has spent is unknown: to the first one at least.
        spent = run["seconds"][-1] if run["seconds"] else content["eval_period_seconds"]
        is_hit = run["reached_s"] is not None
        seconds[run["config"]].append(run["reached_s"] if is_hit else spent)
        hits[run["config"]].append(is_hit)
    all_s, all_hits = np.array(seconds), np.array(hits)

    def draw(rng: np.random.Generator) -> Study:
        chosen = rng.integers(all_s.shape[1], size=(len(all_s), COLUMNS))
        rows = np.arange(len(all_s))[:, None]
        return Study(all_s[rows, chosen], all_hits[rows, chosen])

    medians = np.median(np.where(all_hits, all_s, np.inf), axis=1)
    count = all_hits.sum(1)
    expected = np.divide(all_s.sum(1), count, out=np.full(len(count), np.inf), where=count > 0)
    return World(f"AlgoPerf {content['workload']}", medians, expected, draw)


def _made(name: str, medians: np.ndarray, sigmas: np.ndarray, icc: float) -> World:
    expected = medians * np.exp(sigmas**2 / 2)
    return World(name, medians, expected, lambda rng: _lognormal(rng, medians, sigmas, icc))


def _lognormal(
    rng: np.random.Generator, medians: np.ndarray, sigmas: np.ndarray, icc: float
) -> Study:
    shape = len(medians), COLUMNS
    noise = math.sqrt(icc) * rng.normal(size=(1, COLUMNS))
    noise = noise + math.sqrt(1 - icc) * rng.normal(size=shape)
    seconds = medians[:, None] * np.exp(sigmas[:, None] * noise)
    return Study(seconds, np.ones(shape, bool))
