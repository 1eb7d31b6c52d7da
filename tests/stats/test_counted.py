"""Which runs count when configurations are compared, and as what."""

from dataclasses import replace

import pytest

from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.record import Failure, RunRecord, StopReason
from raybench.stats.replicates import Replicate
from raybench.stats.standing import first_trial, is_informative, replicate_of
from tests.search.made_up import evaluation, record


@pytest.mark.parametrize(
    ("stop", "stopped_by", "failure", "expected"),
    [
        ("target", "scheduler", None, True),
        ("epochs", "scheduler", None, True),
        (None, "cap", None, True),
        (None, "time_budget", None, False),
        (None, "interrupted", None, False),
        (None, "scheduler", "nan", True),
        (None, "scheduler", "worker_lost", False),
    ],
)
def test_what_was_cut_off_says_nothing_and_what_lost_does(
    stop: StopReason | None, stopped_by: StopReason, failure: Failure | None, expected: bool
) -> None:
    assert is_informative(record(stop=stop, stopped_by=stopped_by, failure=failure)) == expected


def budget(value: float, failure: Failure | None = None, **metric: str) -> RunRecord:
    objective = Objective.model_validate({"kind": "best_at_budget", **metric})
    made = record("0000", RunSpec(objective=objective), stop="max_train_seconds", value=value)
    return replace(made, failure=failure)


def test_a_run_is_its_seconds_or_its_value() -> None:
    timed = Objective(target=0.9, baseline_value=0.1)
    hit = record("0000", RunSpec(objective=timed), 2.0, value=1.0)
    assert replicate_of(hit, []) == Replicate(2.0, True)
    points = [evaluation(1.0, value=0.8), evaluation(2.0, index=1, value=1.0)]
    assert replicate_of(hit, points) == Replicate(1.5, True)
    miss = record("0000", RunSpec(objective=timed), 7.0, stop=None, stopped_by="cap")
    assert replicate_of(miss, []) == Replicate(7.0, False)
    assert replicate_of(budget(0.9), []) == Replicate(-0.9, True)
    assert replicate_of(budget(0.4, metric="rmse", direction="min"), []) == Replicate(0.4, True)
    assert not replicate_of(budget(0.9, "nan"), []).is_hit


def test_a_crash_has_spent_what_no_evaluation_saw() -> None:
    crashed = record("0000", RunSpec(objective=Objective(target=0.9)), 2.0, failure="error")
    crashed = replace(crashed, ledger=crashed.ledger | {"other": 3.0})
    assert replicate_of(crashed, []) == Replicate(5.0, False)
    ended = replace(crashed, failure=None, time_to_target_s=None)
    assert replicate_of(ended, []) == Replicate(2.0, False), "of what ended well it is not training"


def test_the_first_trial_has_the_least_number() -> None:
    runs = [record("10000"), record("0003"), record("0001-race0", role="race", source="0001")]
    assert first_trial(runs) == "0003"
    assert first_trial(runs[2:]) is None
    assert first_trial([*runs, record("reference1")]) == "reference1", "it ran before them"
