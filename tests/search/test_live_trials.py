"""Trials are recorded and judged once, in whatever order Ray Tune calls its hooks."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raybench.results.records import read_records
from raybench.search.live_trials import LiveTrials
from raybench.spec.errors import ErrorCode, StudyError
from raybench.spec.own_loop import UNREPORTED
from raybench.stats.record import RunOutcome
from tests.refusals import refused
from tests.search.made_up import make_search, outcome
from tests.search.stage import CONTENT, FIRST, REACHED, SECOND, Stage

Event = Callable[[LiveTrials, str, RunOutcome], Any]


def observed(trials: LiveTrials, name: str, current: RunOutcome) -> None:
    trials.observe(name, current)


def judged(trials: LiveTrials, name: str, current: RunOutcome) -> None:
    assert not trials.must_stop(name, current)


def broken(message: str) -> RunOutcome:
    return RunOutcome(is_over=True, failure="error", message=message)


@pytest.mark.parametrize("last", [(observed,), (observed, judged, observed)])
@pytest.mark.parametrize(
    "order", [(judged,), (judged, observed), (observed, observed, judged, judged)]
)
@pytest.mark.parametrize("lost", [[False], [False, True]])
def test_every_order_of_hooks_writes_the_same_and_reports_once(
    order: tuple[Event, ...], last: tuple[Event, ...], lost: list[bool], stage: Stage
) -> None:
    name = stage.start()
    for current, events in ((FIRST, order), (SECOND, order), (REACHED, last)):
        for event in events:
            event(stage.trials, name, current)
    for is_lost in lost:
        stage.trials.ended(name, is_lost=is_lost)
    stage.trials.observe(name, REACHED)
    assert stage.trials.must_stop(name, FIRST)
    lines = stage.lines()
    assert [(line["kind"], line.get("index")) for line in lines] == [
        ("eval", 0),
        ("eval", 1),
        ("eval", 2),
        ("run", None),
    ]
    record = stage.record(name)
    assert (record.state, record.stop, record.samples) == ("complete", "target", 3000)
    assert stage.search.reported == [(name, FIRST), (name, SECOND)]
    assert stage.released == [], "a trial that ends by itself has released its workers"
    assert stage.screen.getvalue().count("search 1/3") == 1


def test_outdated_outcomes_change_nothing(stage: Stage) -> None:
    name = stage.start()
    failed = replace(SECOND, is_over=True, failure="error", message="it broke")
    for current in (SECOND, FIRST, failed, SECOND, RunOutcome()):
        stage.trials.observe(name, current)
    stage.trials.ended(name)
    assert [line.get("index") for line in stage.lines()] == [1, None]
    record = stage.record(name)
    assert (record.state, record.failure, record.message) == ("failed", "error", "it broke")
    assert (record.samples, record.best_value) == (2000, 0.9)


@pytest.mark.parametrize("later", ["same", "evaluation", "target", "interrupt", "time_budget"])
def test_the_first_stop_reason_counts(later: str, stage: Stage) -> None:
    stage.lead()
    name = stage.start()
    assert stage.trials.must_stop(name, FIRST)
    if later == "same":
        assert stage.trials.must_stop(name, FIRST)
    elif later == "evaluation":
        assert stage.trials.must_stop(name, SECOND)
    elif later == "target":  # the first of two in a row: by itself it would go on
        assert stage.trials.must_stop(name, outcome(2.0, index=1, value=0.96))
    elif later == "interrupt":
        stage.interrupt.is_set = True
    else:
        stage.deadline.reserve(float("inf"))
    stage.trials.ended(name)
    record = stage.record(name)
    assert (record.state, record.stop, record.concurrent) == ("stopped", "cap", 2)
    assert (stage.search.reported, stage.released) == ([(name, FIRST)], [name])


def test_a_restarted_trial_is_judged_once_per_evaluation(stage: Stage) -> None:
    """The later evaluations count: a lost attempt is in no time to target."""
    name = stage.start()
    for current in (FIRST, SECOND):
        judged(stage.trials, name, current)
    restarted = replace(outcome(2.5, index=1), restarts=1, restart_reason="a worker has died")
    for event in (judged, observed):
        event(stage.trials, name, restarted)
    observed(stage.trials, name, SECOND)
    stage.trials.observe(name, replace(REACHED, restarts=1))
    stage.trials.ended(name)
    assert [line.get("index") for line in stage.lines()] == [0, 1, 1, 2, None]
    curve = read_records(stage.store.folder).curves[name]
    assert [point.train_s for point in curve] == [1.0, 2.5, 3.0]
    reported = [result.evaluation for _, result in stage.search.reported]
    assert [measured and measured.index for measured in reported] == [0, 1]
    assert stage.record(name).restarts == 1
    sentence = f"trial {name} goes on in new workers: a worker has died"
    assert stage.screen.getvalue().count(sentence) == 1


def test_a_trial_of_an_earlier_session_resumes_from_its_checkpoint(stage: Stage) -> None:
    """The recorded curve is complete although the earlier driver recorded no evaluation."""
    first, second = FIRST.evaluation, SECOND.evaluation
    assert first is not None
    assert second is not None
    stage.saved.curve = (first, second)
    name = stage.start()
    stage.trials.observe(name, REACHED)
    stage.trials.ended(name)
    assert [line.get("index") for line in stage.lines()] == [0, 1, 2, None]
    assert stage.record(name).stop == "target"


def run(stage: Stage, current: RunOutcome) -> str:
    name = stage.start()
    stage.trials.observe(name, current)
    stage.trials.ended(name)
    return name


@pytest.mark.parametrize(
    ("outcomes", "is_hopeless"),
    [
        ([broken("no file, pid 1"), broken("no file, pid 2")], True),
        ([replace(broken("no file, pid 2"), failure="timeout")] * 2, True),
        ([replace(broken("no file, pid 2"), failure="worker_lost")] * 2, True),
        ([broken("no file"), broken("no memory for 3")], False),
        ([broken("no file"), REACHED], False),
        ([replace(SECOND, is_over=True, failure="error", message="x"), broken("x")], False),
        ([replace(broken("x"), failure="oom"), broken("x")], False),
    ],
)
def test_a_search_ends_if_no_trial_can_train(
    outcomes: list[RunOutcome], is_hopeless: bool, stage: Stage
) -> None:
    stage.first_runs.limit = 2
    for current in outcomes:
        run(stage, current)
    if is_hopeless:
        with pytest.raises(StudyError) as fault:
            stage.deadline.raise_fault()
        assert all(value in str(fault.value) for value in ("2 trials", "(no file, pid 2)"))
    assert len(read_records(stage.store.folder).runs) == 2, "nothing is lost"
    assert stage.deadline.over == is_hopeless


def test_a_search_continues_while_an_older_trial_may_still_train(stage: Stage) -> None:
    stage.first_runs.limit = 2
    stage.start()
    for _ in range(2):
        run(stage, broken("x"))
    assert not stage.deadline.over


def test_an_invalid_model_ends_a_search_without_trained_trials(stage: Stage) -> None:
    mistaken = replace(broken("shape (8, 7)"), mistake=ErrorCode.INVALID_MODEL, traceback="line 3")
    run(stage, mistaken)
    with refused(ErrorCode.INVALID_MODEL, "(8, 7)") as caught:
        stage.deadline.raise_fault()
    assert caught.value.details == "line 3"
    assert not read_records(stage.store.folder).runs, "it runs again once the model is corrected"


def test_an_invalid_model_of_one_trial_fails_only_that_trial(stage: Stage) -> None:
    run(stage, REACHED)
    name = run(stage, replace(broken("shape (8, 7)"), mistake=ErrorCode.INVALID_MODEL))
    assert stage.record(name).failure == "error"
    assert not stage.deadline.over


def test_a_command_that_prints_no_metric_ends_the_search(stage: Stage) -> None:
    run(stage, broken(f"{UNREPORTED} accuracy, its lines of JSON have val/acc; name one"))
    with refused(ErrorCode.COMMAND, "val/acc"):
        stage.deadline.raise_fault()


@pytest.mark.parametrize("room", [0, 1])
@pytest.mark.parametrize("last", [REACHED, SECOND])
def test_a_full_disk_ends_the_study_and_unrecorded_trials_run_again(
    last: RunOutcome, room: int, stage: Stage, tmp_path: Path
) -> None:
    stage.store.room = room
    proposal = stage.trials.next()
    assert proposal is not None
    name, spec = proposal
    stage.trials.started(name)
    stage.trials.observe(name, FIRST)
    assert (stage.deadline.fault is None) == bool(room)
    stage.trials.observe(name, last)
    fault = stage.deadline.fault
    assert isinstance(fault, OSError)
    assert fault.strerror == "No space left for 1", "the first one"
    assert stage.deadline.interrupted
    stage.trials.ended(name)
    assert stage.deadline.fault is fault
    assert [record.trial for record in stage.search.told] == [name]
    assert stage.trials.next() is None
    assert [line["kind"] for line in stage.lines()] == room * ["eval"]
    with pytest.raises(OSError, match="No space left for 1"):
        stage.deadline.raise_fault()
    resumed = make_search(tmp_path, CONTENT, runs=read_records(tmp_path).runs)
    assert resumed.num_finished == 0
    assert resumed.suggest() == (name, spec)
