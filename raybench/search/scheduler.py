"""The scheduler of real trials: capping, then halving at rungs of seconds, asked by Ray Tune."""

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from raybench.core.study import StudySpec
from raybench.search.rungs import Cap, Rungs

RUNG_FACTOR = 4.0
FIRST_RUNG = 1 / 20
"""Share of max_train_seconds after which a hopeless trial may be stopped."""


class TimeRungs(FIFOScheduler):  # type: ignore[misc, unused-ignore]
    """Stops trials that others beat at equal seconds, or that cannot become the fastest."""

    def __init__(self, study: StudySpec) -> None:
        super().__init__()
        limit, target = study.objective.max_train_seconds, study.objective.target
        self._target = target if study.objective.kind == "time_to_accuracy" else None
        self._rungs = Rungs(first_s=limit * FIRST_RUNG, last_s=limit, factor=RUNG_FACTOR)
        beta = study.search.cap_factor
        self._cap = Cap(beta) if beta is not None and self._target is not None else None
        self._reasons: dict[str, str] = {}

    def reason(self, trial: str) -> str | None:
        """Why a trial was stopped here: `cap` or `scheduler`; None if it was not."""
        return self._reasons.get(trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Judge an evaluation after which the trial would go on."""
        evaluation = result.get("evaluation")
        if evaluation is None:
            return str(TrialScheduler.CONTINUE)
        name, seconds = trial.config["trial"], evaluation["train_s"]
        # On a row of evaluations at the target, its first one counts: it may still be soonest.
        is_there = self._target is not None and evaluation["accuracy"] >= self._target
        if self._cap is not None and not is_there and not self._cap.allows(seconds):
            self._reasons[name] = "cap"
        elif not self._rungs.allows(name, seconds, evaluation["best_accuracy"]):
            self._reasons[name] = "scheduler"
        else:
            return str(TrialScheduler.CONTINUE)
        return str(TrialScheduler.STOP)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Learn the time of a trial that reached its target."""
        evaluation = result.get("evaluation") or {}
        seconds = evaluation.get("time_to_target_s")
        if self._cap is not None and seconds is not None:
            self._cap.reached(seconds)
        if evaluation:
            self._rungs.allows(
                trial.config["trial"], evaluation["train_s"], evaluation["best_accuracy"]
            )
