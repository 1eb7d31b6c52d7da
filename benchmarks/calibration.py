"""Claim: intervals and probabilities that raybench prints hold as often as promised.

Each sentence, column or key with an interval, an error rate or a probability is simulated: runs are
drawn around a known truth, with scatter and numbers as in real studies, raybench's own function is
applied to them, and the sentence is compared with the truth.

    python benchmarks/calibration.py [--quick] [--only WORD]

Writes results/calibration.json and the table of docs/benchmarks.md, with losses and wins; exit 1 if
a 90 % interval holds in less than 85 of 100 studies, or an error rate is above the promised one (by
more than two standard errors). Five minutes on one core; `--quick` takes a tenth of the studies.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from raybench.results.ranking import with_rows
from raybench.results.store import machine, versions
from raybench.scaling.diagnosis import AXES, AxisProbes, find_bottleneck
from raybench.scaling.forecast import OptimumModel, SmallRun
from raybench.scaling.measurements import Predicted
from raybench.scaling.plan import chance, plan, run_spread
from raybench.scaling.samples_to_target import fit, leave_one_out
from raybench.scaling.shares import PARTS, Estimate, Probes, Shares
from raybench.search.race import Race
from raybench.spec.metric import ACCURACY
from raybench.spec.objective import ONE_SIDED, Baseline, share_error
from raybench.spec.run import RunSpec
from raybench.stats.replicates import Replicate, interval, intervals_of_chosen, pooled
from raybench.stats.sequential import compare, outcome_of, pairs_needed
from raybench.stats.standing import (
    Candidate,
    ConfigurationRuns,
    group_of,
    runs_to_decide,
    stages,
    ties_of,
)

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/calibration.json"
DOC = ROOT / "docs/benchmarks.md"
BEGIN, END = "<!-- calibration -->", "<!-- /calibration -->"
Rng = np.random.Generator
Trial = Callable[[Rng], bool | None]
"""Returns whether the sentence was true in one study; None if it was not printed."""


@dataclass(frozen=True)
class Claim:
    """A sentence and a world in which it is simulated."""

    name: str
    sentence: str
    """The printed sentence, shortened."""
    world: str
    promised: float
    """Promised share (of 100): a minimum, or a maximum for an error."""
    trial: Trial
    n: int
    is_error: bool = False

    def is_met(self, share: float, number: int) -> bool:
        """Return whether the share of `number` studies keeps the promise: 85 for 90 of 100."""
        leeway = 200 * math.sqrt(max(share * (100 - share), 100.0) / 1e4 / max(number, 1))
        if self.is_error:
            return share <= self.promised + leeway
        return share >= self.promised * 85 / 90 - leeway


CLAIMS: list[Claim] = []


def claim(
    sentence: str, promised: float, n: int, *worlds: tuple[Any, ...], is_error: bool = False
) -> Callable[[Callable[..., bool | None]], Callable[..., bool | None]]:
    """Register a simulation; each world is a label and the arguments of the function."""

    def register(trial: Callable[..., bool | None]) -> Callable[..., bool | None]:
        for words, *given in worlds:
            own = partial(_with, trial, given)
            CLAIMS.append(Claim(trial.__name__, sentence, words, promised, own, n, is_error))
        return trial

    return register


def _with(trial: Callable[..., bool | None], given: list[Any], rng: Rng) -> bool | None:
    return trial(rng, *given)


def hits(values: Any, *, is_timed: bool = True) -> list[Replicate]:
    """Return runs that all reach the target."""
    return [Replicate(float(one), True, is_timed) for one in np.atleast_1d(values)]


def race_of(rng: Rng, sigma: float, width: float, shared: float, runs: int) -> tuple[Race, Any]:
    """Return a finished race and the true log times of its 30 trials.

    True times are within `width`, and seeds share the part `shared` of their variance.
    """
    true = rng.uniform(0.0, width, 30)
    common = rng.normal(size=40)

    def run(one: int, seed: int | None) -> Replicate:
        ours = common[seed] if seed is not None else rng.normal()
        noise = math.sqrt(shared) * ours + math.sqrt(1 - shared) * rng.normal()
        return Replicate(math.exp(true[one] + sigma * noise), True)

    own = [run(one, None) for one in range(30)]
    best = sorted(range(30), key=lambda one: own[one].seconds)
    race = Race([Candidate(str(one), own[one], 1.0) for one in best], stages(runs), axis="seconds")
    while due := race.due():
        for one in due:
            race.learn(one.name, one.round, run(int(one.name), one.round))
    return race, true


RACES = (
    ("scatter 30 %, times within 50 %, 24 runs", 0.3, 0.5, 0.0, 24),
    ("scatter 30 %, times within 20 %, 24 runs", 0.3, 0.2, 0.0, 24),
    ("scatter 30 %, within 35 %, seeds share 26 %", 0.3, 0.35, 0.26, 24),
    ("scatter 20 %, times within 50 %, 24 runs", 0.2, 0.5, 0.0, 24),
    ("scatter 50 %, within 35 %, seeds share 26 %", 0.5, 0.35, 0.26, 24),
    ("scatter 30 %, times within 50 %, 10 runs", 0.3, 0.5, 0.0, 10),
)


@claim("race table, first row: 90 % interval", 90, 400, *RACES)
def race_first(rng: Rng, *world: Any) -> bool:
    """Return whether the interval of the first row holds the configuration's median time."""
    race, true = race_of(rng, *world)
    new = {name: list(race.group(name).rounds.values()) for name in race.order()}
    low, high = intervals_of_chosen(new, pooled(new.values()))[first := race.order()[0]]
    return low <= math.exp(true[int(first)]) <= high


