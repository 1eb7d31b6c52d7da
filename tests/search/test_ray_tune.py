"""Ray Tune's hooks: what they pass on, and that Tune still calls them so."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import tune
from ray.tune.execution.experiment_state import _ExperimentCheckpointManager
from ray.tune.search import ConcurrencyLimiter, Searcher

from raybench.cluster.layout import Capacity, Node
from raybench.runs.preflight import AUTOSCALED_CONCURRENCY, following
from raybench.search import ray_tune as module
from raybench.search.ray_tune import (
    ENVIRONMENT,
    OUTCOME,
    TuneCallback,
    TuneScheduler,
    TuneSearcher,
    TuneTrainable,
    outcome_of,
)
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.spec.study import build_study
from raybench.stats.record import RunOutcome
from tests.search.stage import FIRST, REACHED, SECOND, Stage


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


def test_ray_tune_does_not_save_its_trials_periodically() -> None:
    settings = {"storage": None, "checkpoint_period": ENVIRONMENT["TUNE_GLOBAL_CHECKPOINT_S"]}
    saving = _ExperimentCheckpointManager(**settings)
    saving._storage, saving._last_save_time = (
        SimpleNamespace(experiment_driver_staging_path=""),
        0.0,
    )
    saving.sync_up_experiment_state(save_fn=lambda: pytest.fail("it does"))
    assert not saving.auto_checkpoint_enabled


def test_a_trial_goes_from_its_proposal_to_its_record(stage: Stage) -> None:
    controller = Tune(stage)
    trial = controller.start()
    assert isinstance(trial.config["spec"], RunSpec)
    assert controller.result(trial, FIRST) == "CONTINUE"
    assert controller.result(trial, SECOND) == "CONTINUE"
    controller.result(trial, REACHED)
    record = stage.record(trial.config["trial"])
    assert (record.stop, record.spec) == ("target", trial.config["spec"])
    assert [line["kind"] for line in stage.lines()] == ["eval", "eval", "eval", "run"]
    assert stage.released == []


@pytest.mark.parametrize(
    ("lost", "failure", "message"),
    [
        (ray.exceptions.ActorDiedError(), "worker_lost", "process"),
        (None, "error", "(traceback: errors/0000.txt)"),
    ],
)
def test_an_exception_is_distinguished_from_a_lost_process(
    lost: Any, failure: str, message: str, stage: Stage
) -> None:
    controller = Tune(stage)
    trial = controller.start()
    controller.result(trial, FIRST)
    trial.get_pickled_error = lambda: lost
    trial.get_error = lambda: "Traceback ...\n  in step\nValueError: no such thing\n"
    controller.callback.on_trial_error(1, [], trial)
    record = stage.record(trial.config["trial"])
    assert (record.failure, record.stop, record.samples) == (failure, None, 1000)
    assert record.concurrent == 2
    assert message in record.message
    assert stage.released == [trial.config["trial"]]


def test_a_result_without_an_outcome_changes_nothing(stage: Stage) -> None:
    """Tune makes such results up."""
    controller = Tune(stage)
    trial = controller.start()
    controller.result(trial, FIRST)
    assert controller.scheduler.on_trial_result(None, trial, {}) == "CONTINUE"
    controller.callback.on_trial_result(2, [], trial, {})
    controller.callback.on_trial_complete(2, [], trial)
    record = stage.record(trial.config["trial"])
    assert (record.state, record.stop, record.samples) == ("stopped", "scheduler", 1000)
    assert (stage.released, stage.search.num_finished) == ([record.trial], 1)
    assert outcome_of({}) == RunOutcome()


@pytest.mark.parametrize("is_interrupt", [True, False])
def test_once_the_search_is_over_nothing_starts_or_waits(is_interrupt: bool, stage: Stage) -> None:
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


def trainable(
    monkeypatch: pytest.MonkeyPatch, steps: list[RunOutcome], last: RunOutcome
) -> tuple[TuneTrainable, list[Any]]:
    """Return a trainable whose run has the outcomes `steps` and ends with `last`, and the arguments
    of the clients that it makes."""
    calls: list[Any] = []

    def client(*arguments: Any, **options: Any) -> Any:
        calls.append((*arguments, options))
        return SimpleNamespace(step=lambda: steps.pop(0), finish=lambda: last)

    monkeypatch.setattr(module, "RunClient", client)
    return TuneTrainable.__new__(TuneTrainable), calls  # Tune's own set-up wants a trial's folder


def test_the_trainable_sends_outcomes_and_takes_the_next_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that is over releases its workers before Tune gets its result."""
    tune_trainable, calls = trainable(monkeypatch, [FIRST, REACHED], replace(REACHED, concurrent=3))
    spec = RunSpec(objective=Objective(target=0.95, max_train_seconds=10))
    tune_trainable.setup({"trial": "0000", "spec": spec}, pool="pool", keep=False, limit_s=9.0)
    first = tune_trainable.step()
    assert (outcome_of(first), first["done"], first["train_s"]) == (FIRST, False, 1.0)
    assert first["score"] == FIRST.score(spec.objective)
    last = tune_trainable.step()
    assert (outcome_of(last).concurrent, last["done"]) == (3, True)
    assert last["score"] == REACHED.score(spec.objective)
    # Tune keeps running averages of all numbers at the top level.
    assert set(last) == {"train_s", "score", "done", OUTCOME}
    other = spec.model_copy(update={"learning_rate": 0.5})
    assert tune_trainable.reset_config({"trial": "0001", "spec": other}) is True
    options = {"keep": False, "limit_s": 9.0}
    assert calls == [("pool", "0000", spec, options), ("pool", "0001", other, options)]


