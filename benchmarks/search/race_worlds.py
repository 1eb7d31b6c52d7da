"""Worlds for `race.py`: configurations with known true times, and runs drawn from them.

A study is one draw: the run of every configuration in the search, the runs that a race can request
(all runs of a round have the same seed), and fresh runs. Times of simulated worlds are log-normal;
recorded worlds draw measured repetitions with replacement, so their medians are the truth.
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
"""Share of the variance that seeds have in common over configurations (`search_real.json`)."""
SEEDS = 20
"""Seeds of configurations near the best there; those far from it were run less often."""
LIMIT = 3.0
"""`max_train_seconds` over the best median, in the world with misses."""


@dataclass(frozen=True)
class Study:
    """One draw: runs by configuration and column, none stopped early."""

    seconds: np.ndarray
    """Seconds to the target, or until a miss ended; shape [configurations, COLUMNS]."""
    hits: np.ndarray

    def own(self, config: int) -> Replicate:
        """Return the run in the search."""
        return self._repeat(config, 0)

    def run(self, config: int, number: int) -> Replicate:
        """Return the run of a round, not stopped early."""
        return self._repeat(config, 1 + number)

    def printed(self, config: int) -> list[Replicate]:
        """Return the winner's runs alone on the machine, which give its printed time."""
        return [self._repeat(config, 1 + ROUNDS + i) for i in range(PRINTED)]

    def later(self, config: int) -> list[Replicate]:
        """Return later runs."""
        return [self._repeat(config, 1 + ROUNDS + PRINTED + i) for i in range(LATER)]

    def ranking(self) -> list[int]:
        """Return the configurations whose run in the search hit, best first."""
        hit = np.flatnonzero(self.hits[:, 0])
        return [int(one) for one in hit[np.argsort(self.seconds[hit, 0], kind="stable")]]

    def _repeat(self, config: int, column: int) -> Replicate:
        return Replicate(float(self.seconds[config, column]), bool(self.hits[config, column]))


@dataclass(frozen=True)
class World:
    """A distribution of studies, with the true times of its configurations."""

    name: str
    medians: np.ndarray
    """True median seconds of every configuration; infinite if most runs miss."""
    expected: np.ndarray
    """True expected running times [s]."""
    draw: Callable[[np.random.Generator], Study]
    by_expected: bool = False
    """Whether configurations are judged by expected running time instead of the median."""

    @property
    def truth(self) -> np.ndarray:
        """True time by which configurations are judged."""
        return self.expected if self.by_expected else self.medians

    def regret(self, config: int) -> float:
        """Return by how much a configuration is slower than the best one."""
        return float(self.truth[config] / self.truth.min() - 1)


def plateau(sigma: float, icc: float = ICC, *, count: int = 30, width: float = 0.4) -> World:
    """Return evenly spaced configurations, the last one slower than the best by `width`."""
    truth = np.linspace(1.0, 1.0 + width, count)
    sigmas = np.full(count, sigma)
    name = f"plateau of {count}, sigma {sigma:g}, shared {icc:.0%}"
    return _made(name, truth, sigmas, icc)


def uneven(count: int = 30) -> World:
    """Return a plateau whose configurations differ in sigma like those of `search_real.json`."""
    truth = np.linspace(1.0, 1.4, count)
    # Spread over the plateau by the golden ratio, so that neither end is the noisier one.
    sigmas = 0.12 + 0.42 * (0.618034 * np.arange(count) % 1.0)
    return _made(f"plateau of {count}, sigma 0.12 to 0.54", truth, sigmas, ICC)


def misses(count: int = 30, sigma: float = 0.3) -> World:
    """Return a world in which two of five configurations hit in 40 to 100 % of their runs."""
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
    """Return the near-best configurations of real searches, with 20 seeds common to all."""
    found = [one["runs"] for one in json.loads(REAL.read_text())["truth"]]
    runs = np.array([times for times in found if len(times) == SEEDS and None not in times])

    def draw(rng: np.random.Generator) -> Study:
        seconds = runs[:, rng.integers(runs.shape[1], size=COLUMNS)]
        return Study(seconds, np.ones(seconds.shape, bool))

    name = f"search_real.json, {len(runs)} x {SEEDS} seeds"
    return World(name, np.median(runs, axis=1), runs.mean(axis=1), draw)


def pool(file: Path) -> World:
    """Return a pool of AlgoPerf: five runs per configuration, no common seeds."""
    with gzip.open(file) as opened:
        content = json.load(opened)
    seconds: list[list[float]] = [[] for _ in content["configs"]]
    hits: list[list[bool]] = [[] for _ in content["configs"]]
    for run in content["runs"]:
        # A run without an evaluation has trained for an unknown time, at least to the first one.
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
