"""The trials of a search on Ray Tune.

Ray Tune starts, steps and stops the trials. `LiveTrials` takes their configurations from the
search, records the trials, and decides when they stop. Tune reports the same event through several
hooks, in any order. The adapters to Tune (searcher, scheduler, callback) pass all of them on, and
`LiveTrials` processes each evaluation and each end of a trial once.

A trainable is an actor that drives one run on workers of the worker pool; one step trains up to the
next evaluation. Tune reuses the actor for the next trial (`reset_config`). The resources that Tune
requests for an actor are nominal, because the pool assigns the workers.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import ConcurrencyLimiter, Searcher

from raybench.cluster.layout import Node
from raybench.cluster.ray_internals.nodes import driver_host_resources
from raybench.cluster.run_client import RunClient
from raybench.cluster.session import Session
from raybench.runs.lifecycle import RunLifecycle, RunRecorder
from raybench.runs.wait_watch import Deadline, quiet
from raybench.search.confirm_budget import ConfirmBudget
from raybench.search.search import Search
from raybench.spec.objective import StopReason
from raybench.spec.run import RunSpec
from raybench.stats.record import Failure, Role, RunOutcome

LOST = "the trial's own process was lost"
BATCH_STATISTICS = (
    "The model has batch normalization over each worker's own samples, so what it learns depends "
    "on the batch per worker too, and predictions (~) for other worker counts are rough. "
    "--set search.factorise=false --fresh samples the worker count like all other keys."
)


@dataclass
class _Running:
    """A trial that runs or waits for its workers."""

    run: RunLifecycle
    reason: StopReason | None = None
    """Why the search stops the trial early; None while it continues."""
    num_judged: int = 0


class LiveTrials:
    """Receives the events of the running trials from Ray Tune's hooks, and processes each once.

    Args:
        search: Proposes and stops the trials.
        recorder: Records and shows the trials.
        confirm_budget: Estimates the time of the confirmation from the records of the trials.
        release: Releases the workers of a trial that the driver ends; returns the largest number of
            other runs that had workers at the same time.
        on_begun: Called before each trial starts.
    """

    def __init__(
        self,
        search: Search,
        recorder: RunRecorder,
        *,
        confirm_budget: ConfirmBudget,
        release: Callable[[str], int],
        on_begun: Callable[[], None] = lambda: None,
    ) -> None:
        self._search, self._recorder = search, recorder
        self._deadline, self._progress = recorder.deadline, recorder.progress
        self._confirm_budget, self._release, self._on_begun = confirm_budget, release, on_begun
        self._running: dict[str, _Running] = {}
        self._may_warn = search.placer is not None
        self.ended_by: StopReason | None = None
        """Why the search ended before it had run all its trials; None if it has not."""

    def __getstate__(self) -> dict[str, object]:
        """Return an empty state for Ray Tune to save, because the study is saved in its records."""
        return {}

    def next(self) -> tuple[str, RunSpec] | None:
        """Return the name and run spec of the next trial; None if no trial can start now.

        An interrupted trial resumes from its checkpoint; its evaluations up to the checkpoint are
        recorded again.
        """
        self.ended_by = self.ended_by or self._deadline.reason()
        suggested = None if self.ended_by else self._search.suggest()
        if suggested is not None:
            self._on_begun()
            name, spec = suggested
            run = RunLifecycle(self._recorder, name, spec, Role.TRIAL)
            run.resume()
            self._running[name] = _Running(run)
        return suggested

    def started(self, name: str) -> None:
        """Show that a trial is waiting for its workers."""
        self._progress.started(name, self._running[name].run.spec)

    def observe(self, name: str, outcome: RunOutcome) -> None:
        """Record the newest evaluation of a trial, and save its checkpoint."""
        if (running := self._running.get(name)) is None:
            return  # the trial has ended
        if self._may_warn and outcome.batch_statistics:
            self._may_warn = False
            self._progress.say(BATCH_STATISTICS)
        running.run.take(outcome)

    def must_stop(self, name: str, outcome: RunOutcome) -> bool:
        """Record a trial's newest evaluation, and return whether the trial must stop now.

        It must stop if it is unlikely to win, or if the time of the study is over.
        """
        self.observe(name, outcome)
        run = self._running.get(name)
        if run is None or self._deadline.over:
            return True
        if outcome.evaluation is None or outcome.is_over:
            return False
        number = outcome.evaluation.index + 1
        if run.reason is None and run.num_judged < number:
            run.num_judged = number
            run.reason = self._search.on_result(name, outcome).stop
        return run.reason is not None

    def ended(self, name: str, *, is_lost: bool = False, error: str = "") -> None:
        """Record the end of a trial, and pass its result to the search.

        Args:
            name: Name of the trial.
            is_lost: Whether its Tune actor died.
            error: Traceback of an exception in its Tune actor.
        """
        running = self._running.pop(name, None)
        if running is None:
            return
        run = running.run
        outcome = run.outcome
        if is_lost:
            outcome = replace(outcome, failure=Failure.WORKER_LOST, message=LOST)
        elif error:
            message = error.strip().splitlines()[-1]
            outcome = replace(outcome, failure=Failure.ERROR, message=message, traceback=error)
        if is_lost or error or not outcome.is_over:
            outcome = replace(outcome, concurrent=self._release(name))
        run.outcome = outcome
        record = run.end(
            stopped_by=running.reason or self._deadline.reason() or StopReason.SCHEDULER
        )
        self._search.on_end(record)
        self._confirm_budget.add(record)
        self._deadline.reserve(self._confirm_budget.reserve_s())
        self._progress.expect_after(self._confirm_budget.confirming_s())
        self._progress.finished(record)


LOOK_S = 10.0
"""Seconds between two checks of which nodes the cluster has."""


class TuneCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Passes the events of trials to `LiveTrials`, which writes the results in the driver process.

    Also adapts the number of concurrent trials when the cluster gains or loses nodes.
    """

    def __init__(
        self,
        trials: LiveTrials,
        deadline: Deadline,
        session: Session,
        searcher: ConcurrencyLimiter,
        follow: Callable[[tuple[Node, ...]], int] | None,
        ahead: int,
    ) -> None:
        self._trials, self._deadline, self._session = trials, deadline, session
        self._searcher, self._follow, self._ahead = searcher, follow, ahead
        self._looked = time.monotonic()

    def __getstate__(self) -> dict[str, object]:
        """Return nothing for Ray Tune to save."""
        return {}

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Cancel all waits for workers once the time is over; check the cluster's nodes every
        LOOK_S seconds."""
        if self._deadline.over:
            self._session.pool.stop_waiting.remote()
        is_due = time.monotonic() - self._looked >= LOOK_S
        if self._follow is not None and is_due and not self._session.is_local:
            self._looked = time.monotonic()
            fitting = max(1, self._follow(self._session.nodes()))
            self._searcher.max_concurrent = fitting + self._ahead

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Show that the trial waits for its workers."""
        self._trials.started(trial.config["trial"])

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Record the evaluation, since Tune does not pass a trial's last one to the scheduler."""
        self._trials.observe(trial.config["trial"], outcome_of(result))

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Write the trial's record."""
        self._trials.ended(trial.config["trial"])

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Write the record of a trial whose Tune actor died or raised an exception."""
        is_lost = isinstance(trial.get_pickled_error(), ray.exceptions.RayActorError)
        error = "" if is_lost else str(trial.get_error() or "unknown error")
        self._trials.ended(trial.config["trial"], is_lost=is_lost, error=error)


OUTCOME = "outcome"


class TuneTrainable(tune.Trainable):  # type: ignore[misc, unused-ignore]
    """Runs one trial at a time on workers of the pool."""

    def setup(
        self,
        config: dict[str, Any],
        pool: Any = None,
        keep: bool = True,
        limit_s: float | None = None,
    ) -> None:
        """Store the configuration of a trial without starting it.

        Args:
            config: Name and run spec of the trial.
            pool: Handle of the worker pool. This and the following arguments are passed by
                `tune.with_parameters`.
            keep: Whether the pool keeps the workers for later trials.
            limit_s: Time limit of the trial in seconds; None for no limit.
        """
        self._pool, self._keep, self._limit_s = pool, keep, limit_s
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Store the configuration of the next trial; Tune calls this to reuse the actor."""
        self._spec = new_config["spec"]
        self._client = RunClient(
            self._pool, new_config["trial"], self._spec, keep=self._keep, limit_s=self._limit_s
        )
        return True

    def step(self) -> dict[str, Any]:
        """Train to the next evaluation.

        Tune keeps running averages of every number in a result, so only numbers that Tune reads
        are at the top level.
        """
        outcome = self._client.step()
        if outcome.is_over:
            outcome = self._client.finish()
        return {
            "train_s": outcome.evaluation.train_s if outcome.evaluation else 0.0,
            "score": outcome.score(self._spec.objective),
            tune.result.DONE: outcome.is_over,
            OUTCOME: outcome,
        }


