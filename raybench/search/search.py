"""The search of a study: propose trials, stop slow ones early, and record results for Optuna."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from raybench.results.store import machine
from raybench.search.curve_search import CurvePolicy, CurveSearch, Decision
from raybench.search.factorisation import Factors, with_placement
from raybench.search.placement import Placer
from raybench.search.sampling.default_rates import first_specs, num_outside, num_trials
from raybench.search.sampling.earlier import Earlier, EarlierRun
from raybench.search.sampling.feedback import (
    MODEL_ALL,
    Answer,
    FailurePredictor,
    Feedback,
    answer_for_score,
)
from raybench.search.sampling.optuna_study import (
    EARLIER_STUDY,
    FIRST,
    NOT_RUN,
    add_answer,
    distributions,
    open_study,
    real_trials,
    restore,
    values_of_params,
)
from raybench.search.sampling.proposer import Proposal, Proposer
from raybench.spec.run import RunSpec
from raybench.spec.space import Space
from raybench.spec.study import DEFAULT_TRIALS, StudySpec
from raybench.spec.text import counted
from raybench.stats.record import Evaluation, Failure, Role, RunOutcome, RunRecord

RECORDED = " (recorded)"
"""Suffix for the names of earlier sessions' runs in the placer. It distinguishes an interrupted
trial from its rerun, which has the same name without the suffix."""
SEED_STEP = 5000
"""Offset of the seeds of trials that repeat a configuration. The seed of such a trial is
`search.seed + SEED_STEP` + the number of trials so far."""


class Search:
    """Proposes the trials of a study and decides when they stop, for every `search.sampler`.

    The driver calls `suggest` whenever a trial could start, `on_result` after each evaluation that
    does not end the trial, and `on_end` once per trial. All calls come from one thread, but calls
    for different trials may interleave. In a study, Ray Tune calls the search through adapters
    (`ray_tune.py`); replays in `benchmarks/search/` use a simulated clock.

    Trials start in this order:

    - interrupted trials,
    - reruns of trials that ran out of memory, on a placement (framework, workers, batch per
      worker, ...) that needs less,
    - the user's own configurations (`search.first`),
    - proposals of the curve model or of Optuna.

    Args:
        study: The study; its target must be set.
        space: Search space of the study.
        folder: Folder of Optuna's journal file; the caller holds the lock on this folder.
        factors: The factorized space (see `factorisation.py`); None if all keys are sampled.
        runs: Records of earlier sessions (invocations of the command) by run name.
        curves: Evaluations of earlier sessions by run name.
        unfinished: Run specs of trials without a record, whose driver was killed, by name.
        has_room: Function that returns whether the workers of a run fit on the cluster.
        curve_policy: Constants that control proposals and early stopping; benchmarks vary them.
        slots: Number of workers that can run at the same time; None if unknown.
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
        unfinished: Mapping[str, RunSpec] | None = None,
        has_room: Callable[[RunSpec], bool] = lambda spec: True,
        curve_policy: CurvePolicy | None = None,
        slots: int | None = None,
    ) -> None:
        is_equal = factors is not None and "framework" not in factors.sampled
        self._infeasible = infeasible = FailurePredictor(
            equal_frameworks=is_equal,
            has_room=has_room,
        )
        self._too_large: list[RunSpec] = []
        """Run specs that ran out of memory; another placement may need less."""
        self.placer: Placer | None = None
        """Predicts step times and chooses placements; None if the space is not factorized."""
        if factors is not None:
            self.placer = Placer(
                factors,
                is_feasible=infeasible.is_feasible,
                wait_s=self._wait_s,
            )
        self._slots = slots
        self._study = study
        self._sampled = space if factors is None else factors.sampled
        self.num_trials = num_trials(study, space, factors, outside=num_outside(study, space))
        """Number of trials of the study."""
        self._most_trials = study.search.trials or DEFAULT_TRIALS
        """Largest number of trials. It may exceed `num_trials`, because a configuration of
        `search.first` may repeat a reference run that already counts as a trial."""
        if study.search.sampler == "grid":
            self._most_trials = study.search.trials or self.num_trials + len(study.search.first)
        self.curves = CurveSearch(
            study,
            self._sampled,
            self.placer,
            curve_policy or CurvePolicy(),
            num_earlier=len(runs or {}),
        )
        """Stops trials early by the curve model; with sampler `model`, also proposes them."""
        self._open: dict[str, Proposal] = {}
        self._journal = open_study(study, folder, num_earlier=len(runs or {}))
        self._feedback = Feedback(
            study, self._journal, infeasible, self.placer, self.curves.expected_log_s
        )
        self._learn_recorded(runs or {}, curves or {})
        self._curves = curves or {}
        """Evaluations of earlier sessions by run name."""
        firsts = first_specs(study, space)
        sampled, feedback = self._sampled, self._feedback
        restore(self._journal, runs or {}, unfinished or {}, study, sampled, feedback, firsts)
        self._proposer = Proposer(
            study, sampled, self._journal, infeasible, feedback, self.placer, firsts
        )

    @property
    def num_finished(self) -> int:
        """Number of finished trials."""
        return sum(trial.state.is_finished() for trial in real_trials(self._journal))

    def left_out(self) -> str | None:
        """Return a sentence about the proposals that were skipped as infeasible; None if none
        were."""
        number = self._proposer.num_skipped
        skipped = counted(number, "proposal")
        return f"Skipped {skipped} because an equivalent run had failed." if number else None

    def suggest(self) -> tuple[str, RunSpec] | None:
        """Return the name and run spec of the next trial; None if there is nothing to try now.

        After None, a later call may return a trial once a running trial has ended.
        """
        if self._proposer.num_ran >= self._most_trials:
            return None
        proposal = self._rerun_with_less_memory() or self._curve_proposal() or self._proposer.next()
        if proposal is None:
            return None
        self._open[proposal.name] = proposal
        self.curves.begin(proposal.name, proposal.spec)
        # An interrupted trial keeps its name, under which its earlier evaluations are stored.
        self.curves.resume(proposal.name, self._curves.get(proposal.name, []))
        return proposal.name, proposal.spec

    def _wait_s(self, num_workers: int) -> float:
        """Return the predicted seconds until `num_workers` workers are free; 0 if unknown."""
        if self._slots is None:
            return 0.0
        free = self._slots - sum(proposal.spec.num_workers for proposal in self._open.values())
        if free >= num_workers:
            return 0.0
        ends = [
            (self.curves.left_s(proposal.name, proposal.spec), proposal.spec)
            for proposal in self._open.values()
        ]
        for left_s, spec in sorted(ends, key=lambda end: end[0]):
            free += spec.num_workers
            if free >= num_workers:
                return left_s
        return 0.0

    def _curve_proposal(self) -> Proposal | None:
        """Return the next proposal of the curve model.

        The result is None with a sampler other than `model`, while other trials come first (see
        `Search`), and if nothing is left to propose.
        """
        if self._study.search.sampler != "model" or self._proposer.has_queued:
            return None
        number = self._proposer.num_ran
        seed = (self._study.search.seed + SEED_STEP + number) % 2**32
        for values in self.curves.propose(number, self._proposer.is_open):
            if (proposal := self._proposer.take(values, seed=seed)) is not None:
                return proposal
        return None

    def _rerun_with_less_memory(self) -> Proposal | None:
        """Return a rerun of a configuration that ran out of memory, on the feasible placement with
        the fewest workers; None if there is nothing to rerun."""
        for spec in list(self._too_large):
            options = self.placer.others(spec) if self.placer is not None else []
            # The last option has the fewest workers.
            proposal = self._proposer.rerun(with_placement(spec, options[-1])) if options else None
            if proposal is not None or not options:
                self._too_large.remove(spec)
            if proposal is not None:
                return proposal
        return None

    def on_result(self, name: str, outcome: RunOutcome) -> Decision:
        """Process the newest evaluation of a running trial, and decide whether the trial
        continues."""
        trial, _, spec = self._open[name]
        evaluation = outcome.evaluation
        assert evaluation is not None
        disturbed_s = evaluation.ledger.get("disturbed", 0.0)
        self._observe(name, spec, evaluation.samples, evaluation.train_s - disturbed_s)
        self.curves.observe(name, evaluation)
        if FIRST in trial.user_attrs or not self._study.search.early_stopping:
            return Decision.CONTINUE  # the user's own configurations are never stopped early
        return self.curves.judge(name, evaluation)

    def on_end(self, record: RunRecord) -> None:
        """Process the record of a trial that has ended.

        If a trial was interrupted, or the time budget ended it before its first evaluation, the
        next session suggests it again.
        """
        trial, _, spec = self._open.pop(record.trial)
        if record.runs_again:
            return
        if record.failure == Failure.OOM:
            self._too_large.append(spec)
        self._observe(record.trial, spec, record.samples, _undisturbed_s(record))
        self._end(record.trial, record)
        self.curves.end(record)
        self._feedback.add(trial, record)

    def learn_from(self, earlier: Earlier) -> str:
        """Add the runs of `--seed-from` to Optuna's study, and their learning curves to the curve
        model. The best of their configurations are among the first proposals of the model.

        Returns:
            A sentence about what was added.
        """
        optuna_space = distributions(self._sampled)
        num_learned, starts = 0, list[tuple[tuple[bool, float], dict[str, Any]]]()
        for run in earlier.runs:
            params = run.params(self._study, self._sampled)
            answer = self._answer_of(run)
            if answer is None or not params:
                continue
            if self._study.search.sampler in MODEL_ALL and not optuna_space.keys() <= params.keys():
                continue
            if not run.is_of_other_clock:
                add_answer(self._journal, answer, params, optuna_space, {NOT_RUN: EARLIER_STUDY})
            num_learned += 1
            values = values_of_params(params, self._sampled, self._study.fixed)
            if values is None:
                continue
            if answer.values is not None:
                starts.append(((run.time_to_target_s is None, answer.values[0]), values))
            if run.record is not None and run.curve:
                self.curves.learn_earlier(values, run.record, run.curve)
        self.curves.refresh()
        starts.sort(key=lambda start: start[0])
        self.curves.start_with([values for _, values in starts])
        return _sentence(earlier, num_learned)

    def _answer_of(self, run: EarlierRun) -> Answer | None:
        """Return an earlier run's result in the form reported to Optuna; None if its score is
        unknown."""
        if run.record is not None:
            return self._feedback.answer(run.record, fastest_s=run.time_to_target_s)
        score = run.score(self._study.objective)
        return None if score is None else answer_for_score(score)

    def _observe(self, name: str, spec: RunSpec, samples: int, train_s: float) -> None:
        if self.placer is not None:
            self.placer.observe(name, spec, samples=samples, train_s=train_s)

    def _end(self, name: str, record: RunRecord) -> None:
        if self.placer is not None:
            compile_s = record.ledger["compile"]
            self.placer.ended(name, record.spec, samples=record.samples, compile_s=compile_s)

    def _learn_recorded(
        self, runs: Mapping[str, RunRecord], curves: Mapping[str, list[Evaluation]]
    ) -> None:
        """Add the runs of earlier sessions to the placer, the failure predictor and the curve
        model."""
        for name, record in runs.items():
            # The suffix is needed because an interrupted run restarts under its old name.
            self._observe(f"{name}{RECORDED}", record.spec, record.samples, _undisturbed_s(record))
            self._end(f"{name}{RECORDED}", record)
            if record.role != Role.TRIAL:
                continue  # placement checks are not trials of the search
            if record.failure is not None:
                self._infeasible.add(record.failure, record.spec)
            if record.failure == Failure.OOM:
                self._too_large.append(record.spec)
            if not record.runs_again:
                self.curves.learn(record, curves.get(name, []))
        self.curves.refresh()


def _sentence(earlier: Earlier, number: int) -> str:
    """Return a sentence about the earlier runs that the search has learned from."""
    text = f"learned {number} of the {counted(len(earlier.runs), 'result')} of {earlier.place}"
    if number < len(earlier.runs):
        text += "; the others are outside the space, or lack the time to the target"
    if earlier.note:
        text += f"; {earlier.note}"
    machine_then = None if earlier.study is None else earlier.study.study.get("machine", {})
    if machine_then is not None and machine_then.get("processor") != machine()["processor"]:
        text += "; they were timed on another machine, so their seconds are only a rough guide"
    return f"{text}."


def _undisturbed_s(record: RunRecord) -> float:
    """Return the training seconds of a run, without those lost to other processes."""
    return record.ledger["train"] - record.disturbed_s
