"""Sampler `model` in a search: its proposals, and the trials that it stops."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raybench.search.curve_search import CurvePolicy
from raybench.search.search import Search
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation, RunRecord
from tests.search.made_up import (
    STUDY,
    ask,
    by_name,
    evaluation,
    make_search,
    outcome,
    record,
)

MODEL = STUDY | {"search": {"trials": 40, "sampler": "model", "seed": 0}}
BEST = 0.02
"""Best learning rate of Adam in these made-up trainings."""
STEPS = range(1, 11)


def changed(**search: Any) -> dict[str, Any]:
    return MODEL | {"search": MODEL["search"] | search}


def seconds_of(spec: RunSpec) -> float:
    """Return the seconds to the target."""
    best = BEST if spec.optimizer == "adam" else 100 * BEST
    return float(math.exp(0.5 * math.log(spec.learning_rate / best) ** 2))


def train(search: Search, name: str, spec: RunSpec) -> tuple[RunRecord, list[Evaluation]]:
    """Train a trial that the search may stop; return its record and learning curve."""
    curve: list[Evaluation] = []
    for index, second in enumerate(0.25 * step for step in STEPS):
        share = second / seconds_of(spec)
        value = min(0.1 + 0.85 * share, 0.95)
        samples = {"samples": int(10_000 * second)}
        reached = {"time_to_target_s": second} if share >= 1 else {}
        curve.append(evaluation(second, index=index, value=value, **samples, **reached))
        if reached:
            return record(name, spec, second, value=value, **samples), curve
        current = outcome(second, index=index, value=value, **samples)
        if (reason := search.on_result(name, current).stop) is not None:
            end = {"stop": None, "stopped_by": reason, "value": value} | samples
            return record(name, spec, second, **end), curve
    return record(name, spec, 2.5, stop="max_train_seconds", value=value, **samples), curve


def search_on(
    search: Search, most: int = 1000
) -> tuple[list[RunRecord], dict[str, list[Evaluation]]]:
    runs, curves = [], {}
    while len(runs) < most and (proposal := search.suggest()) is not None:
        ended, curves[proposal[0]] = train(search, *proposal)
        search.on_end(ended)
        runs.append(ended)
    return runs, curves


def distance(run: RunRecord) -> float:
    """Return the log ratio of a run's seconds and the smallest possible."""
    return math.log(seconds_of(run.spec))


@pytest.mark.parametrize("apart", [False, True])
def test_the_search_finds_the_best_and_stops_slow_trials(tmp_path: Path, *, apart: bool) -> None:
    runs, _ = search_on(make_search(tmp_path, MODEL, apart=apart))
    assert len(runs) == 40
    assert min(map(distance, runs)) < 0.1
    assert np.median([distance(run) for run in runs[20:]]) < 1
    slow = [run for run in runs[8:] if distance(run) > 2]
    assert all(run.stop in ("scheduler", "cap") for run in slow)
    assert sum(run.ledger["train"] for run in slow) < 0.25 * 2.5 * max(len(slow), 1)


@pytest.mark.parametrize("apart", [False, True])
def test_a_search_resumes_with_the_same_predictions(tmp_path: Path, *, apart: bool) -> None:
    content = changed(trials=16)
    search = make_search(tmp_path, content, apart=apart)
    runs, curves = search_on(search, most=14)
    resumed = make_search(tmp_path, content, apart=apart, runs=by_name(runs), curves=curves)
    before, after = search.curves.ranked(), resumed.curves.ranked()
    assert sorted(after) == sorted(before)
    same = search.curves.means_of(before), resumed.curves.means_of(before)
    np.testing.assert_allclose(*same, atol=0.1)  # length scales are chosen at other moments
    assert len(search_on(resumed)[0]) == 2


def test_the_wait_for_workers_is_the_predicted_end_of_running_trials(tmp_path: Path) -> None:
    search = make_search(tmp_path, MODEL, apart=True, slots=3)
    search_on(search, most=12)
    assert search.placer is not None
    wait_s = search.placer.wait_s
    assert wait_s(3) == 0.0
    name, spec = ask(search)
    assert wait_s(3 - spec.num_workers) == 0.0
    before = wait_s(3)
    assert before == search.curves.left_s(name, spec) > 0
    search.on_result(name, outcome(0.25, index=0, value=0.5, samples=2500))
    assert search.curves.left_s(name, spec) != before


def test_remaining_seconds_are_known_before_the_first_finite_value(tmp_path: Path) -> None:
    """The speed of a trial is known although the value of its first evaluation was NaN."""
    search = make_search(tmp_path, MODEL, apart=True, slots=1)
    name, spec = ask(search)
    search.on_result(name, outcome(0.25, index=0, value=math.nan, samples=2500))
    assert not search.curves.model.is_known
    assert search.curves.left_s(name, spec) == spec.objective.max_train_seconds - 0.25
    assert ask(search)[0] != name


