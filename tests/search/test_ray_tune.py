"""Trials on Ray Tune are recorded and judged once, in whatever order Tune calls its hooks, and Tune
still calls them so."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import tune
from ray.tune.execution.experiment_state import _ExperimentCheckpointManager
from ray.tune.search import ConcurrencyLimiter, Searcher

from raybench.cluster.layout import Capacity, Node
from raybench.results.records import read_records
from raybench.search import ray_tune as module
from raybench.search.preflight import AUTOSCALED_CONCURRENCY, following
from raybench.search.ray_tune import (
    ENVIRONMENT,
    OUTCOME,
    LiveTrials,
    TuneCallback,
    TuneScheduler,
    TuneSearcher,
    TuneTrainable,
    outcome_of,
)
from raybench.spec.errors import ErrorCode, StudyError
from raybench.spec.objective import Objective
from raybench.spec.own_loop import UNREPORTED
from raybench.spec.run import RunSpec
from raybench.spec.study import build_study
from raybench.stats.record import RunOutcome
from tests.refusals import refused
from tests.search.made_up import evaluation, make_search, outcome
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
def test_every_order_of_hooks_writes_the_same_and_reports_once(order, last, lost, stage):
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


def test_outdated_outcomes_change_nothing(stage):
    name = stage.start()
    failed = replace(SECOND, is_over=True, failure="error", message="it broke")
    for current in (SECOND, FIRST, failed, SECOND, RunOutcome()):
        stage.trials.observe(name, current)
    stage.trials.ended(name)
    assert [line.get("index") for line in stage.lines()] == [1, None]
    record = stage.record(name)
    assert (record.state, record.failure, record.message) == ("failed", "error", "it broke")
    assert (record.samples, record.best_value) == (2000, 0.9)


@pytest.mark.parametrize(
    "later",
    [FIRST, SECOND, outcome(2.0, index=1, value=0.96), "interrupt", "time_budget"],
    ids=["same", "evaluation", "target", "interrupt", "time_budget"],
)
def test_the_first_stop_reason_counts(later, stage):
    stage.lead()
    name = stage.start()
    assert stage.trials.must_stop(name, FIRST)
    if isinstance(later, RunOutcome):
        assert stage.trials.must_stop(name, later)
    elif later == "interrupt":
        stage.interrupt.is_set = True
    else:
        stage.deadline.reserve(float("inf"))
    stage.trials.ended(name)
    record = stage.record(name)
    assert (record.state, record.stop, record.concurrent) == ("stopped", "cap", 2)
    assert (stage.search.reported, stage.released) == ([(name, FIRST)], [name])


def test_a_restarted_trial_is_judged_once_per_evaluation(stage):
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


def run(stage: Stage, current: RunOutcome) -> str:
    name = stage.start()
    stage.trials.observe(name, current)
    stage.trials.ended(name)
    return name


def test_a_trial_of_an_earlier_session_resumes_from_its_checkpoint(stage):
    """The recorded curve is complete although the earlier driver recorded no evaluation."""
    stage.saved.curve = (evaluation(1.0), evaluation(2.0, index=1))
    name = run(stage, REACHED)
    assert [line.get("index") for line in stage.lines()] == [0, 1, 2, None]
    assert stage.record(name).stop == "target"


@pytest.mark.parametrize(
    ("outcomes", "num_older", "is_hopeless"),
    [
        ([broken("no file, pid 1"), broken("no file, pid 2")], 0, True),
        ([replace(broken("no file, pid 2"), failure="timeout")] * 2, 0, True),
        ([replace(broken("no file, pid 2"), failure="worker_lost")] * 2, 0, True),
        ([broken("no file"), broken("no memory for 3")], 0, False),
        ([broken("no file"), REACHED], 0, False),
        ([replace(SECOND, is_over=True, failure="error", message="x"), broken("x")], 0, False),
        ([replace(broken("x"), failure="oom"), broken("x")], 0, False),
        ([broken("x")] * 2, 1, False),  # the older trial may still train
    ],
)
def test_a_search_ends_if_no_trial_can_train(outcomes, num_older, is_hopeless, stage):
    stage.first_runs.limit = 2
    for _ in range(num_older):
        stage.start()
    for current in outcomes:
        run(stage, current)
    if is_hopeless:
        with pytest.raises(StudyError) as fault:
            stage.deadline.raise_fault()
        assert all(value in str(fault.value) for value in ("2 trials", "(no file, pid 2)"))
    assert len(read_records(stage.store.folder).runs) == 2, "nothing is lost"
    assert stage.deadline.over == is_hopeless


def test_an_invalid_model_ends_only_a_search_without_trained_trials(stage, tmp_path):
    mistaken = replace(broken("shape (8, 7)"), mistake=ErrorCode.INVALID_MODEL, traceback="line 3")
    run(stage, REACHED)
    name = run(stage, mistaken)
    assert stage.record(name).failure == "error"
    assert not stage.deadline.over
    (tmp_path / "untrained").mkdir()
    untrained = Stage(tmp_path / "untrained")
    with untrained.store:
        run(untrained, mistaken)
    with refused(ErrorCode.INVALID_MODEL, "(8, 7)") as caught:
        untrained.deadline.raise_fault()
    assert caught.value.details == "line 3"
    assert not read_records(untrained.store.folder).runs, "it runs again once it is corrected"


def test_a_command_that_prints_no_metric_ends_the_search(stage):
    run(stage, broken(f"{UNREPORTED} accuracy, its lines of JSON have val/acc; name one"))
    with refused(ErrorCode.COMMAND, "val/acc"):
        stage.deadline.raise_fault()


@pytest.mark.parametrize("room", [0, 1])
@pytest.mark.parametrize("last", [REACHED, SECOND])
def test_a_full_disk_ends_the_study_and_unrecorded_trials_run_again(last, room, stage, tmp_path):
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
    resumed = make_search(tmp_path, CONTENT, runs=read_records(tmp_path).runs.values())
    assert resumed.num_finished == 0
    assert resumed.suggest() == (name, spec)


class Tune:
    """Calls our hooks as Ray Tune's controller does."""

    def __init__(self, stage: Stage) -> None:
        self.num_released = 0
        pool = SimpleNamespace(stop_waiting=SimpleNamespace(remote=self._stop_waiting))
        session: Any = SimpleNamespace(pool=pool, is_local=True)
        self.searcher = TuneSearcher(stage.trials)
        self.scheduler = TuneScheduler(stage.trials)
        limiter = ConcurrencyLimiter(self.searcher, max_concurrent=4)
        self.callback = TuneCallback(stage.trials, stage.deadline, session, limiter, None, 0)

    def _stop_waiting(self) -> None:
        self.num_released += 1

    def start(self) -> Any:
        config = self.searcher.suggest("tune's own id")
        assert isinstance(config, dict)
        trial = SimpleNamespace(config=config, trial_id="tune's own id")
        self.callback.on_trial_start(1, [], trial)
        return trial

    def result(self, trial: Any, outcome: RunOutcome) -> str:
        sent = {OUTCOME: outcome, "train_s": 1.0, tune.result.DONE: outcome.is_over}
        decision = "STOP"
        if not outcome.is_over:
            decision = self.scheduler.on_trial_result(None, trial, sent)
        self.callback.on_trial_result(1, [], trial, sent)
        if decision == "STOP":
            self.searcher.on_trial_complete(trial.trial_id, sent)
            self.callback.on_trial_complete(1, [], trial)
        return decision