@claim("race table, any other row: 90 % interval", 90, 400, RACES[0], RACES[2], RACES[4])
def race_other(rng: Rng, *world: Any) -> bool:
    """Return whether the interval of a random other row holds the median time."""
    race, true = race_of(rng, *world)
    new = {name: list(race.group(name).rounds.values()) for name in race.order()}
    name = str(rng.choice(race.order()[1:]))
    low, high = intervals_of_chosen(new, pooled(new.values()))[name]
    return low <= math.exp(true[int(name)]) <= high


@claim(
    "In nine of ten similar studies, the winner is the best of the 13 or tied with it",
    90,
    400,
    *RACES,
)
def race_ties(rng: Rng, *world: Any) -> bool:
    """Return whether the best configuration that ran again is the winner or tied with it."""
    race, true = race_of(rng, *world)
    groups = {name: race.group(name) for name in race.order()}
    best = min(groups, key=lambda name: true[int(name)])
    return best in ties_of(groups).repeated


@claim(
    "(the same, if nothing is tied) ... the winner is the best of the 13",
    *(90, 600),
    ("scatter 10 %, times a factor of 400 apart at most", 0.1, 6.0, 0.0, 24),
    ("scatter 30 %, times a factor of 400 apart at most", 0.3, 6.0, 0.0, 24),
)
def race_alone(rng: Rng, *world: Any) -> bool | None:
    """Return whether a winner without ties is the best of those that ran again."""
    race, true = race_of(rng, *world)
    groups = {name: race.group(name) for name in race.order()}
    found = ties_of(groups).repeated
    return None if len(found) > 1 else true[int(found[0])] == min(true[int(n)] for n in groups)


@claim(
    "reaches the target after 0.51 s (90 % interval: 0.38 to 0.61 s)",
    *(90, 1500),
    ("3 fresh runs, scatter 30 %", 0.3, 3),
    ("3 fresh runs, scatter 10 %", 0.1, 3),
    ("3 fresh runs, scatter 50 %", 0.5, 3),
    ("2 fresh runs, scatter 30 %", 0.3, 2),
    ("3 fresh runs, configurations scatter by 12 to 54 %", None, 3),
)
def printed_time(rng: Rng, sigma: float | None, runs: int) -> bool:
    """Return whether the interval from fresh runs and the noise of a race holds the median time."""
    own = rng.uniform(0.12, 0.54) if sigma is None else sigma
    others = [rng.uniform(0.12, 0.54) if sigma is None else sigma for _ in range(6)]
    sizes = zip(others, (4, 4, 4, 2, 2, 2), strict=True)
    race = [hits(np.exp(one * rng.normal(size=size))) for one, size in sizes]
    fresh = hits(np.exp(own * rng.normal(size=runs)))
    low, high = interval(fresh, pooled([*race, fresh]))
    return low <= 1.0 <= high


