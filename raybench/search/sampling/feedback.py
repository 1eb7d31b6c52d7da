"""How Optuna is told of a trial's end.

Ray's own `OptunaSearch` tells Optuna that a trial stopped early is complete, with its truncated
accuracy. Here a stopped trial is PRUNED with its score so far, and one that ran out of memory or
into NaN is told the worst score.
"""

import math
from dataclasses import dataclass

import optuna
from optuna.trial import TrialState

from raybench.core.objective import worst_score
from raybench.core.record import MACHINE_FAULTS
from raybench.core.study import StudySpec
from raybench.search.sampling.infeasible import Infeasible
from raybench.speed.placement import Placer


@dataclass(frozen=True)
class Ended:
    """A trial that ended; its user attribute `spec` is what was run."""

    trial: optuna.Trial
    failure: str | None
    stop: str | None
    """None if it was stopped from outside."""
    score: float | None
    """Of the split it ran on."""
    train_s: float
    reached: bool
    """Whether it reached the target."""


class Feedback:
    """Tells endings, each at the time its score is known.

    A time to the target counts on the configuration's fastest split, so those of the first
    trials wait until these, the probes, have told how fast the other splits are.
    """

    def __init__(
        self, study: StudySpec, journal: optuna.Study, failures: Infeasible, speed: Placer | None
    ) -> None:
        self._objective = study.objective
        self._journal, self._failures, self._speed = journal, failures, speed
        self._is_pareto = len(journal.directions) > 1
        self._untold: list[Ended] = []

    def add(self, ended: Ended, *, is_early: bool) -> None:
        """Take a trial's end, and tell what can be told; after `is_early` nothing waits."""
        self._untold.append(ended)
        self.tell_known(is_early=is_early)

    def tell_known(self, *, is_early: bool) -> None:
        """Tell the ends whose score is known by now."""
        waiting = []
        for ended in self._untold:
            is_known = self._speed is None or self._speed.is_known(ended.trial.user_attrs["spec"])
            if is_early and ended.reached and not is_known:
                waiting.append(ended)
            else:
                self._tell(ended)
        self._untold = waiting

    def scores(self, trials: list[optuna.trial.FrozenTrial]) -> dict[int, float]:
        """Return the score of every one of `trials` that ended, by number, told or not."""
        told = {trial.number: trial.values[0] for trial in trials if trial.values}
        stopped = {
            trial.number: trial.intermediate_values[max(trial.intermediate_values)]
            for trial in trials
            if trial.state == TrialState.PRUNED and trial.intermediate_values
        }
        waiting = {one.trial.number: one.score for one in self._untold if one.score is not None}
        return told | stopped | waiting

    def report(self, trial: optuna.Trial, score: float, train_s: float) -> None:
        """Give Optuna a running trial's score; milliseconds on its fastest split are the step."""
        if not self._is_pareto:  # Optuna keeps no course of several objectives
            factor = 1.0
            if self._speed is not None and "spec" in trial.user_attrs:
                factor = self._speed.to_fastest(trial.user_attrs["spec"])
            trial.report(score, step=int(1000 * train_s * factor))

    def tell_would_fail(self, trial: optuna.Trial) -> None:
        """End a proposal that is not run because it would fail: as if it had."""
        self._journal.tell(trial, self._values(worst_score(self._objective), None))

    def _tell(self, ended: Ended) -> None:
        trial, score = ended.trial, ended.score
        if ended.failure in MACHINE_FAULTS:
            # It says nothing about the configuration.
            self._journal.tell(trial, state=TrialState.FAIL)
        elif ended.failure is not None:
            trial.set_user_attr("failure", ended.failure)
            self._failures.add(ended.failure, trial.user_attrs["spec"])
            self._journal.tell(trial, self._values(worst_score(self._objective), ended))
        elif score is None:  # stopped before its first evaluation
            self._journal.tell(trial, state=TrialState.FAIL)
        elif ended.stop is None and not self._is_pareto:
            if not self._journal.get_trials(deepcopy=False)[trial.number].intermediate_values:
                self.report(trial, score, ended.train_s)
            self._journal.tell(trial, state=TrialState.PRUNED)
        else:
            self._journal.tell(trial, self._values(score, ended))

    def _values(self, score: float, ended: Ended | None) -> list[float]:
        """Return the score in seconds, and for a Pareto sampler that in worker-seconds too."""
        spec = ended.trial.user_attrs["spec"] if ended is not None else None
        seconds, cost = score, score
        if spec is not None:
            cost += math.log(spec["num_workers"])
        if spec is not None and ended is not None and ended.reached and self._speed is not None:
            seconds += math.log(self._speed.to_fastest(spec))
            cost += math.log(self._speed.to_cheapest(spec))
        return [seconds, cost] if self._is_pareto else [seconds]