def test_ray_tune_does_not_save_its_trials_periodically():
    settings = {"storage": None, "checkpoint_period": ENVIRONMENT["TUNE_GLOBAL_CHECKPOINT_S"]}
    saving = _ExperimentCheckpointManager(**settings)
    saving._storage, saving._last_save_time = (
        SimpleNamespace(experiment_driver_staging_path=""),
        0.0,
    )
    saving.sync_up_experiment_state(save_fn=lambda: pytest.fail("it does"))
    assert not saving.auto_checkpoint_enabled


@pytest.mark.parametrize(
    ("lost", "failure", "message"),
    [
        (ray.exceptions.ActorDiedError(), "worker_lost", "process"),
        (None, "error", "(traceback: errors/0000.txt)"),
    ],
)
def test_an_exception_is_distinguished_from_a_lost_process(lost, failure, message, stage):
    controller = Tune(stage)
    trial = controller.start()
    last = {"num_parameters": 7, "batch_statistics": True, "wall_s": 9.0}
    places = {"hosts": ("one",), "devices": ("cpu",)}
    assert controller.result(trial, replace(FIRST, **last, **places)) == "CONTINUE"
    trial.get_pickled_error = lambda: lost
    trial.get_error = lambda: "Traceback ...\n  in step\nValueError: no such thing\n"
    for _ in range(2):
        controller.callback.on_trial_error(1, [], trial)
    record = stage.record(trial.config["trial"])
    assert (record.failure, record.stop, record.samples) == (failure, None, 1000)
    assert (record.best_value, record.ledger["train"], record.concurrent) == (0.9, 1.0, 2)
    assert {name: getattr(record, name) for name in last} == last
    assert (record.hosts, record.devices) == (["one"], ["cpu"])
    assert message in record.message
    assert stage.released == [trial.config["trial"]]


