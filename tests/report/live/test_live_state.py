"""The state of a running study from its events, and its remaining time."""

from dataclasses import replace

from raybench.report.live.state import LiveState
from tests.report.live.made_live import OBJECTIVE, evaluation, record, spec


def test_workers_count_as_training_from_the_first_evaluation() -> None:
    state = LiveState(0.0)
    state.started("0000", spec(), 0.0)
    state.started("0001", spec(), 0.0)
    state.evaluated("0000", evaluation(train_s=10.0))
    assert state.num_training == 2
    assert state.is_starting


def test_the_best_is_a_search_trial_with_a_report() -> None:
    state = LiveState(0.0, num_runs=9)
    state.finished(record("reference0", role="reference"), 1.0)
    # The score of a run that the time budget ended does not count.
    state.finished(replace(record("silent"), samples=0, best_value=None, score=-1.0), 1.0)
    assert state.best is None
    for name, seconds in (("0000", None), ("0001", 2.0), ("0002", 3.0)):
        state.finished(record(name, seconds), 5.0)
    state.finished(record("0001-race0", 0.5, role="race", source="0001"), 6.0)
    assert state.best is not None
    assert state.best.trial == "0001"
    assert (state.num_reached, state.num_searched, state.target) == (2, 4, OBJECTIVE.target)


def test_remaining_time_needs_enough_runs_or_a_budget() -> None:
    state = LiveState(0.0, num_runs=12)
    state.after_s = 60.0
    for number in range(2):
        state.finished(record(f"000{number}", 2.0), 5.0 * (number + 1))
    assert state.time_left(10.0) is None
    state.ends_s = 40.0
    assert state.time_left(10.0) == (30.0, True)
    state.ends_s = None
    for number in range(2, 4):
        state.finished(record(f"000{number}", 2.0), 5.0 * (number + 1))
    seconds_left = state.time_left(20.0)
    assert seconds_left is not None
    assert seconds_left == (8 * 5 + 60, False)
    state.ends_s = 50.0
    assert state.time_left(20.0) == (30.0, True), "the budget ends it earlier"
    state.begin("reference", 3, 20.0, expect_s=9.0)
    state.ends_s = None
    assert state.time_left(20.0) is None, "the duration of the search is unknown"
