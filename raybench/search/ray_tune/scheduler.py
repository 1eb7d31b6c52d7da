"""The scheduler of real trials: capping, then halving at rungs of seconds, asked by Ray Tune."""

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from raybench.core.study import StudySpec
from raybench.results.load import StudyResults
from raybench.search.asha import Cap, Rungs, next_evaluation_s
from raybench.search.ray_tune.opaque import unwrap
from raybench.speed.placement import Placer

RUNG_FACTOR = 4.0
FIRST_RUNG = 1 / 32
"""Share of max_train_seconds after which a hopeless trial may be stopped."""


class TimeRungs(FIFOScheduler):  # type: ignore[misc, unused-ignore]
    """Stops trials that others beat at equal seconds, or that cannot become the best.

    Where the space is taken apart (`speed`), a trial's seconds are converted to its fastest
    split before they are compared, its worker-seconds to its cheapest. Otherwise rungs are
    kept apart by worker count: a narrow trial is slower than a wide one at equal quality, and
    may still be the cheapest.
    """

    def __init__(self, study: StudySpec, speed: Placer | None = None) -> None:
        super().__init__()
        self._speed = speed
        objective, beta = study.objective, study.search.cap_factor
        self._limit_s = objective.max_train_seconds
        self._target = objective.target if objective.kind == "time_to_accuracy" else None
        has_cap = beta is not None and self._target is not None
        self._cap = Cap(beta, self._costs) if beta is not None and has_cap else None
        # A grid is exact: only what cannot win any more is stopped.
        self._has_rungs = study.search.sampler != "grid"
        self._rungs: dict[int, Rungs] = {}
        self._reasons: dict[str, str] = {}

    def reason(self, trial: str) -> str | None:
        """Why a trial was stopped here: `cap` or `scheduler`; None if it was not."""
        return self._reasons.get(trial)

    def learn(self, earlier: StudyResults) -> None:
        """Take the trials of an earlier session of the same study."""
        trials = earlier.trials[earlier.trials["phase"] == "search"].set_index("trial")
        for name, curve in earlier.curves.groupby("trial", sort=False):
            if name in trials.index:
                spec = earlier.specs[str(name)]
                best = curve["accuracy"].cummax()
                for seconds, accuracy in zip(curve["train_s"], best, strict=True):
                    self._passes_rungs(str(name), spec, float(seconds), float(accuracy))
        reached = trials["time_to_target_s"].dropna()
        for name, seconds in zip(reached.index, reached, strict=True):
            self._reached(float(seconds), earlier.specs[str(name)])

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Judge an evaluation after which the trial would go on."""
        evaluation = unwrap(result).get("evaluation")
        if evaluation is None:
            return str(TrialScheduler.CONTINUE)
        name, spec, seconds = trial.config["trial"], trial.config["spec"], evaluation["train_s"]
        self._observe(name, spec, evaluation)
        # In a row of evaluations at the target, the first one counts: it may still be soonest.
        is_there = self._target is not None and evaluation["accuracy"] >= self._target
        soonest = next_evaluation_s(evaluation, spec["epochs"])
        if self._cap is not None and not is_there and not self._cap.allows(spec, soonest):
            self._reasons[name] = "cap"
        elif not self._passes_rungs(name, spec, seconds, evaluation["best_accuracy"]):
            self._reasons[name] = "scheduler"
        else:
            return str(TrialScheduler.CONTINUE)
        return str(TrialScheduler.STOP)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Learn from a trial that ended by itself."""
        evaluation = unwrap(result).get("evaluation") or {}
        if not evaluation:
            return
        name, spec = trial.config["trial"], trial.config["spec"]
        self._observe(name, spec, evaluation)
        self._passes_rungs(name, spec, evaluation["train_s"], evaluation["best_accuracy"])
        if evaluation["time_to_target_s"] is not None:
            self._reached(evaluation["time_to_target_s"], spec)

    def _observe(self, name: str, spec: dict[str, Any], evaluation: dict[str, Any]) -> None:
        if self._speed is not None:
            samples, train_s = evaluation["samples"], evaluation["train_s"]
            self._speed.observe(name, spec, samples=samples, train_s=train_s)

    def _costs(self, spec: dict[str, Any], seconds: float) -> tuple[float, float]:
        """Return the seconds and worker-seconds that a run's seconds stand for."""
        worker_seconds = seconds * spec["num_workers"]
        if self._speed is None:
            return seconds, worker_seconds
        to_fastest, to_cheapest = self._speed.to_fastest(spec), self._speed.to_cheapest(spec)
        return seconds * to_fastest, worker_seconds * to_cheapest

    def _reached(self, seconds: float, spec: dict[str, Any]) -> None:
        if self._cap is not None:
            self._cap.reached(spec, seconds)

    def _passes_rungs(
        self, name: str, spec: dict[str, Any], seconds: float, accuracy: float
    ) -> bool:
        if not self._has_rungs:
            return True
        ladder = spec["num_workers"] if self._speed is None else 0
        if ladder not in self._rungs:
            first = self._limit_s * FIRST_RUNG
            self._rungs[ladder] = Rungs(first_s=first, last_s=self._limit_s, factor=RUNG_FACTOR)
        return self._rungs[ladder].allows(name, self._costs(spec, seconds)[0], accuracy)