@pytest.mark.parametrize("samples", [1000, 0])
def test_a_result_without_an_outcome_changes_nothing(samples, stage):
    """Tune makes such results up, also for a trial that has not reported."""
    controller = Tune(stage)
    trial = controller.start()
    if samples:
        controller.result(trial, FIRST)
    assert controller.scheduler.on_trial_result(None, trial, {}) == "CONTINUE"
    controller.callback.on_trial_result(2, [], trial, {})
    controller.callback.on_trial_complete(2, [], trial)
    record = stage.record(trial.config["trial"])
    assert (record.state, record.stop, record.samples) == ("stopped", "scheduler", samples)
    assert (stage.released, stage.search.num_finished) == ([record.trial], 1)
    assert outcome_of({}) == RunOutcome()


@pytest.mark.parametrize("is_interrupt", [True, False])
def test_once_the_search_is_over_nothing_starts_or_waits(is_interrupt, stage):
    controller = Tune(stage)
    trial = controller.start()
    controller.callback.on_step_end(1, [])
    assert controller.num_released == 0
    stage.interrupt.is_set = is_interrupt
    stage.deadline.reserve(float("inf"))
    assert controller.searcher.suggest("another") == Searcher.FINISHED
    controller.callback.on_step_end(2, [])
    assert controller.num_released == 1, "who waits for workers waits no more"
    assert controller.result(trial, FIRST) == "STOP"
    stop = "interrupted" if is_interrupt else "time_budget"
    assert stage.record(trial.config["trial"]).stop == stop
    assert stage.search.num_finished == (0 if is_interrupt else 1)


def test_the_trainable_sends_outcomes_and_takes_the_next_trial(
    monkeypatch,
):
    """A run that is over releases its workers before Tune gets its result."""
    failed = RunOutcome(is_over=True, failure="timeout", message="no room")
    steps, ends = [FIRST, REACHED, failed], [replace(REACHED, concurrent=3), failed]
    calls: list[Any] = []

    def client(*arguments: Any, **options: Any) -> Any:
        calls.append((*arguments, options))
        return SimpleNamespace(step=lambda: steps.pop(0), finish=lambda: ends.pop(0))

    monkeypatch.setattr(module, "RunClient", client)
    trainable = TuneTrainable.__new__(TuneTrainable)  # Tune's own set-up wants a trial's folder
    spec = RunSpec(objective=Objective(target=0.95, max_train_seconds=10))
    trainable.setup({"trial": "0000", "spec": spec}, pool="pool", keep=False, limit_s=9.0)
    first, last = trainable.step(), trainable.step()
    assert (outcome_of(first), first["done"], first["train_s"]) == (FIRST, False, 1.0)
    assert first["score"] == FIRST.score(spec.objective)
    assert (outcome_of(last).concurrent, last["done"]) == (3, True)
    assert last["score"] == REACHED.score(spec.objective)
    # Tune keeps running averages of all numbers at the top level.
    assert set(last) == {"train_s", "score", "done", OUTCOME}
    other = spec.model_copy(update={"learning_rate": 0.5})
    assert trainable.reset_config({"trial": "0001", "spec": other}) is True
    options = {"keep": False, "limit_s": 9.0}
    assert calls == [("pool", "0000", spec, options), ("pool", "0001", other, options)]
    unmeasured = trainable.step()
    assert (unmeasured["train_s"], unmeasured["done"]) == (0.0, True)
    assert unmeasured["score"] == failed.score(other.objective)


A, B = Node(2, 0, "id-a", "a"), Node(4, 0, "id-b", "b")


@pytest.mark.parametrize(
    ("is_local", "ahead", "number"), [(False, 0, 2), (False, 1, 3), (True, 0, 1)]
)
def test_a_host_that_joins_gets_trials(is_local, ahead, number, monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    limiter = ConcurrencyLimiter(Searcher(), max_concurrent=1)
    session: Any = SimpleNamespace(is_local=is_local, nodes=lambda: (A, B))
    deadline: Any = SimpleNamespace(over=False)
    trials: Any = None
    callback = TuneCallback(trials, deadline, session, limiter, len, ahead)
    callback.on_step_end(0, [])
    assert limiter.max_concurrent == number


def test_concurrency_follows_the_smallest_groups_unless_the_user_sets_it():
    content = {"space": {"num_workers": [1, 2]}, "fixed": {"cpus_per_worker": 2}}
    content |= {"objective": {"target": 0.9}}
    study, space = build_study(content, "test")
    follow = following(study, space, Capacity((A,), 0.0))
    growing = following(study, space, Capacity((A,), 0.0, grows=True))
    assert follow is not None
    assert growing is not None
    assert [follow((A,)), follow((A, B)), follow(())] == [1, 3, 1]
    assert growing((A,)) == AUTOSCALED_CONCURRENCY
    study, space = build_study(content | {"search": {"concurrency": 2}}, "test")
    assert following(study, space, Capacity((A,), 0.0)) is None
