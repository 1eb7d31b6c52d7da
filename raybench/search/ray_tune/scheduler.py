"""Ray Tune asks after every evaluation whether a trial goes on."""

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from raybench.search.live_trials import LiveTrials
from raybench.search.ray_tune.trainable import outcome_of


class TuneScheduler(FIFOScheduler):  # type: ignore[misc, unused-ignore]
    """First come, first served; stops what must not go on (`search.asha`)."""

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
