"""Objectives and metrics: defaults, refusals, comparison, formatting, stop reasons and scores."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from raybench.results.ranking import worst_value
from raybench.results.study import objective_of
from raybench.spec.errors import ErrorCode
from raybench.spec.metric import METRICS, Metric, find_metric, named_metric
from raybench.spec.objective import (
    Objective,
    StopRule,
    resolved,
    search_score,
    shortfall,
    time_to_target,
    worst_score,
)
from raybench.spec.run import RunSpec
from raybench.stats.checkpoint import spec_digest
from tests.refusals import refused

BUDGET = 60.0
OBJECTIVE = Objective(target=0.9, max_train_seconds=BUDGET)
AT_BUDGET = Objective(kind="best_at_budget", max_train_seconds=BUDGET)


def scored(objective, seconds, best, baseline_value=None):
    return search_score(
        objective, time_to_target_s=seconds, best_value=best, baseline_value=baseline_value
    )


def score(seconds, best):
    return scored(OBJECTIVE, seconds, best, baseline_value=0.1)


@pytest.mark.parametrize(
    ("accuracies", "hold", "seconds"),
    [
        ([0.5, 0.9, 0.95], 1, 20.0),
        ([0.5, 0.8999, 0.89], 1, None),
        ([0.9, 0.8, 0.9, 0.9], 2, 30.0),
        ([0.9, 0.9, 0.1], 2, 10.0),
        ([0.95, 0.9, 0.91, 0.2], 3, 10.0),
        ([0.9, 0.1, 0.9, 0.9, 0.1, 0.9, 0.9, 0.9], 3, 60.0),
    ],
)
def test_time_to_target_is_the_first_of_hold_consecutive_hits(accuracies, hold, seconds):
    times = [10.0 * (1 + index) for index in range(len(accuracies))]
    assert time_to_target(accuracies, times, target=0.9, hold=hold) == seconds


def test_the_score_of_a_hit_is_the_log_of_its_seconds():
    assert score(20.0, 0.93) == pytest.approx(math.log(20.0))
    assert score(BUDGET, 0.9) == pytest.approx(math.log(BUDGET))
    assert score(BUDGET + 1e-6, 0.95) == score(None, 0.95), "after the budget it is a miss"


LOW = Objective(metric="rmse", direction="min", target=0.5, baseline_value=2.0)


@pytest.mark.parametrize(
    ("objective", "reached", "missed"),
    # A miss can have reached the target without holding it.
    [(OBJECTIVE, (0.9, 1.0), (0.0, 1.0)), (LOW, (0.0, 0.5), (0.0, 5.0))],
)
def test_every_hit_scores_better_than_every_miss(objective, reached, missed):
    draw = random.Random(0)
    hits, misses = [], [worst_score(objective), scored(objective, None, None, 0.1)]
    for _ in range(2000):
        seconds = draw.uniform(0.0, BUDGET * 0.999)
        hits.append(scored(objective, seconds, draw.uniform(*reached), 0.1))
        misses.append(scored(objective, None, draw.uniform(*missed), 0.1))
    assert max(hits) < min(misses)


def test_the_score_of_a_miss_improves_towards_the_target():
    accuracies = [0.1, 0.3, 0.5, 0.7, 0.85, 0.8999]
    scores = [score(None, accuracy) for accuracy in accuracies]
    assert all(before > after for before, after in itertools.pairwise(scores))
    # A run at chance scores log(budget) + 2, a run half way to the target log(budget) + 1.
    assert scores[0] - math.log(BUDGET) == pytest.approx(2.0)
    assert score(None, 0.5) - math.log(BUDGET) == pytest.approx(1.0)


WITHOUT_BASELINE = LOW.model_copy(update={"baseline_value": None})
ERROR_RATE = Objective(metric="error_rate", direction="min", is_share=True, target=0.05)


@pytest.mark.parametrize(
    ("objective", "values"),
    [
        (LOW, (0.6, 1.0, 1.9)),
        (WITHOUT_BASELINE, (0.6, 0.8, 0.99, 9.0)),
        (WITHOUT_BASELINE.model_copy(update={"target": 0.05}), (0.06, 0.1, 0.5, 9.0)),
        (ERROR_RATE, (0.06, 0.1, 0.5, 0.9)),
        (
            Objective(kind="best_at_budget", metric="own_loss", direction="min"),
            (-3.0, 0.1, 2.3, 4.0, 1e6),
        ),
    ],
)
def test_a_worse_value_has_a_worse_score(objective, values):
    scores = [scored(objective, None, value) for value in values]
    assert scores == sorted(set(scores))
    worst = 1.0 if objective.is_share else math.inf
    assert scores[-1] < worst_score(objective) == scored(objective, None, worst)


@pytest.mark.parametrize("best", [0.0, 0.05, 0.1])
def test_values_below_chance_score_like_chance(best):
    assert score(None, best) == score(None, None) == worst_score(OBJECTIVE)
    assert scored(LOW, None, 2.0) == scored(LOW, None, 900.0) == worst_score(LOW)
    assert scored(LOW, None, None) == scored(LOW, None, math.nan) == worst_score(LOW)


def follow(objective, points, *, finished_at=None):
    """Feed (accuracy, seconds) points to a rule; return the rule and its answers."""
    rule = StopRule(objective)
    answers = [
        rule.update(value=accuracy, train_s=seconds, finished=index == finished_at)
        for index, (accuracy, seconds) in enumerate(points)
    ]
    return rule, answers


@pytest.mark.parametrize(
    ("points", "hold", "answer", "seconds"),
    [
        ([(0.9, 2.5)], 1, "target", 2.5),  # the target precedes the budget and the last epoch
        ([(0.1, 1.0), (0.2, 2.0), (0.3, 3.0)], 1, "max_train_seconds", None),
        ([(0.9, 1.0), (0.8, 1.5), (0.95, 2.0), (0.91, 2.2)], 2, "target", 2.0),
        # Reached within the budget and held after it counts.
        ([(0.9, 2.4), (0.9, 2.6)], 2, "target", 2.4),
        ([(0.1, 1.0), (0.95, 2.0)], 2, "epochs", None),
    ],
)
def test_a_run_stops_at_the_first_reason(points, hold, answer, seconds):
    objective = Objective(target=0.9, hold=hold, max_train_seconds=2.5)
    rule, answers = follow(objective, points, finished_at=len(points) - 1)
    assert answers == [None] * (len(points) - 1) + [answer]
    assert rule.time_to_target_s == seconds
    assert rule.best_value == max(value for value, _ in points)


@pytest.mark.parametrize("target", [None, 0.5])
def test_best_at_budget_uses_the_whole_budget(target):
    objective = Objective(kind="best_at_budget", target=target, max_train_seconds=2.0)
    rule, answers = follow(objective, [(0.6, 1.0), (0.9, 1.5), (0.7, 2.0)])
    assert answers == [None, None, "max_train_seconds"]
    assert rule.time_to_target_s == (None if target is None else 1.0)
    assert rule.best_value == 0.7, "the value of the saved weights"
    rule.update(value=0.8, train_s=2.1, finished=False)
    assert rule.best_value == 0.7, "evaluations after the budget do not count"
    rule, _ = follow(objective, [(0.9, 10.0)])
    assert rule.best_value is None


RMSE, R2, LOSS = METRICS["rmse"], METRICS["r2"], METRICS["loss"]
OWN = Metric(name="dice", direction="max")


def test_a_task_has_a_default_metric_and_a_workload_may_have_its_own():
    assert find_metric(None).name == "accuracy"
    assert find_metric(None, task="regression") == RMSE
    assert find_metric("mae", task="regression").name == "mean_absolute_error"
    assert find_metric(None, custom=OWN) == find_metric("dice", custom=OWN) == OWN
    assert find_metric("accuracy", custom=OWN) == METRICS["accuracy"]


@pytest.mark.parametrize(
    ("arguments", "code", "names"),
    [
        ({"name": "acuracy"}, "UNKNOWN_NAME", ["'accuracy'"]),
        ({"name": "accuracy", "task": "regression"}, "CONFLICT", ["loss", "rmse"]),
        ({"custom": Metric(name="F\n1", direction="max")}, "INVALID_VALUE", ["'F 1'"]),
    ],
)
def test_a_metric_the_task_does_not_have_is_refused(arguments, code, names):
    with refused(ErrorCode[code], *names):
        find_metric(**{"name": None, **arguments})


@pytest.mark.parametrize("target", [0.3, 0.95, 0.97, 123.4])
@pytest.mark.parametrize("direction", ["max", "min"])
def test_the_target_is_reached_up_to_float32_rounding(target, direction):
    metric = Metric(name="dice", direction=direction)
    value = float(np.float32(target))
    for near in (value, np.nextafter(np.float32(target), np.float32(metric.sign * -1e9))):
        assert metric.reaches(float(near), target)
        assert metric.gap(target, float(near)) <= 0
    assert not metric.reaches(target - metric.sign * 1e-6 * target, target)
    assert not metric.reaches(math.nan, target)
    assert time_to_target([value] * 2, [1.0, 2.0], target=target, hold=2, metric=metric) == 1.0


def test_metric_values_are_compared_and_formatted():
    assert (RMSE.best([3.0, math.nan, 1.0]), R2.best([0.1, 0.3])) == (1.0, 0.3)
    assert RMSE.best([math.nan]) is None
    assert RMSE.gap(0.5, 2.0) == 1.5
    curve = [9.0, 0.4, 0.6, 0.5, 0.5], [1, 2, 3, 4, 5]
    assert time_to_target(*curve, target=0.5, hold=2, metric=RMSE) == 4
    shown = RMSE.shown(0.12345), METRICS["accuracy"].shown(0.973), LOSS.shown(None)
    assert shown == ("0.1235", "97.3 %", "none")


def test_the_score_at_a_budget_is_the_signed_metric():
    assert shortfall(RMSE, 0.7, 2.0) == 0.7
    assert shortfall(R2, 0.7, 0.0) == -0.7
    assert shortfall(RMSE, 1e9, 2.0) == shortfall(RMSE, None, 2.0) == 4.0
    assert shortfall(METRICS["accuracy"], 0.75, 0.1) == 0.25
    assert scored(AT_BUDGET, 3.0, 0.75, 0.1) == 0.25, "time does not matter"
    wrong = Metric(name="error_rate", direction="min", is_share=True)
    assert shortfall(wrong, 0.031, None) < shortfall(wrong, 0.914, None)
    assert shortfall(wrong, None, None) == worst_value(wrong) == 1.0


def of_regression(**keys):
    return resolved(Objective(**keys), task="regression", custom=None, baseline_value=1.5)


def of_workload(custom, **keys):
    return resolved(Objective(**keys), task="classification", custom=custom, baseline_value=None)


def test_an_objective_is_resolved_from_the_task_and_the_labels():
    objective = of_regression(target=0.4)
    assert (objective.metric, objective.direction, objective.baseline_value) == ("rmse", "min", 1.5)
    assert objective.judged_by == RMSE
    assert of_regression(target=0.4, baseline_value=9.0).baseline_value == 9.0


def test_an_objective_is_resolved_from_the_metric_of_a_workload():
    assert of_workload(OWN, target=0.4).judged_by == named_metric("dice", "max") == OWN
    share = replace(OWN, is_share=True)
    objective = of_workload(share, target=0.4)
    assert objective.judged_by == share
    assert objective_of({"study": {"objective": objective.document()}}).judged_by == share
    assert of_workload(share, **objective.document()) == objective
    with refused(ErrorCode.INVALID_VALUE, "objective.target", "dice", 40):
        of_workload(share, target=40)
    without_share = objective.model_copy(update={"is_share": None})
    assert spec_digest(RunSpec(objective=objective)) == spec_digest(
        RunSpec(objective=without_share)
    )


def test_a_target_that_the_baseline_reaches_and_a_wrong_direction_are_refused():
    with refused(ErrorCode.INVALID_VALUE, "objective.target", "RMSE", 1.5):
        of_regression(target=1.6)
    with refused(ErrorCode.INVALID_VALUE, "objective.target", "accuracy", 0.1):
        of_workload(None, target=0.05, baseline_value=0.1)
    with refused(ErrorCode.CONFLICT, "objective.direction", "rmse"):
        of_regression(target=0.5, direction="max")
