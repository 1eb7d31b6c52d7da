import itertools
import math
import random

import pytest

from raybench.spec.objective import (
    Objective,
    StopRule,
    search_score,
    time_to_target,
    worst_score,
)

BUDGET = 60.0
OBJECTIVE = Objective(target=0.9, max_train_seconds=BUDGET)
AT_BUDGET = Objective(kind="best_at_budget", max_train_seconds=BUDGET)


def score(time_to_target_s=None, best_value=None, baseline_value=0.1, objective=OBJECTIVE):
    return search_score(
        objective,
        time_to_target_s=time_to_target_s,
        best_value=best_value,
        baseline_value=baseline_value,
    )


@pytest.mark.parametrize(
    ("accuracies", "hold", "seconds"),
    [
        ([0.5, 0.9, 0.95], 1, 20.0),
        ([0.9], 1, 10.0),
        ([0.5, 0.8999, 0.89], 1, None),
        ([], 1, None),
        ([0.9, 0.8, 0.9, 0.9], 2, 30.0),
        ([0.9, 0.8, 0.9], 2, None),
        ([0.9, 0.9, 0.1], 2, 10.0),
        ([0.95, 0.9, 0.91, 0.2], 3, 10.0),
        ([0.95, 0.9], 3, None),
        ([0.9, 0.1, 0.9, 0.9, 0.1, 0.9, 0.9, 0.9], 3, 60.0),
    ],
)
def test_time_to_target_is_the_first_of_those_that_hold(accuracies, hold, seconds):
    times = [10.0 * (1 + index) for index in range(len(accuracies))]
    assert time_to_target(accuracies, times, target=0.9, hold=hold) == seconds


def test_the_score_of_a_hit_is_the_log_of_its_seconds():
    assert score(20.0, 0.93) == pytest.approx(math.log(20.0))
    assert score(BUDGET, 0.9) == pytest.approx(math.log(BUDGET))


def test_a_hit_after_the_budget_is_a_miss():
    assert score(BUDGET + 1e-6, 0.95) == score(None, 0.95)


def test_every_run_that_reached_beats_every_one_that_missed():
    draw = random.Random(0)
    hits = [score(draw.uniform(0.0, BUDGET * 0.999), draw.uniform(0.9, 1.0)) for _ in range(2000)]
    # A miss can have touched the target without holding it: best_accuracy above it.
    misses = [score(None, draw.uniform(0.0, 1.0)) for _ in range(2000)]
    misses += [score(None, None), worst_score(OBJECTIVE)]
    assert max(hits) < min(misses)


def test_misses_have_a_slope_towards_the_target():
    accuracies = [0.1, 0.3, 0.5, 0.7, 0.85, 0.8999]
    scores = [score(None, accuracy) for accuracy in accuracies]
    assert all(before > after for before, after in itertools.pairwise(scores))
    # lambda is about 2: a run at chance stands 2 above the budget's log, half way 1.
    assert scores[0] - math.log(BUDGET) == pytest.approx(2.0)
    assert score(None, 0.5) - math.log(BUDGET) == pytest.approx(1.0)


@pytest.mark.parametrize("best", [0.0, 0.05, 0.1])
def test_below_chance_is_as_bad_as_chance(best):
    assert score(None, best) == score(None, None) == worst_score(OBJECTIVE)


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e-3])
def test_no_time_at_all_is_still_a_number(seconds):
    assert math.isfinite(score(seconds, 0.9))
    assert score(seconds, 0.9) < score(0.01, 0.9)


def test_accuracy_at_budget_minimises_the_error():
    assert score(None, 0.97, objective=AT_BUDGET) == pytest.approx(0.03)
    assert score(3.0, 0.97, objective=AT_BUDGET) == pytest.approx(0.03), "time is not judged"
    assert score(None, 0.5, objective=AT_BUDGET) > score(None, 0.6, objective=AT_BUDGET)
    assert score(None, None, objective=AT_BUDGET) == worst_score(AT_BUDGET) == 1.0


def follow(objective, points, *, finished_at=None):
    """Feed (accuracy, seconds) points; return the rule and every answer."""
    rule = StopRule(objective)
    answers = [
        rule.update(value=accuracy, train_s=seconds, finished=index == finished_at)
        for index, (accuracy, seconds) in enumerate(points)
    ]
    return rule, answers


@pytest.mark.parametrize(
    ("points", "hold", "answer", "seconds"),
    [
        ([(0.9, 2.5)], 1, "target", 2.5),  # before the budget and the end of the epochs
        ([(0.1, 1.0), (0.2, 2.0), (0.3, 3.0)], 1, "max_train_seconds", None),
        ([(0.9, 2.6)], 1, "max_train_seconds", None),
        ([(0.9, 1.0), (0.8, 1.5), (0.95, 2.0), (0.91, 2.2)], 2, "target", 2.0),
        # Reached in time, held after it: it counts.
        ([(0.9, 2.4), (0.9, 2.6)], 2, "target", 2.4),
        ([(0.9, 2.4), (0.8, 2.6)], 2, "max_train_seconds", None),
        ([(0.1, 1.0), (0.95, 2.0)], 2, "epochs", None),
    ],
)
def test_a_run_ends_at_the_first_reason(points, hold, answer, seconds):
    objective = Objective(target=0.9, hold=hold, max_train_seconds=2.5)
    rule, answers = follow(objective, points, finished_at=len(points) - 1)
    assert answers == [None] * (len(points) - 1) + [answer]
    assert rule.time_to_target_s == seconds
    assert rule.best_value == max(value for value, _ in points)


@pytest.mark.parametrize("target", [None, 0.5])
def test_accuracy_at_budget_uses_its_whole_budget(target):
    objective = Objective(kind="best_at_budget", target=target, max_train_seconds=2.0)
    rule, answers = follow(objective, [(0.6, 1.0), (0.9, 1.5), (0.7, 2.0)])
    assert answers == [None, None, "max_train_seconds"]
    assert rule.time_to_target_s == (None if target is None else 1.0)
    assert rule.best_value == 0.7, "the weights that are kept have it"
    rule.update(value=0.8, train_s=2.1, finished=False)
    assert rule.best_value == 0.7, "in time"


def test_what_is_reached_after_the_budget_does_not_count():
    """Or slow evaluations would be rewarded."""
    objective = Objective(kind="best_at_budget", max_train_seconds=6.0)
    rule, answers = follow(objective, [(0.5, 5.0), (0.9, 10.0)])
    assert answers == [None, "max_train_seconds"]
    assert rule.best_value == 0.5
    rule, _ = follow(objective, [(0.9, 10.0)])
    assert rule.best_value is None