def _results(rows: int) -> Any:
    """Return a study with the attributes that `with_rows` reads."""
    known = Baseline(0.1, rows)
    return SimpleNamespace(metric=ACCURACY, baselines={"test": known, "validation": known})


@claim(
    "test accuracy 94.6 % (90 % interval: 93.0 to 96.0 %)",
    *(90, 1500),
    ("1 configuration, 3 runs, 500 rows, seeds +-1 point", 3, 1, 500, 0.01),
    ("1 configuration, 3 runs, 10,000 rows, seeds +-1 point", 3, 1, 10_000, 0.01),
    ("2 configurations, 2 runs, 1,000 rows, seeds +-0.5 points", 2, 2, 1_000, 0.005),
)
def tested_share(rng: Rng, runs: int, groups: int, rows: int, sigma: float) -> bool:
    """Return whether the interval of an accuracy holds if all seeds share the rows."""
    luck = rng.normal() * share_error(0.9, rows)
    every = [
        hits(-(0.9 + luck + sigma * rng.normal(size=runs)), is_timed=False) for _ in range(groups)
    ]
    ends = interval(every[0], pooled(every))
    low, high = with_rows(_results(rows), "test", ends, [])
    return low <= 0.9 <= high


@claim(
    "RMSE 0.61 (90 % interval over seeds: 0.57 to 0.65)",
    *(90, 2000),
    ("1 configuration of 3 runs", 1, 3),
    ("3 configurations of 3 runs", 3, 3),
    ("2 configurations of 2 runs", 2, 2),
)
def value_over_seeds(rng: Rng, groups: int, runs: int) -> bool:
    """Return whether the interval of a value over seeds holds; values have no prior scatter."""
    every = [hits(rng.normal(size=runs), is_timed=False) for _ in range(groups)]
    low, high = interval(every[0], pooled(every))
    return low <= 0.0 <= high


def _after_more(
    rng: Rng, sigma: float, shared: float, number: int, *gaps: float
) -> tuple[str, ...]:
    """Return the configurations tied with the winner after a race and `number` runs of --more."""
    common, means = rng.normal(size=400), dict(zip("abcd", (0.0, *gaps), strict=False))

    def run(name: str, at: int) -> Replicate:
        noise = math.sqrt(shared) * common[at] + math.sqrt(1 - shared) * rng.normal()
        return Replicate(math.exp(means[name] + sigma * noise), True)

    found = [Candidate(name, run(name, 399 - at), 1.0) for at, name in enumerate(means)]
    learned = {(name, at): run(name, at) for name in means for at in range(4)}
    left = number
    while left and (due := runs_to_decide(found, learned, left, axis="seconds")):
        learned |= {(one.name, one.round): run(one.name, one.round) for one in due}
        left -= len(due)
    new = {name: {at: x for (n, at), x in learned.items() if n == name} for name in means}
    return ties_of(
        {one.name: group_of(one, new[one.name], axis="seconds") for one in found}
    ).repeated


@claim(
    "--more: two equal configurations are declared different",
    *(10, 300),
    ("no --more", 0.3, 0.0, 0, 0.0),
    ("--more 24, scatter 30 %", 0.3, 0.0, 24, 0.0),
    ("--more 100, scatter 30 %", 0.3, 0.0, 100, 0.0),
    ("--more 100, scatter 50 %", 0.5, 0.0, 100, 0.0),
    ("--more 100, scatter 10 %", 0.1, 0.0, 100, 0.0),
    is_error=True,
)
def more_equal(rng: Rng, *world: Any) -> bool:
    """Return whether two equal configurations are declared different."""
    return len(_after_more(rng, *world)) == 1


@claim(
    "--more: the best of four is the winner or tied with it",
    *(90, 150),
    ("1, 2 and 3 % apart, --more 48, scatter 30 %", 0.3, 0.0, 48, 0.01, 0.02, 0.03),
    ("10, 20 and 30 % apart, --more 48, scatter 30 %", 0.3, 0.0, 48, 0.1, 0.2, 0.3),
)
def more_best(rng: Rng, *world: Any) -> bool:
    """Return whether the best configuration is the winner or tied with it."""
    return "a" in _after_more(rng, *world)


