import pytest

from raybench.spec.objective import Objective, StopRule, is_finite


def follow(objective, points, *, finished_at=None):
    """Feed (accuracy, seconds) points; return the rule and every answer."""
    rule = StopRule(objective)
    answers = [
        rule.update(value=accuracy, train_s=seconds, finished=index == finished_at)
        for index, (accuracy, seconds) in enumerate(points)
    ]
    return rule, answers


def test_it_stops_at_the_target():
    rule, answers = follow(Objective(target=0.9), [(0.5, 1.0), (0.8, 2.0), (0.9, 3.0)])
    assert answers == [None, None, "target"]
    assert rule.time_to_target_s == 3.0
    assert rule.best_value == 0.9


def test_hold_stops_at_the_second_and_counts_the_first():
    points = [(0.9, 1.0), (0.8, 2.0), (0.95, 3.0), (0.91, 4.0)]
    rule, answers = follow(Objective(target=0.9, hold=2), points)
    assert answers == [None, None, None, "target"]
    assert rule.time_to_target_s == 3.0
    assert rule.best_value == 0.95


def test_the_budget_ends_a_run_at_its_next_evaluation():
    objective = Objective(target=0.9, max_train_seconds=2.5)
    rule, answers = follow(objective, [(0.1, 1.0), (0.2, 2.0), (0.3, 3.0)])
    assert answers == [None, None, "max_train_seconds"]
    assert rule.time_to_target_s is None


@pytest.mark.parametrize(
    ("points", "hold", "answer", "seconds"),
    [
        ([(0.9, 2.5)], 1, "target", 2.5),
        ([(0.9, 2.6)], 1, "max_train_seconds", None),
        # Reached in time, held after it: it counts.
        ([(0.9, 2.4), (0.9, 2.6)], 2, "target", 2.4),
        ([(0.9, 2.4), (0.8, 2.6)], 2, "max_train_seconds", None),
    ],
)
def test_a_target_counts_within_the_budget_only(points, hold, answer, seconds):
    objective = Objective(target=0.9, hold=hold, max_train_seconds=2.5)
    rule, answers = follow(objective, points)
    assert answers[-1] == answer
    assert rule.time_to_target_s == seconds


def test_the_end_of_all_epochs():
    objective = Objective(target=0.9, hold=2)
    rule, answers = follow(objective, [(0.1, 1.0), (0.95, 2.0)], finished_at=1)
    assert answers == [None, "epochs"]
    assert rule.time_to_target_s is None, "it was not held"


def test_the_target_comes_before_other_reasons():
    objective = Objective(target=0.9, max_train_seconds=1.0)
    _, answers = follow(objective, [(0.9, 1.0)], finished_at=0)
    assert answers == ["target"]
    _, answers = follow(objective, [(0.1, 1.0)], finished_at=0)
    assert answers == ["max_train_seconds"]


@pytest.mark.parametrize("target", [None, 0.5])
def test_accuracy_at_budget_uses_its_whole_budget(target):
    objective = Objective(kind="best_at_budget", target=target, max_train_seconds=2.0)
    rule, answers = follow(objective, [(0.6, 1.0), (0.9, 1.5), (0.7, 2.0)])
    assert answers == [None, None, "max_train_seconds"]
    assert rule.time_to_target_s == (None if target is None else 1.0)
    assert rule.best_value == 0.7, "the weights that are kept have it"
    rule.update(value=0.8, train_s=2.1, finished=False)
    assert rule.best_value == 0.7, "in time"


def test_nothing_is_known_before_the_first_evaluation():
    rule = StopRule(Objective(target=0.9))
    assert rule.best_value is None
    assert rule.time_to_target_s is None


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        ((0.0, -1.5), True),
        ((), True),
        ((1.0, float("nan")), False),
        ((float("inf"),), False),
        ((float("-inf"), 1.0), False),
    ],
)
def test_is_finite(values, finite):
    assert is_finite(*values) is finite


def test_what_is_reached_after_the_budget_does_not_count():
    """Or slow evaluations would be rewarded."""
    objective = Objective(kind="best_at_budget", max_train_seconds=6.0)
    rule, answers = follow(objective, [(0.5, 5.0), (0.9, 10.0)])
    assert answers == [None, "max_train_seconds"]
    assert rule.best_value == 0.5
    rule, _ = follow(objective, [(0.9, 10.0)])
    assert rule.best_value is None