def test_a_run_that_failed_before_its_first_evaluation_has_a_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = RunOutcome(is_over=True, failure="timeout", message="no room")
    tune_trainable, _ = trainable(monkeypatch, [failed], failed)
    tune_trainable.setup({"trial": "0000", "spec": RunSpec()}, pool=None, keep=True)
    result = tune_trainable.step()
    assert (result["train_s"], result["done"]) == (0.0, True)
    assert result["score"] == outcome_of(result).score(RunSpec().objective)


A, B = Node(2, 0, "id-a", "a"), Node(4, 0, "id-b", "b")


class Endless(Searcher):
    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {"trial": trial_id}


@pytest.mark.parametrize(
    ("is_local", "ahead", "number"), [(False, 0, 2), (False, 1, 3), (True, 0, 1)]
)
def test_a_host_that_joins_gets_trials(
    is_local: bool, ahead: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    limiter = ConcurrencyLimiter(Endless(), max_concurrent=1)
    session: Any = SimpleNamespace(is_local=is_local, nodes=lambda: (A, B))
    deadline: Any = SimpleNamespace(over=False)
    trials: Any = None
    callback = TuneCallback(trials, deadline, session, limiter, len, ahead)
    assert limiter.suggest("0") is not None
    assert limiter.suggest("1") is None
    callback.on_step_end(0, [])
    suggested = [limiter.suggest(str(name)) is not None for name in range(1, 5)]
    assert 1 + sum(suggested) == number


def test_concurrency_follows_the_smallest_groups_unless_the_user_sets_it() -> None:
    content = {
        "objective": {"target": 0.9},
        "space": {"num_workers": [1, 2]},
        "fixed": {"cpus_per_worker": 2},
    }
    study, space = build_study(content, "test")
    follow = following(study, space, Capacity((A,), 0.0))
    assert follow is not None
    assert (follow((A,)), follow((A, B)), follow(())) == (1, 3, 1)
    growing = following(study, space, Capacity((A,), 0.0, grows=True))
    assert growing is not None
    assert growing((A,)) == AUTOSCALED_CONCURRENCY
    study, space = build_study(content | {"search": {"concurrency": 2}}, "test")
    assert following(study, space, Capacity((A,), 0.0)) is None