@claim(
    "(power) --more: only the faster of two configurations is left",
    *(0, 150),
    ("26 % less, --more 24, scatter 30 %", 0.3, 0.0, 24, 0.3),
    ("26 % less, --more 100, scatter 30 %", 0.3, 0.0, 100, 0.3),
    ("10 % less, --more 100, scatter 30 %", 0.3, 0.0, 100, 0.1),
    ("10 % less, --more 100, scatter 10 %", 0.1, 0.0, 100, 0.1),
)
def more_power(rng: Rng, *world: Any) -> bool:
    """Return whether the faster configuration alone is left."""
    return _after_more(rng, *world) == ("a",)


DRAWS = ("normal", "Student's t, 2 degrees", "one in ten misses")


def _differences(rng: Rng, kind: str, number: int, gap: float = 0.0) -> list[float]:
    if kind == DRAWS[1]:
        return [gap + 0.3 * float(one) for one in rng.standard_t(2, size=number)]
    found = gap + 0.3 * rng.normal(size=number)
    if kind == DRAWS[2]:
        missed = rng.random((2, number)) < 0.1
        found = np.where(missed[0] & ~missed[1], -np.inf, found)
        found = np.where(missed[1] & ~missed[0], np.inf, found)
        found = np.where(missed[0] & missed[1], np.nan, found)
    return [float(one) for one in found]


@claim(
    "compare: B is better than A (it is not), tested after each of 60 pairs",
    *(5, 600),
    *((kind, kind) for kind in DRAWS),
    is_error=True,
)
def compare_equal(rng: Rng, kind: str) -> bool:
    """Return whether B is called better at any pair."""
    found = [one for one in _differences(rng, kind, 60) if not math.isnan(one)]
    looks = range(1, len(found) + 1)
    return any(outcome_of(found[:number], smallest=0.02) == "better" for number in looks)


@claim(
    "compare: no difference of 2 % or more (there is one of 2.5 %)",
    *(5, 300),
    ("pairs scatter by 3 %", 0.03),
    is_error=True,
)
def compare_same(rng: Rng, sigma: float) -> bool:
    """Return whether a real difference is called `same` at any pair."""
    found = (0.025 + sigma * rng.normal(size=60)).tolist()
    return any(outcome_of(found[:number], smallest=0.02) == "same" for number in range(1, 61))


@claim(
    "compare: (90 % interval 2.2 to 51.7 % better) after 15 pairs, when it stopped",
    *(90, 400),
    ("B 20 % faster, scatter 30 %", 0.2),
    ("B 5 % faster, scatter 30 %", 0.05),
)
def compare_interval(rng: Rng, gap: float) -> bool:
    """Return whether the interval holds at the pair where the comparison stops."""
    found = _differences(rng, DRAWS[0], 20, gap)
    number = next(
        (n for n in range(3, 20) if outcome_of(found[:n], smallest=0.02) != "undecided"), 20
    )
    one = compare(found[:number], smallest=0.02)
    return one.low <= gap <= one.high


@claim(
    "compare: about 14 more are likely to decide",
    *(50, 100),
    ("after 10 pairs, B 5 to 40 % faster, scatter 30 %", 10),
    ("after 20 pairs, B 5 to 40 % faster, scatter 30 %", 20),
)
def compare_more(rng: Rng, number: int) -> bool | None:
    """Return whether the predicted number of further pairs decides."""
    found = _differences(rng, DRAWS[0], 9 * number, rng.uniform(0.05, 0.4))
    if outcome_of(found[:number], smallest=0.02) != "undecided":
        return None
    needed = pairs_needed(found[:number], smallest=0.02)
    if needed is None:
        return None
    looks = range(number + 1, number + needed + 1)
    return any(outcome_of(found[:at], smallest=0.02) != "undecided" for at in looks)


