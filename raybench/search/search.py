"""Search of a study: proposals, early stopping, and what Optuna's journal is told."""

from collections.abc import Callable, Mapping
from pathlib import Path

from raybench.search.curve_search import CurvePolicy, CurveSearch
from raybench.search.factorisation import Factors, placed
from raybench.search.placement import Placer
from raybench.search.sampling.default_rates import num_trials
from raybench.search.sampling.feedback import Feedback, Infeasible
from raybench.search.sampling.first import first_specs, num_outside
from raybench.search.sampling.optuna_space import STARTUP_TRIALS
from raybench.search.sampling.optuna_study import (
    FIRST,
    NOT_RUN,
    WOULD_FAIL,
    open_study,
    real_trials,
    restore,
)
from raybench.search.sampling.proposer import Proposal, Proposer
from raybench.search.sampling.transfer import Earlier, best_earlier, tell_earlier
from raybench.search.scheduler import Decision, Scheduler, Suggestion
from raybench.spec.run import RunSpec, label_keys
from raybench.spec.space import Space
from raybench.spec.study import DEFAULT_TRIALS, StudySpec
from raybench.stats.record import Evaluation, RunOutcome, RunRecord

RECORDED = " (recorded)"
"""Tells the totals of an earlier session's run from those of its rerun."""
SEED_STEP = 5000
"""Distance between the search's seed and those of configurations that run again: the seeds of other
phases lie before."""
MOST_STARTS = 4
"""Configurations known from elsewhere that sampler `model` starts with."""


