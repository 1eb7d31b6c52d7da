"""Sampler `model` in a search: its proposals, and the trials that it stops."""

import math
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
    evaluation,
    make_search,
    outcome,
    record,
    run_all,
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
    curves: dict[str, list[Evaluation]] = {}

    def judge(name: str, spec: RunSpec) -> RunRecord:
        ended, curves[name] = train(search, name, spec)
        return ended

    return run_all(search, judge, most), curves


def distance(run: RunRecord) -> float:
    """Return the log ratio of a run's seconds and the smallest possible."""
    return math.log(seconds_of(run.spec))


@pytest.mark.parametrize("apart", [False, True])
def test_the_search_finds_the_best_and_stops_slow_trials(tmp_path, *, apart):
    runs, _ = search_on(make_search(tmp_path, MODEL, apart=apart))
    assert len(runs) == 40
    assert min(map(distance, runs)) < 0.1
    assert np.median([distance(run) for run in runs[20:]]) < 1
    slow = [run for run in runs[8:] if distance(run) > 2]
    assert all(run.stop in ("scheduler", "cap") for run in slow)
    assert sum(run.ledger["train"] for run in slow) < 0.25 * 2.5 * max(len(slow), 1)


@pytest.mark.parametrize("apart", [False, True])
def test_a_search_resumes_with_the_same_predictions(tmp_path, *, apart):
    content = changed(trials=16)
    search = make_search(tmp_path, content, apart=apart)
    runs, curves = search_on(search, most=14)
    resumed = make_search(tmp_path, content, apart=apart, runs=runs, curves=curves)
    before, after = search.curves.ranked(), resumed.curves.ranked()
    assert sorted(after) == sorted(before)
    same = search.curves.means_of(before), resumed.curves.means_of(before)
    np.testing.assert_allclose(*same, atol=0.1)  # length scales are chosen at other moments
    assert len(search_on(resumed)[0]) == 2


def test_the_wait_for_workers_is_the_predicted_end_of_running_trials(tmp_path):
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


def test_remaining_seconds_are_known_before_the_first_finite_value(tmp_path):
    """The speed of a trial is known although the value of its first evaluation was NaN."""
    search = make_search(tmp_path, MODEL, apart=True, slots=1)
    name, spec = ask(search)
    search.on_result(name, outcome(0.25, index=0, value=math.nan, samples=2500))
    assert not search.curves.model.is_known
    assert search.curves.left_s(name, spec) == spec.objective.max_train_seconds - 0.25
    assert ask(search)[0] != name


def test_proposals_keep_to_lists_and_to_ranges_that_depend_on_other_keys(tmp_path):
    """A list of fractions may contain a whole number, and a list of names may contain None."""
    decays = [
        {"when": {"optimizer": "adam"}, "values": [0, 1e-4, 1e-3]},
        {"when": {"optimizer": "lars"}, "low": 1e-7, "high": 1e-5, "log": True},
    ]
    space = MODEL["space"] | {"weight_decay": decays, "model": {"norm": [None, 1, "a"]}}
    runs, _ = search_on(make_search(tmp_path, changed(trials=14) | {"space": space}))
    adam = {run.spec.weight_decay for run in runs if run.spec.optimizer == "adam"}
    lars = {run.spec.weight_decay for run in runs if run.spec.optimizer == "lars"}
    assert {0} < adam <= {0, 1e-4, 1e-3}
    assert 1e-7 <= min(lars) <= max(lars) <= 1e-5


@pytest.mark.parametrize(
    ("objective", "sign"),
    [
        ({"kind": "best_at_budget", "max_train_seconds": 10}, 1),
        ({"kind": "best_at_budget", "metric": "loss", "max_train_seconds": 10}, -1),
        ({"metric": "loss", "target": 0.1, "max_train_seconds": 10}, -1),
    ],
)
def test_other_objectives_are_optimized(tmp_path, objective, sign):
    content = changed(trials=24) | {"objective": objective}
    search = make_search(tmp_path, content)

    def judge(name: str, spec: RunSpec) -> RunRecord:
        for index in range(6):
            second = index + 1.0
            value = 1.0 - sign * 0.5 + sign * 0.4 * (1 - math.exp(-second / seconds_of(spec)))
            if search.on_result(name, outcome(second, index=index, value=value)).stop:
                break
        return record(name, spec, second, stop=None, value=value)

    runs = run_all(search, judge)
    assert np.median([distance(run) for run in runs[12:]]) < 1.5


@pytest.mark.parametrize("widen", [True, False])
def test_learning_rates_beyond_their_range_are_tried_if_promising(tmp_path, *, widen):
    narrow = {"low": 1e-4, "high": BEST / 3, "log": True}
    space = STUDY["space"] | {"optimizer": ["adam"], "learning_rate": narrow}
    content = changed(widen=widen, trials=25) | {"space": space}
    runs, _ = search_on(make_search(tmp_path, content, apart=True))
    rates = [run.spec.learning_rate for run in runs]
    assert max(rates) <= 4 * BEST / 3
    assert any(rate > BEST / 2 for rate in rates) == widen


def test_nsga2_continues_slow_but_cheap_trials(tmp_path):
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


def test_no_configuration_runs_more_than_a_few_times(tmp_path):
    """Rates within 20 % count as one; a repeat has another seed."""
    runs, _ = search_on(make_search(tmp_path, changed(trials=30), apart=True))
    specs = [run.spec for run in runs]
    assert len({str(spec) for spec in specs}) == len(specs)

    def are_alike(spec: RunSpec, other: RunSpec) -> bool:
        keys = (spec.optimizer, spec.global_batch_size)
        ratio = other.learning_rate / spec.learning_rate
        return keys == (other.optimizer, other.global_batch_size) and 1 / 1.1 < ratio < 1.1

    for spec in specs:
        assert sum(are_alike(spec, other) for other in specs) <= CurvePolicy().most_runs + 1, spec
