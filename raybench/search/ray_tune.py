"""The search under Ray Tune: its controller over trials, our proposals, the pool's workers.

What Tune asks of us stands here, a class each: a configuration (a trial's name and its run spec),
whether a trial goes on after an evaluation, whether the whole search is over, how many trials run
at once (as many as the cluster has room for at the moment), and the trial itself: a class
trainable that drives one run in workers lent by the pool. Tune reuses the trainable's actor for the
next trial (`reset_config`), and a step is one evaluation. The reservation Tune makes for it is
nominal: workers are admitted by the pool.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune import Callback, Stopper
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import ConcurrencyLimiter, Searcher

from raybench.cluster.layout import Node
from raybench.cluster.ray_internals.nodes import waits_by_driver
from raybench.cluster.run_client import RunClient
from raybench.cluster.session import Session
from raybench.runs.deadline import Deadline
from raybench.runs.wait_watch import quiet
from raybench.search.live_trials import LiveTrials
from raybench.stats.record import RunOutcome

LOOK_S = 10.0
"""Seconds between two looks at the nodes; hosts take longer to come."""


class TuneCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Passes on every event in the driver, which alone writes the results folder.

    Tune's limit follows hosts as they come and go; on a Ray of our own there is one.
    """

    def __init__(
        self,
        trials: LiveTrials,
        deadline: Deadline,
        session: Session,
        searcher: ConcurrencyLimiter,
        follow: Callable[[tuple[Node, ...]], int] | None,
        ahead: int = 0,
    ) -> None:
        self._trials, self._deadline, self._session = trials, deadline, session
        self._searcher, self._follow, self._ahead = searcher, follow, ahead
        self._looked = time.monotonic()

    def __getstate__(self) -> dict[str, object]:
        """Give Ray Tune, which saves all that it is given, nothing."""
        return {}

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Once the search is over, let nobody wait for workers; look at the nodes now and then."""
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
        """Show the trial."""
        self._trials.started(trial.config["trial"])

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Write the evaluation; Tune does not ask the scheduler of one that ends a trial."""
        self._trials.seen(trial.config["trial"], outcome_of(result))

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Write the trial's record."""
        self._trials.ended(trial.config["trial"])

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Write the record of a trial whose Tune actor was lost, or raised."""
        is_lost = isinstance(trial.get_pickled_error(), ray.exceptions.RayActorError)
        error = "" if is_lost else str(trial.get_error() or "unknown error")
        self._trials.ended(trial.config["trial"], is_lost=is_lost, error=error)


OUTCOME = "outcome"


class TuneTrainable(tune.Trainable):  # type: ignore[misc, unused-ignore]
    """One trial at a time; pool, isolation and limit come with `tune.with_parameters`."""

    def setup(
        self,
        config: dict[str, Any],
        pool: Any = None,
        keep: bool = True,
        limit_s: float | None = None,
    ) -> None:
        """Take a trial's configuration; nothing starts yet."""
        self._pool, self._keep, self._limit_s = pool, keep, limit_s
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next trial's configuration in the same actor."""
        self._spec = new_config["spec"]
        self._client = RunClient(
            self._pool, new_config["trial"], self._spec, keep=self._keep, limit_s=self._limit_s
        )
        return True

    def step(self) -> dict[str, Any]:
        """Train to the next evaluation.

        Of every number in a result Tune keeps running averages for as long as the study lives:
        in the open stands only what it reads itself.
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
    """Return what a trainable's step has sent; nothing known, for a trial without a result."""
    found = result.get(OUTCOME)
    return found if isinstance(found, RunOutcome) else RunOutcome()


class TuneStopper(Stopper):  # type: ignore[misc, unused-ignore]
    """Stops trials once the study's deadline says so."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether this trial must stop now."""
        return self._deadline.over

    def stop_all(self) -> bool:
        """Return False: every trial ends by itself, at its next evaluation, and gives its workers
        back; one that does not come to it is ended by the pool (`runs.wait_watch`)."""
        return False


class TuneSearcher(Searcher):
    """Hands out the next trial; how trials end it does not need to hear here."""

    def __init__(self, trials: LiveTrials) -> None:
        super().__init__(metric="score", mode="min")
        self._trials = trials

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """Return the next configuration for Tune, or that there is none."""
        asked = self._trials.next()
        if asked is None:
            return str(Searcher.FINISHED)
        name, spec = asked
        return {"trial": name, "spec": spec}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Do nothing: the callback tells of every end."""

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the journal holds the study."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing: the journal holds the study."""


class TuneScheduler(FIFOScheduler):  # type: ignore[misc, unused-ignore]
    """First come, first served; stops what must not go on (`Search.report`)."""

    def __init__(self, trials: LiveTrials) -> None:
        super().__init__()
        self._trials = trials

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Return the first trial that waits.

        Tune asks at every event; its own scheduler looks among all the trials there ever were.
        """
        for status in (Trial.PENDING, Trial.PAUSED):
            waiting = [one for one in tune_controller.get_live_trials() if one.status == status]
            if waiting:
                return min(waiting, key=lambda one: int(one.config["trial"]))
        return None

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Judge an evaluation after which the trial would go on."""
        must_stop = self._trials.must_stop(trial.config["trial"], outcome_of(result))
        return str(TrialScheduler.STOP if must_stop else TrialScheduler.CONTINUE)


ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # `cluster.signals` listens instead
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a failed trial has no accuracy
    # Tune saves the state of all trials there were again and again; the records hold the study.
    "TUNE_GLOBAL_CHECKPOINT_S": "inf",
    "RAY_AIR_NEW_OUTPUT": "0",
}
"""Environment variables that Ray Tune reads."""


def run_trials(
    trials: LiveTrials,
    *,
    session: Session,
    deadline: Deadline,
    log: Path,
    keep_groups: bool,
    limit_s: float | None,
    concurrency: int,
    ahead: int = 0,
    follow: Callable[[tuple[Node, ...]], int] | None,
) -> None:
    """Run trials until there are no more, or `deadline` ends them.

    At most `concurrency` at once, and `ahead` more that wait for their turn; `follow` tells the
    first anew from the nodes that there are then. A trial that takes longer than `limit_s` seconds
    has failed. What Ray Tune prints goes to the file `log`.
    """
    os.environ.update(ENVIRONMENT)
    trainable = tune.with_resources(
        tune.with_parameters(TuneTrainable, pool=session.pool, keep=keep_groups, limit_s=limit_s),
        # A trial's own process merely waits; cores are admitted by the pool.
        tune.PlacementGroupFactory([waits_by_driver()]),
    )
    # Tune's own limit is fixed; this one is the same thing with a number that may change.
    searcher = ConcurrencyLimiter(TuneSearcher(trials), max_concurrent=concurrency + ahead)
    tuner = tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            scheduler=TuneScheduler(trials),
            # The searcher ends the search; Tune's own number only has to be above it.
            num_samples=-1,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(session.scratch),
            stop=TuneStopper(deadline),
            callbacks=[TuneCallback(trials, deadline, session, searcher, follow, ahead)],
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    with quiet(log):
        tuner.fit()
