"""How Optuna is told of a trial's end.

Ray's own `OptunaSearch` tells Optuna that a trial stopped early is complete, with its truncated
accuracy. Here a stopped trial is PRUNED with its score so far, and one that ran out of memory or
into NaN is told the worst score.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import optuna
from optuna.trial import FrozenTrial, TrialState

from raybench.core.objective import worst_score
from raybench.core.record import MACHINE_FAULTS, RunRecord
from raybench.core.spec import RunSpec, describe, label_keys
from raybench.core.study import StudySpec
from raybench.search.sampling.infeasible import Infeasible
from raybench.speed.placement import Placer


class Answer(NamedTuple):
    """What Optuna is told."""

    state: TrialState
    values: list[float] | None = None
    course: dict[int, float] | None = None
    """Score by milliseconds, of a trial that was stopped."""


@dataclass(frozen=True)
class _Ended:
    trial: optuna.Trial
    record: RunRecord


class Feedback:
    """Tells ends of trials, each at the time its score is known.

    A time to the target counts on the configuration's fastest placement, so those of the first
    trials wait until these, the probes, have told how fast the others are.
    """

    def __init__(
        self,
        study: StudySpec,
        journal: optuna.Study,
        infeasible: Infeasible,
        placer: Placer | None,
    ) -> None:
        self._objective, self._keys = study.objective, label_keys(study.space)
        self._journal, self._infeasible, self._placer = journal, infeasible, placer
        self._is_pareto = len(journal.directions) > 1
        self._untold: list[_Ended] = []
        self._told: list[tuple[int, float]] = []
        self._courses: dict[int, dict[int, float]] = {}

    def add(self, trial: optuna.Trial, record: RunRecord, *, is_early: bool) -> None:
        """Take a trial's end, and tell what can be told; after `is_early` nothing waits."""
        self._untold.append(_Ended(trial, record))
        self.tell_known(is_early=is_early)

    def tell_known(self, *, is_early: bool) -> None:
        """Tell the ends whose score is known by now."""
        waiting = []
        for ended in self._untold:
            record = ended.record
            is_known = self._placer is None or self._placer.is_known(record.spec)
            if is_early and record.time_to_target_s is not None and not is_known:
                waiting.append(ended)
            else:
                self._tell(ended.trial, record)
        self._untold = waiting

    def scores(self, trials: list[FrozenTrial]) -> dict[int, float]:
        """Return the score of every one of `trials` that ended, by number, told or not."""
        told = {one.number: score for one in trials if (score := told_score(one)) is not None}
        return told | self.waiting()

    def waiting(self) -> dict[int, float]:
        """Return the scores of the trials that ended and are not told yet, by number."""
        return {one.trial.number: one.record.score for one in self._untold}

    def newly_told(self) -> list[tuple[int, float]]:
        """Return number and score of every trial that was told since the last call."""
        told, self._told = self._told, []
        return told

    def report(self, trial: optuna.Trial, spec: RunSpec, *, score: float, train_s: float) -> None:
        """Note a running trial's score, at the time on its fastest placement.

        Optuna hears its course at its end: what it was told it keeps, of a run that counts no more
        too (`forget`), and nothing asks for it sooner.
        """
        if not self._is_pareto:  # Optuna keeps no course of several objectives
            course = self._courses.setdefault(trial.number, {})
            course[self._milliseconds(spec, train_s)] = score

    def forget(self, trial: optuna.Trial) -> None:
        """Drop what was noted of a trial that begins again."""
        self._courses.pop(trial.number, None)

    def tell_would_fail(self, trial: optuna.Trial) -> None:
        """End a proposal that is not run because it would fail: as if it had."""
        worst = worst_score(self._objective)
        self._journal.tell(trial, [worst, worst] if self._is_pareto else [worst])

    def answer(self, record: RunRecord, *, fastest_s: float | None = None) -> Answer:
        """Return what Optuna is told of a run.

        `fastest_s`: its seconds to the target on its fastest placement, where they are known;
        else the placer is asked.
        """
        if record.failure in MACHINE_FAULTS or (record.failure is None and not record.samples):
            return Answer(TrialState.FAIL)  # it says nothing about the configuration
        if record.state == "stopped" and not self._is_pareto:
            train_ms = self._milliseconds(record.spec, record.ledger["train"])
            return Answer(TrialState.PRUNED, [record.score], {train_ms: record.score})
        seconds, cost = record.score, record.score + math.log(record.spec.num_workers)
        if fastest_s is not None and record.time_to_target_s is not None:
            seconds += math.log(fastest_s / record.time_to_target_s)
        elif record.time_to_target_s is not None and self._placer is not None:
            seconds += math.log(self._placer.to_fastest(record.spec))
            cost += math.log(self._placer.to_cheapest(record.spec))
        return Answer(TrialState.COMPLETE, [seconds, cost] if self._is_pareto else [seconds])

    def _tell(self, trial: optuna.Trial, record: RunRecord) -> None:
        answer = self.answer(record)
        for name, value in shown_attributes(record, self._keys).items():
            trial.set_user_attr(name, value)
        if record.failure is not None:
            self._infeasible.add(record.failure, record.spec)
        for step, score in (self._courses.pop(trial.number, None) or answer.course or {}).items():
            trial.report(score, step=step)
        if answer.state == TrialState.PRUNED:
            self._journal.tell(trial, state=TrialState.PRUNED)
        else:
            self._journal.tell(trial, answer.values, state=answer.state)
        told = told_score(self._journal.get_trials(deepcopy=False)[trial.number])
        if told is not None:
            self._told.append((trial.number, told))

    def _milliseconds(self, spec: RunSpec, train_s: float) -> int:
        factor = 1.0 if self._placer is None else self._placer.to_fastest(spec)
        return int(1000 * train_s * factor)


def shown_attributes(record: RunRecord, keys: Iterable[str]) -> dict[str, Any]:
    """Return what Optuna's own tools show of a trial that has ended, as its user attributes.

    Its parameters are what the sampler sees (a batch's exponent, the rate's share of its range),
    and its value a score: here are the configuration in one line (`keys`: `label_keys`), the rate,
    seconds, the best value. No more: every attribute is a line of the journal.
    """
    metric = record.spec.objective.judged_by
    found = {
        "configuration": describe(record.spec, keys),
        "learning_rate": record.spec.learning_rate,
        "time_to_target_s": record.time_to_target_s,
        metric.best_column: record.best_value,
        "train_s": record.ledger["train"],
        "failure": record.failure,
    }
    return {name: value for name, value in found.items() if value is not None}


def told_score(trial: FrozenTrial) -> float | None:
    """Return the score that Optuna was told of a trial; None where it was told none."""
    if trial.state == TrialState.PRUNED and trial.intermediate_values:
        return float(trial.intermediate_values[max(trial.intermediate_values)])
    return float(trial.values[0]) if trial.values else None