class Search(Scheduler):
    """Scheduler of a study's trials, for every `search.sampler`.

    Configurations of the user's own and interrupted trials come first, then those that ran out of
    memory on a placement where they may not, then proposals of the curve model or of Optuna.

    Args:
        study: The study; its target must be set.
        space: What is searched.
        folder: Folder of Optuna's journal; the caller holds its lock.
        factors: The space taken apart, where placements are told apart from configurations.
        runs: Runs that earlier sessions have recorded, by name.
        curves: Their evaluations, by name.
        has_room: Whether the cluster holds a run's workers.
        is_in_time: Whether this session has time to start a run's workers.
        curve_policy: Constants of the model of the curves; benchmarks vary them.
        slots: Workers that run at the same time; None where it is not known.
    """

    def __init__(
        self,
        study: StudySpec,
        space: Space,
        folder: Path,
        *,
        factors: Factors | None = None,
        runs: Mapping[str, RunRecord] | None = None,
        curves: Mapping[str, list[Evaluation]] | None = None,
        has_room: Callable[[RunSpec], bool] = lambda spec: True,
        is_in_time: Callable[[RunSpec], bool] = lambda spec: True,
        curve_policy: CurvePolicy | None = None,
        slots: int | None = None,
    ) -> None:
        is_equal = factors is not None and "framework" not in factors.sampled
        self._infeasible = infeasible = Infeasible(
            equal_frameworks=is_equal,
            most_passes=None if factors is None else factors.most_passes,
            has_room=has_room,
            is_in_time=is_in_time,
        )
        self._too_large: list[RunSpec] = []
        """Configurations that ran out of memory, and may train on another placement."""
        self.placer: Placer | None = None
        """Model of how fast configurations run; None where the space is not taken apart."""
        if factors is not None:
            self.placer = Placer(
                factors,
                is_feasible=infeasible.is_feasible,
                num_failed=lambda: infeasible.num_failed,
                wait_s=self._wait_s,
            )
        self._slots = slots
        self._study = study
        self._sampled = space if factors is None else factors.sampled
        self.num_trials = num_trials(study, space, factors, outside=num_outside(study, space))
        """Trials of the whole study."""
        self._most_trials = study.search.trials or DEFAULT_TRIALS
        """Number of trials that may run: a user's own configuration may run what a reference run
        has run."""
        if study.search.sampler == "grid":
            self._most_trials = study.search.trials or self.num_trials + len(study.search.first)
        self.curves = CurveSearch(
            study,
            self._sampled,
            self.placer,
            curve_policy or CurvePolicy(),
            num_earlier=len(runs or {}),
        )
        """Model of all learning curves: stops trials, and proposes them with sampler `model`."""
        self._open: dict[str, Proposal] = {}
        self._journal = open_study(study, folder)
        self._feedback = Feedback(
            study, self._journal, infeasible, self.placer, self.curves.expected_log_s
        )
        self._learn_recorded(runs or {}, curves or {})
        for record in (runs or {}).values():
            if record.role == "trial" and record.failure is not None:
                infeasible.add(record.failure, record.spec)
        firsts = first_specs(study, space)
        restore(self._journal, runs or {}, study, self._sampled, self._feedback, firsts)
        self._proposer = Proposer(
            study,
            self._sampled,
            self._journal,
            infeasible,
            self._feedback,
            self.placer,
            firsts,
        )

    @property
    def num_finished(self) -> int:
        """Trials that need not run again."""
        return sum(trial.state.is_finished() for trial in real_trials(self._journal))

    def left_out(self) -> str | None:
        """Say which proposals were not tried because a run alike had failed; None without any."""
        rejected = self._journal.get_trials(deepcopy=False)
        number = sum(one.user_attrs.get(NOT_RUN) == WOULD_FAIL for one in rejected)
        return self._infeasible.sentence(label_keys(self._study.space), number)

    def suggest(self) -> Suggestion | None:
        """Return the next trial; see `Scheduler.suggest`."""
        if self._proposer.tried.num_ran >= self._most_trials:
            return None
        self._feedback.report_known(is_early=self._is_early)
        proposal = self._in_less_memory() or self._by_curves() or self._proposer.next()
        if proposal is None:
            return None
        self._open[proposal.name] = proposal
        self.curves.begin(proposal.name, proposal.spec)
        return Suggestion(proposal.name, proposal.spec)

    def _wait_s(self, num_workers: int) -> float:
        """Return the seconds until so many workers are free, by the expected ends of the trials."""
        if self._slots is None:
            return 0.0
        free = self._slots - sum(one.spec.num_workers for one in self._open.values())
        if free >= num_workers:
            return 0.0
        ends = [(self.curves.left_s(one.name, one.spec), one.spec) for one in self._open.values()]
        for left_s, spec in sorted(ends, key=lambda end: end[0]):
            free += spec.num_workers
            if free >= num_workers:
                return left_s
        return 0.0

    def _by_curves(self) -> Proposal | None:
        """Return what the model of the curves proposes; None where there is none, where others come
        first, and where nothing is left that it may propose."""
        if self._study.search.sampler != "model" or self._proposer.has_own_next:
            return None
        number = self._proposer.tried.num_ran
        seed = (self._study.search.seed + SEED_STEP + number) % 2**32
        for values in self.curves.propose(number, self._proposer.is_open):
            if (proposal := self._proposer.take(values, seed=seed)) is not None:
                return proposal
        return None

    def _in_less_memory(self) -> Proposal | None:
        """Return what ran out of memory, on a placement where it may not; None without any."""
        for spec in list(self._too_large):
            options = self.placer.others(spec) if self.placer is not None else []
            there = [placed(spec, one) for one in options[-1:]]  # on the fewest workers
            proposal = self._proposer.again(there[0]) if there else None
            if proposal is not None or not there:
                self._too_large.remove(spec)
            if proposal is not None:
                return proposal
        return None

    def on_result(self, name: str, outcome: RunOutcome) -> Decision:
        """Take an evaluation of a running trial; see `Scheduler.on_result`."""
        trial, _, spec = self._open[name]
        evaluation = outcome.evaluation
        assert evaluation is not None
        taken_s = evaluation.ledger.get("disturbed", 0.0)
        self._observe(name, spec, evaluation.samples, evaluation.train_s - taken_s)
        self.curves.observe(name, evaluation)
        if FIRST in trial.user_attrs or not self._study.search.early_stopping:
            return Decision.CONTINUE  # what others are compared with runs to its end
        return self.curves.judge(name, evaluation)

    def on_complete(self, record: RunRecord) -> None:
        """Take the record of a trial that ended; see `Scheduler.on_complete`."""
        self._learn(record)

    def on_error(self, record: RunRecord) -> None:
        """Take the record of a trial that failed; see `Scheduler.on_error`."""
        spec = self._open[record.trial].spec
        self._learn(record)
        if record.failure == "oom" and record.stop != "interrupted":
            self._too_large.append(spec)

    def _learn(self, record: RunRecord) -> None:
        trial, _, spec = self._open.pop(record.trial)
        if record.stop == "interrupted":
            return
        self._observe(record.trial, spec, record.samples, _own_s(record))
        self._end(record.trial, record)
        self.curves.end(record)
        self._feedback.add(trial, record, is_early=self._is_early)

    def tell_all(self) -> None:
        """Tell Optuna the trials that still waited for the speed of their other placements."""
        self._feedback.report_known(is_early=False)

    def learn_from(self, earlier: Earlier) -> str | None:
        """Learn an earlier study's trials, once, and say so; None in a session that goes on."""
        said = tell_earlier(self._journal, earlier, self._study, self._sampled, self._feedback)
        known = best_earlier(self._journal, self._sampled, self._study)
        self.curves.start_with(known[:MOST_STARTS])
        return said

    @property
    def _is_early(self) -> bool:
        return self._proposer.tried.num_ran <= STARTUP_TRIALS

    def _observe(self, name: str, spec: RunSpec, samples: int, train_s: float) -> None:
        if self.placer is not None:
            self.placer.observe(name, spec, samples=samples, train_s=train_s)

    def _end(self, name: str, record: RunRecord) -> None:
        if self.placer is not None:
            self._infeasible.batch_statistics |= bool(record.batch_statistics)
            compile_s = record.ledger["compile"]
            self.placer.ended(name, record.spec, samples=record.samples, compile_s=compile_s)

    def _learn_recorded(
        self, runs: Mapping[str, RunRecord], curves: Mapping[str, list[Evaluation]]
    ) -> None:
        for name, record in runs.items():
            # Not under its own name: what was interrupted runs again from the start, under it.
            self._observe(f"{name}{RECORDED}", record.spec, record.samples, _own_s(record))
            self._end(f"{name}{RECORDED}", record)
        for name, record in runs.items():
            # The rerun of an interrupted one begins anew. A placement check is a trial's
            # configuration again: an uninterrupted search does not know of it either.
            if record.failure == "oom" and record.role == "trial":
                self._too_large.append(record.spec)
            if record.role == "trial" and record.stop != "interrupted":
                self.curves.learn(record, curves.get(name, []))


def _own_s(record: RunRecord) -> float:
    """Return the training seconds of a run without those that others took."""
    return record.ledger["train"] - record.disturbed_s