def test_equal_seeds_propose_equal_configurations(tmp_path: Path) -> None:
    def specs(folder: str, seed: int) -> list[RunSpec]:
        runs, _ = search_on(make_search(tmp_path / folder, changed(seed=seed, trials=11)))
        return [run.spec.model_copy(update={"seed": 0}) for run in runs]

    first = specs("a", 3)
    assert specs("b", 3) == first
    assert specs("c", 4) != first


def test_a_whole_number_in_a_list_of_fractions_has_neighbors(tmp_path: Path) -> None:
    space = MODEL["space"] | {"weight_decay": [0, 1e-4, 1e-3], "model": {"norm": [None, 1, "a"]}}
    runs, _ = search_on(make_search(tmp_path, changed(trials=14) | {"space": space}))
    assert {run.spec.weight_decay for run in runs} == {0, 1e-4, 1e-3}


@pytest.mark.parametrize(
    ("objective", "sign"),
    [
        ({"kind": "best_at_budget", "max_train_seconds": 10}, 1),
        ({"kind": "best_at_budget", "metric": "loss", "max_train_seconds": 10}, -1),
        ({"metric": "loss", "target": 0.1, "max_train_seconds": 10}, -1),
    ],
)
def test_other_objectives_are_optimized(
    tmp_path: Path, objective: dict[str, Any], sign: int
) -> None:
    content = changed(trials=24) | {"objective": objective}
    search = make_search(tmp_path, content)
    runs = []
    while (proposal := search.suggest()) is not None:
        name, spec = proposal
        value = 0.0
        for index in range(6):
            second = index + 1.0
            value = 1.0 - sign * 0.5 + sign * 0.4 * (1 - math.exp(-second / seconds_of(spec)))
            if search.on_result(name, outcome(second, index=index, value=value)).stop:
                break
        runs.append(record(name, spec, second, stop=None, value=value))
        search.on_end(runs[-1])
    assert np.median([distance(run) for run in runs[12:]]) < 1.5


def test_ranges_that_depend_on_other_keys_hold_in_every_proposal(tmp_path: Path) -> None:
    decays = {"adam": (1e-4, 1e-2), "lars": (1e-7, 1e-5)}
    ranges = [
        {"when": {"optimizer": name}, "low": low, "high": high, "log": True}
        for name, (low, high) in decays.items()
    ]
    content = changed(trials=14) | {"space": MODEL["space"] | {"weight_decay": ranges}}
    runs, _ = search_on(make_search(tmp_path, content))
    for run in runs:
        low, high = decays[run.spec.optimizer]
        assert low <= run.spec.weight_decay <= high
    assert {run.spec.optimizer for run in runs} == set(decays)


@pytest.mark.parametrize("widen", [True, False])
def test_learning_rates_beyond_their_range_are_tried_if_promising(
    tmp_path: Path, *, widen: bool
) -> None:
    narrow = {"low": 1e-4, "high": BEST / 3, "log": True}
    space = STUDY["space"] | {"optimizer": ["adam"], "learning_rate": narrow}
    search = make_search(tmp_path, changed(widen=widen, trials=25) | {"space": space}, apart=True)
    rates = []
    while (proposal := search.suggest()) is not None:
        search.on_end(train(search, *proposal)[0])
        rates.append(proposal[1].learning_rate)
    assert max(rates) <= 4 * BEST / 3
    assert any(rate > BEST / 2 for rate in rates) == widen


def test_nsga2_continues_slow_but_cheap_trials(tmp_path: Path) -> None:
    """Where only seconds count it is stopped."""
    is_stopped = {}
    for sampler in ("nsga2", "random"):
        content = changed(sampler=sampler, factorise=False, trials=30)
        search = make_search(tmp_path / sampler, content)
        wide = next(trial for trial in iter(search.suggest, None) if trial[1].num_workers == 2)
        for index, second in enumerate((0.5, 1.0)):
            search.on_result(wide[0], outcome(second, index=index, value=0.5 * second))
        search.on_end(record(*wide, 1.5, value=0.95))
        name, _ = next(trial for trial in iter(search.suggest, None) if trial[1].num_workers == 1)
        stops = []
        for index in range(5):
            current = outcome(0.5 * (index + 1), index=index, value=0.19 * (index + 1))
            stops.append(search.on_result(name, current).stop)
        is_stopped[sampler] = any(stops)
    assert is_stopped == {"nsga2": False, "random": True}


def test_no_configuration_runs_more_than_a_few_times(tmp_path: Path) -> None:
    """Rates within 20 % count as one; a repeat has another seed."""
    runs, _ = search_on(make_search(tmp_path, changed(trials=30), apart=True))
    specs = [run.spec for run in runs]
    assert len({str(spec) for spec in specs}) == len(specs)
    for spec in specs:
        alike = [
            other
            for other in specs
            if (other.optimizer, other.global_batch_size)
            == (spec.optimizer, spec.global_batch_size)
            and abs(math.log(other.learning_rate / spec.learning_rate)) < math.log(1.1)
        ]
        assert len(alike) <= CurvePolicy().most_runs + 1, spec