def outcome_of(result: dict[str, Any]) -> RunOutcome:
    """Return the run outcome that a result of `TuneTrainable.step` contains; an empty outcome if
    there is none."""
    outcome = result.get(OUTCOME)
    return outcome if isinstance(outcome, RunOutcome) else RunOutcome()


class TuneSearcher(Searcher):
    """Passes the next trial of `LiveTrials` to Ray Tune."""

    def __init__(self, trials: LiveTrials) -> None:
        super().__init__(metric="score", mode="min")
        self._trials = trials

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """Return the configuration of the next trial, or `FINISHED`."""
        suggestion = self._trials.next()
        if suggestion is None:
            return str(Searcher.FINISHED)
        name, spec = suggestion
        return {"trial": name, "spec": spec}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Do nothing, because `TuneCallback` processes the end of a trial."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing, because the study is stored in its records."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing, because the study is stored in its records."""


class TuneScheduler(FIFOScheduler):  # type: ignore[misc, unused-ignore]
    """Runs trials in order; `LiveTrials.must_stop` decides when a trial is stopped."""

    def __init__(self, trials: LiveTrials) -> None:
        super().__init__()
        self._trials = trials

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Return the first waiting trial.

        Tune asks at every event, and its own implementation iterates over all trials each time.
        """
        for status in (Trial.PENDING, Trial.PAUSED):
            waiting = [
                trial for trial in tune_controller.get_live_trials() if trial.status == status
            ]
            if waiting:
                return min(waiting, key=lambda trial: int(trial.config["trial"]))
        return None

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Decide whether the trial continues after an evaluation."""
        must_stop = self._trials.must_stop(trial.config["trial"], outcome_of(result))
        return str(TrialScheduler.STOP if must_stop else TrialScheduler.CONTINUE)


ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # `cluster.signals` listens instead
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a failed trial has no accuracy
    # Tune would save the state of all trials repeatedly; the records contain the study.
    "TUNE_GLOBAL_CHECKPOINT_S": "inf",
    "RAY_AIR_NEW_OUTPUT": "0",
}
"""Environment variables for Ray Tune."""


def run_trials(
    trials: LiveTrials,
    *,
    session: Session,
    deadline: Deadline,
    log: Path,
    keep_groups: bool,
    limit_s: float | None,
    concurrency: int,
    ahead: int,
    follow: Callable[[tuple[Node, ...]], int] | None,
) -> None:
    """Run trials until there are no more, or the deadline ends them.

    Args:
        trials: The trials.
        session: The Ray session.
        deadline: Time budget and interruption.
        log: File for the output of Ray Tune.
        keep_groups: Whether worker groups are reused by later trials.
        limit_s: Time limit in seconds after which a trial counts as failed; None for no limit.
        concurrency: Largest number of concurrent trials.
        ahead: Number of further trials that may wait for workers.
        follow: Function that returns the largest number of concurrent trials for the current nodes
            of the cluster; None keeps that number constant.
    """
    os.environ.update(ENVIRONMENT)
    trainable = tune.with_resources(
        tune.with_parameters(TuneTrainable, pool=session.pool, keep=keep_groups, limit_s=limit_s),
        # The actor of a trial only waits; the pool reserves the cores of its workers.
        tune.PlacementGroupFactory([driver_host_resources()]),
    )
    # Unlike Tune's own limit, that of `ConcurrencyLimiter` can change during the search.
    searcher = ConcurrencyLimiter(TuneSearcher(trials), max_concurrent=concurrency + ahead)
    tuner = tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            scheduler=TuneScheduler(trials),
            # No limit on the number of trials: the searcher ends the search.
            num_samples=-1,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(session.scratch),
            callbacks=[TuneCallback(trials, deadline, session, searcher, follow, ahead)],
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    with quiet(log):
        tuner.fit()
