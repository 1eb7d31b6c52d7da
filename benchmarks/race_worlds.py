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

from raybench.core.repeats import Repeat

ROUNDS, PRINTED, LATER = 24, 3, 20
COLUMNS = 1 + ROUNDS + PRINTED + LATER
REAL = Path(__file__).with_name("results") / "search_real.json"
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

    def own(self, config: int) -> Repeat:
        return self._repeat(config, 0)

    def run(self, config: int, number: int) -> Repeat:
        return self._repeat(config, 1 + number)

    def printed(self, config: int) -> list[Repeat]:
        """The exclusive runs of the winner, from which its time is printed."""
        return [self._repeat(config, 1 + ROUNDS + i) for i in range(PRINTED)]

    def later(self, config: int) -> np.ndarray:
        """What fresh runs take afterwards; infinite where they miss."""
        seconds = self.seconds[config, 1 + ROUNDS + PRINTED :]
        return np.where(self.hits[config, 1 + ROUNDS + PRINTED :], seconds, np.inf)

    def ranking(self) -> list[int]:
        """Configurations whose own run hit, best first."""
        hit = np.flatnonzero(self.hits[:, 0])
        return [int(one) for one in hit[np.argsort(self.seconds[hit, 0], kind="stable")]]

    def _repeat(self, config: int, column: int) -> Repeat:
        return Repeat(float(self.seconds[config, column]), bool(self.hits[config, column]))


@dataclass(frozen=True)
class World:
    name: str
    truth: np.ndarray
    """True seconds of every configuration: its median, or its expected running time."""
    draw: Callable[[np.random.Generator], Study]

    def regret(self, config: int) -> float:
        return float(self.truth[config] / self.truth.min() - 1)


def plateau(sigma: float, icc: float = ICC, *, count: int = 30, width: float = 0.4) -> World:
    """Configurations evenly spaced, the last `width` slower than the best."""
    truth = np.linspace(1.0, 1.0 + width, count)
    sigmas = np.full(count, sigma)
    name = f"plateau of {count}, sigma {sigma:g}, shared {icc:.0%}"
    return World(name, truth, lambda rng: _lognormal(rng, truth, sigmas, icc))


def uneven(count: int = 30) -> World:
    """A plateau on which configurations differ in sigma as `search_real.json`'s do."""
    truth = np.linspace(1.0, 1.4, count)
    # Spread over the plateau by the golden ratio, so that neither end is the noisier one.
    sigmas = 0.12 + 0.42 * (0.618034 * np.arange(count) % 1.0)
    name = f"plateau of {count}, sigma 0.12 to 0.54"
    return World(name, truth, lambda rng: _lognormal(rng, truth, sigmas, ICC))


def misses(count: int = 30, sigma: float = 0.3) -> World:
    """Two in five configurations hit in 40 to 100 % of their runs; truth is the ERT."""
    place = 0.618034 * np.arange(count) % 1.0
    chance = np.where(place < 0.4, 0.4 + 0.6 * place / 0.4, 1.0)
    median = np.linspace(1.0, 1.4, count)
    normal = np.sqrt(2) * _erfinv((np.arange(4000) + 0.5) / 2000 - 1)
    times = median[:, None] * np.exp(sigma * normal)
    in_time = times < LIMIT
    hit = chance * in_time.mean(1)
    spent = chance * np.where(in_time, times, 0.0).mean(1) + (1 - hit) * LIMIT
    name = f"misses: 40 % hit in 40 - 100 %, sigma {sigma:g}"

    def draw(rng: np.random.Generator) -> Study:
        found = _lognormal(rng, median, np.full(count, sigma), ICC)
        hits = (rng.random(found.hits.shape) < chance[:, None]) & (found.seconds < LIMIT)
        return Study(np.where(hits, found.seconds, LIMIT), hits)

    return World(name, spent / hit, draw)


def real() -> World:
    """20 seeds of the near-best configurations of real searches; a seed is the same for all."""
    found = [one["runs"] for one in json.loads(REAL.read_text())["truth"]]
    runs = np.array([times for times in found if len(times) == SEEDS and None not in times])

    def draw(rng: np.random.Generator) -> Study:
        seconds = runs[:, rng.integers(runs.shape[1], size=COLUMNS)]
        return Study(seconds, np.ones(seconds.shape, bool))

    return World(f"search_real.json, {len(runs)} x {SEEDS} seeds", np.median(runs, axis=1), draw)


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

    truth = np.median(np.where(all_hits, all_s, np.inf), axis=1)
    return World(f"AlgoPerf {content['workload']}", truth, draw)


def _lognormal(
    rng: np.random.Generator, medians: np.ndarray, sigmas: np.ndarray, icc: float
) -> Study:
    shape = len(medians), COLUMNS
    noise = math.sqrt(icc) * rng.normal(size=(1, COLUMNS))
    noise = noise + math.sqrt(1 - icc) * rng.normal(size=shape)
    seconds = medians[:, None] * np.exp(sigmas[:, None] * noise)
    return Study(seconds, np.ones(shape, bool))


def _erfinv(y: np.ndarray) -> np.ndarray:
    from scipy.special import erfinv

    return np.asarray(erfinv(y))
