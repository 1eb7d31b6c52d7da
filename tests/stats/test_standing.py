"""Interpolated times to target, runs as replicates, and ties after a race and `--more`."""

import math
import random
from dataclasses import replace

import pytest

from raybench.spec.objective import Objective, StopRule
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation, Failure, RunRecord
from raybench.stats.replicates import Replicate
from raybench.stats.standing import (
    SMALLEST,
    Candidate,
    ConfigurationRuns,
    Ties,
    TimeToTarget,
    cost_per_s,
    first_trial,
    group_of,
    interpolated_time,
    replicate_of,
    runs_to_decide,
    ties_of,
)
from tests.factories import evaluation, record

SHARE = Objective(target=0.9, max_train_seconds=60.0, baseline_value=0.1)
RMSE = Objective(
    target=0.5, max_train_seconds=60.0, metric="rmse", direction="min", baseline_value=2.0
)


def run(values: list[float], objective: Objective = SHARE) -> tuple[RunRecord, list[Evaluation]]:
    """Return the record of a run with these values, one second apart, and its points."""
    points = [evaluation(1.0 + n, index=n, value=value) for n, value in enumerate(values)]
    seconds = [point.train_s for point in points]
    rule = StopRule(objective, values=values, train_seconds=seconds)
    spec = RunSpec(objective=objective)
    return record("0000", spec, time_to_target_s=rule.time_to_target_s), points


HELD = SHARE.model_copy(update={"hold": 2})
UNKNOWN = SHARE.model_copy(update={"baseline_value": None})
BUDGET = SHARE.model_copy(update={"kind": "best_at_budget"})


@pytest.mark.parametrize(
    ("objective", "values", "seconds", "is_interpolated"),
    [
        (SHARE, [0.5, 0.8, 1.0], 2.5, True),  # the interval is a third of the time
        (SHARE, [0.5, 0.6, 0.7, 1.0], 4.0, False),  # a quarter of the time: as recorded
        (SHARE, [0.5, 0.9], 2.0, True),  # exactly at the target
        (SHARE, [1.0], 0.8 / 0.9, True),  # from the baseline at 0 s
        (SHARE, [0.5, math.nan, 1.0], 3.0, False),
        (RMSE, [0.7, 0.4], 1 + 2 / 3, True),
        (HELD, [0.95, 0.8, 1.0, 0.95], 2.5, True),  # before the first evaluation that held
        (UNKNOWN, [1.0], 1.0, False),
        (BUDGET, [0.5, 1.0], 2.0, False),
    ],
)
def test_the_time_to_target_is_interpolated_between_evaluations(
    objective, values, seconds, *, is_interpolated
):
    time = interpolated_time(*run(values, objective))
    assert time == TimeToTarget(pytest.approx(seconds), is_interpolated=is_interpolated)


def test_a_run_that_missed_has_no_time_and_a_baseline_may_be_given_later():
    assert interpolated_time(*run([0.5, 0.8])) is None
    time = interpolated_time(*run([1.0], UNKNOWN), baseline_value=0.5)
    assert time == TimeToTarget(pytest.approx(0.8), is_interpolated=True)


def test_a_time_is_not_interpolated_over_missing_evaluations():
    ended, points = run([0.5, 0.8, 1.0])
    raw = TimeToTarget(3.0, is_interpolated=False)
    assert interpolated_time(ended, points[2:]) == raw, (
        "the earlier evaluations of a resumed run are missing"
    )
    assert interpolated_time(ended, [points[0], points[2]]) == raw
    assert interpolated_time(ended, []) == raw


def budget(value: float, failure: Failure | None = None, **metric: str) -> RunRecord:
    objective = Objective.model_validate({"kind": "best_at_budget", **metric})
    ended = record("0000", RunSpec(objective=objective), stop="max_train_seconds", value=value)
    return replace(ended, failure=failure)