@claim(
    "race table, first row, after --more 24: 90 % interval",
    *(90, 100),
    ("scatter 30 %, times within 50 %", 0.3, 0.5, 0.0, 24),
)
def race_first_more(rng: Rng, *world: Any) -> bool:
    """Return whether the interval of the first row holds after runs of --more."""
    race, true = race_of(rng, *world)
    entered = race.candidates[: stages(48)[0][0]]
    learned = {
        (one.name, at): run for one in entered for at, run in race.group(one.name).rounds.items()
    }
    left = 24
    while left and (due := runs_to_decide(entered, learned, left, axis="seconds")):
        for one in due:
            noise = world[0] * rng.normal()
            learned[one.name, one.round] = Replicate(math.exp(true[int(one.name)] + noise), True)
        left -= len(due)
    new = {one.name: {at: x for (n, at), x in learned.items() if n == one.name} for one in entered}
    groups = {one.name: ConfigurationRuns(one.search_run, new[one.name]) for one in entered}
    first = ties_of(groups).repeated[0]
    runs = {name: list(group.rounds.values()) for name, group in groups.items() if group.rounds}
    low, high = intervals_of_chosen(runs, pooled(runs.values()))[first]
    return low <= math.exp(true[int(first)]) <= high


@claim(
    "report --compare: their 90 % intervals do not overlap (two studies, equal winners)",
    *(10, 2000),
    ("3 fresh runs each, scatter 30 %", 0.3),
    ("3 fresh runs each, scatter 50 %", 0.5),
    is_error=True,
)
def overlap(rng: Rng, sigma: float) -> bool:
    """Return whether the intervals of two equal winners do not overlap."""
    ends = []
    for _ in range(2):
        race = [hits(np.exp(sigma * rng.normal(size=4))) for _ in range(3)]
        fresh = hits(np.exp(sigma * rng.normal(size=3)))
        ends.append(interval(fresh, pooled([*race, fresh])))
    return ends[0][1] < ends[1][0] or ends[1][1] < ends[0][0]


@claim(
    "diagnose --fastest: x 1.23 micro-batch 32x2 (all settings are equal), over all axes",
    *(5, 400),
    *(
        (f"{ways} settings per axis, scatter {noise:.0%}, 4 rounds", ways, noise)
        for ways, noise in ((2, 0.03), (5, 0.08), (9, 0.08))
    ),
    is_error=True,
)
def fastest(rng: Rng, ways: int, noise: float) -> bool:
    """Return whether another setting is chosen on any of the axes, although all are equal."""

    def takes() -> bool:
        found = AxisProbes("0", {str(way): [] for way in range(ways)}, {})
        for _ in range(4):
            for way in found.next_round():
                found.step_s[way].append(float(np.exp(noise * rng.normal())))
        return found.chosen != "0"

    return any(takes() for _ in AXES)


@claim(
    "diagnose: compute 62 % (58 to 66 %), a 95 % interval",
    *(95, 3000),
    *((f"{rounds} rounds", rounds) for rounds in (3, 4, 8)),
)
def share_interval(rng: Rng, rounds: int) -> bool:
    """Return whether the interval of a share over rounds holds."""
    found = Estimate.of(0.6 + 0.03 * rng.normal(size=rounds))
    return found.low <= 0.6 <= found.high


@claim(
    "diagnose: Communication-bound (compute is as large)",
    *(10, 600),
    ("4 rounds, steps scatter by 3 %", 4, 0.03),
    ("8 rounds, steps scatter by 8 %", 8, 0.08),
    is_error=True,
)
def bound_by(rng: Rng, rounds: int, noise: float) -> bool:
    """Return whether one of two equally large parts is named as the bottleneck."""
    logs = noise * rng.normal(size=(2, rounds))
    even = {part: np.full(rounds, 0.05) for part in PARTS}
    even["compute"], even["communication"] = 0.45 * np.exp(logs)
    return Shares(even).is_sure


SPEC = RunSpec(num_workers=4, batch_size_per_worker=64)


@claim(
    "diagnose: accumulate: 4 (2.1 times the samples/s, 1.8 to 2.4)",
    *(90, 60),
    ("4 workers, the exchange half of a step, 4 rounds, scatter 3 %", 1.0),
    ("4 workers, twice as much", 2.0),
)
def gain(rng: Rng, exchange: float) -> bool | None:
    """Return whether the interval of a gain holds the true gain."""
    probes = Probes.of(SPEC)

    def step(exchanges: bool, batch: int, passes: int = 1) -> float:
        return passes * (0.1 + 0.9 * batch / 64) + (exchange if exchanges else 0.0)

    times = {}
    for probe in probes.names:
        seconds = step(probe.exchanges, probe.batch_size_per_worker)
        times[probe] = list(seconds * np.exp(0.03 * rng.normal(size=4)))
    found = find_bottleneck(SPEC, times, num_parameters=10**6).gains
    one = next((one for one in found if one.change == "accumulate: 4"), None)
    true = 4 * step(True, 64) / step(True, 64, 4)
    return None if one is None else one.low <= true <= one.high


