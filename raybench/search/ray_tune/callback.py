"""Ray Tune tells of what happens to its trials."""

from typing import Any

import ray
from ray.tune import Callback
from ray.tune.experiment import Trial

from raybench.cluster.session import Session
from raybench.search.deadline import Deadline
from raybench.search.live_trials import LiveTrials
from raybench.search.ray_tune.trainable import outcome_of


class TuneCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Passes on every event in the driver, which alone writes the results folder."""

    def __init__(self, trials: LiveTrials, deadline: Deadline, session: Session) -> None:
        self._trials, self._deadline, self._pool = trials, deadline, session.pool

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Once the search is over, let nobody wait for workers any more."""
        if self._deadline.over:
            self._pool.stop_waiting.remote()

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