def test_a_replicate_holds_seconds_or_a_value():
    timed = Objective(target=0.9, baseline_value=0.1)
    hit = record("0000", RunSpec(objective=timed), 2.0, value=1.0)
    assert replicate_of(hit, []) == Replicate(2.0, True)
    points = [evaluation(1.0, value=0.8), evaluation(2.0, index=1, value=1.0)]
    assert replicate_of(hit, points) == Replicate(1.5, True)
    miss = record("0000", RunSpec(objective=timed), 7.0, stop=None, stopped_by="cap")
    assert replicate_of(miss, []) == Replicate(7.0, False)
    assert replicate_of(budget(0.9), []) == Replicate(-0.9, True, is_timed=False)
    error = budget(0.4, metric="rmse", direction="min")
    assert replicate_of(error, []) == Replicate(0.4, True, is_timed=False)
    assert not replicate_of(budget(0.9, "nan"), []).is_hit


def test_a_crash_costs_the_time_since_its_last_evaluation():
    crashed = record("0000", RunSpec(objective=Objective(target=0.9)), 2.0, failure="error")
    crashed = replace(crashed, ledger=crashed.ledger | {"other": 3.0})
    assert replicate_of(crashed, []) == Replicate(5.0, False)
    ended = replace(crashed, failure=None, time_to_target_s=None)
    assert replicate_of(ended, []) == Replicate(2.0, False), (
        "other seconds of a completed run are not training"
    )


def test_the_cost_of_a_second_includes_idle_workers_if_there_is_a_price():
    run = record("0000", RunSpec(num_workers=2), 2.0)
    run = replace(run, ledger=run.ledger | {"queue": 9.0, "setup": 1.0})
    assert cost_per_s(None, 2, [run]) == 2
    assert cost_per_s(2.5, 2, [run]) == 3.0, "billed for 3 s of which it trained 2 s"


def test_the_first_trial_has_the_least_number():
    runs = [record("10000"), record("0003"), record("0001-race0", role="race", source="0001")]
    assert first_trial(runs) == "0003"
    assert first_trial(runs[2:]) is None
    assert first_trial([*runs, record("reference1")]) == "reference1", (
        "reference runs precede trials"
    )


def group(*seconds: float) -> ConfigurationRuns:
    return ConfigurationRuns(
        rounds={number: Replicate(time, True) for number, time in enumerate(seconds)}
    )


def test_ties_separate_repeated_configurations_from_those_that_ran_once():
    groups = {"best": group(1, 1, 1, 1), "near": group(*[1.1] * 4), "far": group(*[3.0] * 4)}
    once = {
        "once": ConfigurationRuns(Replicate(1.3, True)),
        "once, far": ConfigurationRuns(Replicate(4.0, True)),
    }
    assert ties_of(groups, once) == Ties(("best", "near"), ("once",), ("near",))
    assert ties_of({}) == Ties()


def test_equivalent_configurations_need_no_more_runs():
    chance = random.Random(0)
    near, far = 1 + SMALLEST / 5, 1 + 2 * SMALLEST
    rounds = [math.exp(chance.gauss(0.0, 0.3)) for _ in range(40)]  # the common effect of a seed
    fastest, similar = (group(*[factor * x for x in rounds]) for factor in (1.0, near))
    assert ties_of({"one": fastest, "same": similar}) == Ties(("one", "same"))
    worse = group(*[far * x for x in rounds])
    assert ties_of({"one": fastest, "worse": worse}).repeated == ("one",), (
        "every round shows the difference"
    )


def test_equal_configurations_are_rarely_found_different_by_many_more_runs():
    """The error rate is 10 %; the configurations differ in their cost per second."""
    chance, costs, num_apart = random.Random(1), {"a": 2.0, "b": 1.0}, 0

    def run(name: str) -> Replicate:
        return Replicate(math.exp(chance.gauss(0.0, 0.3)) / costs[name], True)

    for _ in range(60):
        candidates = [Candidate(name, run(name), cost) for name, cost in costs.items()]
        learned = {(name, number): run(name) for number in range(4) for name in costs}
        runs_left = 50
        while runs_left and (
            due := runs_to_decide(candidates, learned, runs_left, axis="worker_seconds")
        ):
            learned |= {(due_run.name, due_run.round): run(due_run.name) for due_run in due}
            runs_left -= len(due)
        groups = {}
        for candidate in candidates:
            new = {number: x for (name, number), x in learned.items() if name == candidate.name}
            groups[candidate.name] = group_of(candidate, new, axis="worker_seconds")
        num_apart += len(ties_of(groups).repeated) == 1
    assert num_apart <= 6