def _samples(batch: Any, critical: float = 300.0) -> Any:
    return 1e5 * (1 + batch / critical)


def _runs(rng: Rng, sizes: list[int], repeats: int, sigma: float) -> pd.DataFrame:
    batch = np.repeat(sizes, repeats)
    samples = _samples(batch) * np.exp(sigma * rng.normal(size=len(batch)))
    return pd.DataFrame({"batch_size": batch, "samples_to_target": samples})


CURVES = (
    ("4 batch sizes x 3 runs, scatter 10 %", [32, 64, 128, 256], 3, 0.1),
    ("5 batch sizes x 2 runs, scatter 20 %", [64, 128, 256, 512, 1024], 2, 0.2),
    ("4 batch sizes x 1 run, scatter 10 %", [64, 128, 256, 512], 1, 0.1),
)


@claim("scale: the critical batch is about 300 (90 %: 210 to 430)", 90, 120, *CURVES)
def critical(rng: Rng, *world: Any) -> bool:
    """Return whether the interval holds the critical batch of McCandlish's law."""
    found = fit(_runs(rng, *world)).critical_batch
    return found.low <= 300.0 <= found.high


@claim("samples to target: 90 % interval for a left-out batch size", 90, 60, *CURVES[:2])
def left_out(rng: Rng, *world: Any) -> bool:
    """Return whether the interval holds the measured median of the middle batch size."""
    table = leave_one_out(_runs(rng, *world))
    row = table.iloc[len(table) // 2]
    return bool(row["low"] <= row["samples"] <= row["high"])


@claim(
    "plan: spread of the runs of a cell (nine of ten)",
    *(90, 2000),
    ("3 cells x 2 runs", 3, 2),
    ("2 cells x 3 runs", 2, 3),
    ("6 cells x 3 runs", 6, 3),
)
def spread(rng: Rng, cells: int, repeats: int) -> bool:
    """Return whether a further run is within the spread."""
    keys = dict.fromkeys(("gpu_type", "num_workers", "num_nodes"), 1)
    table = pd.DataFrame({**keys, "global_batch_size": np.repeat(range(cells), repeats)})
    away = run_spread(table.assign(work_s=np.exp(0.2 * rng.normal(size=len(table)))))
    assert away is not None
    return bool(abs(0.2 * rng.normal()) <= away)


def _plan(rng: Rng, sizes: list[int], repeats: int, sigma: float) -> tuple[pd.Series, float]:
    """Return the row of a plan (of a batch size that ran) and the time of a further run of it."""
    runs = _runs(rng, sizes, repeats, sigma)
    cells = runs.rename(columns={"batch_size": "global_batch_size"}).assign(
        gpu_type="CPU", num_workers=1, num_nodes=1, work_s=runs["samples_to_target"]
    )
    doubt = 0.05

    def steps(asked: Any) -> list[Predicted]:
        log = doubt * rng.normal()
        step = Predicted(*(math.exp(log + one * 1.645 * doubt) for one in (0, -1, 1)))
        return [step for _ in asked]

    table = plan(
        fit(runs),
        {"CPU": steps},
        layouts=[(1, 1)],
        batch_sizes=sizes,
        run_spread=run_spread(cells),
    )
    row = table.iloc[len(table) // 2]
    batch = row["global_batch_size"]
    return row, float(_samples(batch) / batch * math.exp(sigma * rng.normal()))


@claim("plan: 2 h (1.5 to 2.6 h), the time of one run", 90, 150, *CURVES[:2])
def planned(rng: Rng, *world: Any) -> bool:
    """Return whether the interval of a plan holds the time of a further run."""
    row, takes = _plan(rng, *world)
    return bool(row["low_s"] <= takes <= row["high_s"])


@claim("plan: 80 % sure to keep the deadline", 80, 150, *CURVES[:2])
def deadline(rng: Rng, *world: Any) -> bool:
    """Return whether a deadline with a predicted probability of 80 % is kept."""
    row, takes = _plan(rng, *world)
    low, high = row["low_s"] / 4, row["high_s"] * 4
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if chance(row.to_dict(), seconds=middle) < 0.8 else (low, middle)
    return bool(takes <= high)


@claim(
    "forecast: learning rate 0.003 (90 %: 0.001 to 0.008) of a large model",
    *(90, 60),
    ("12 runs of each of 3 sizes, noise 1 %", 12, 0.01),
    ("24 runs of each of 3 sizes, noise 5 %", 24, 0.05),
)
def rate(rng: Rng, num_runs: int, noise: float) -> bool:
    """Return whether the interval of the rate holds; the optimum is a power law of the size."""
    first, exponent = rng.uniform(math.log(1e-3), math.log(1e-2)), rng.uniform(-0.7, 0.0)
    runs = []
    for size in (1e6, 4e6, 1.6e7):
        best = first + exponent * math.log(size / 1e6)
        for at in rng.uniform(math.log(1e-4), math.log(1e-1), num_runs):
            off = 0.05 * (at - best) ** 2 + noise * rng.normal()
            runs.append(SmallRun(size, 1e6, 64.0, math.exp(at), 3.0 * math.exp(off)))
    found, _ = OptimumModel(runs).optimum(2.56e8, 1e6)
    return bool(found.low <= math.exp(first + exponent * math.log(256)) <= found.high)


@claim(
    "verdict: is better than always answering the most frequent class (it answers at random)",
    *(5, 3000),
    ("1,000 rows, 10 equal classes", 1000, 10),
    ("200 rows, 2 equal classes", 200, 2),
    is_error=True,
)
def guessing(rng: Rng, rows: int, classes: int) -> bool:
    """Return whether a model that answers at random passes as better than the baseline."""
    labels = rng.choice(classes, size=rows)
    value = float(np.bincount(labels).max()) / rows
    level = float(np.bincount(rng.choice(classes, size=5 * rows)).max()) / (5 * rows)
    baseline = Baseline(value, rows, error=share_error(1 / classes, rows), level=level)
    beyond = baseline.beyond(ACCURACY, ONE_SIDED)
    answered = float(np.mean(rng.choice(classes, size=rows) == labels))
    return beyond is not None and answered >= beyond


def results(n_of: Callable[[Claim], int], word: str = "") -> Iterator[dict[str, Any]]:
    """Simulate each claim; yield its row."""
    for number, one in enumerate(CLAIMS):
        if word and word not in one.name:
            continue
        rngs = [np.random.default_rng([7, number, study]) for study in range(n_of(one))]
        said = [found for rng in rngs if (found := one.trial(rng)) is not None]
        share = 100 * sum(map(bool, said)) / len(said) if said else math.nan
        yield {
            "claim": one.name,
            "sentence": one.sentence,
            "world": one.world,
            "promised": one.promised,
            "is_error": one.is_error,
            "holds": round(share, 1),
            "n": len(said),
            "is_met": bool(said) and one.is_met(share, len(said)),
        }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table in the documentation."""
    lines = ["| sentence | where | promised | simulated | n |", "|---|---|---|---|---|"]
    last = ""
    for row in rows:
        bound = "at most" if row["is_error"] else "at least" if row["promised"] else ""
        promised = f"{bound} {row['promised']:g} %" if bound else "nothing"
        share = f"{row['holds']:g} %" + ("" if row["is_met"] else " **missed**")
        sentence = "" if row["sentence"] == last else row["sentence"]
        lines.append(f"| {sentence} | {row['world']} | {promised} | {share} | {row['n']:,} |")
        last = row["sentence"]
    return lines


def main() -> int:
    """Simulate every claim; write the results and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the studies, no files")
    parser.add_argument("--only", default="", metavar="WORD", help="claims of such names, no files")
    options = parser.parse_args()
    rows = []
    for row in results(lambda one: max(one.n // 10, 10) if options.quick else one.n, options.only):
        rows.append(row)
        print(table([row])[-1], flush=True)
    if not options.quick and not options.only:
        content = {"claims": rows, "machine": machine()["processor"], "versions": versions()}
        RESULTS.write_text(json.dumps(content, indent=1) + "\n")
        text = DOC.read_text()
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        DOC.write_text("\n".join([before + BEGIN, *table(rows), END]) + after)
    return 0 if all(row["is_met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
