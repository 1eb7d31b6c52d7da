"""Report the results of trials to Optuna, and remember which configurations are infeasible.

A trial that reached the target is reported as COMPLETE with its log seconds. A trial that was
stopped early is reported as PRUNED with the log seconds that the curve model predicts, at a step
equal to its number of samples. A trial that missed the target or failed is PRUNED at step 0. TPE
ranks COMPLETE trials above PRUNED ones, and PRUNED ones by their step, so a trial that missed the
target never counts as good. For samplers that model only COMPLETE trials (`MODEL_ALL`), trials with
predicted values are reported as COMPLETE too.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import optuna
from optuna.trial import TrialState

from raybench.search.placement import Placer
from raybench.search.sampling.default_rates import batch_power
from raybench.spec.objective import TIME, worst_score
from raybench.spec.run import RESOURCES, RunSpec, describe, label_keys
from raybench.spec.schedule import scaled_rate
from raybench.spec.study import StudySpec
from raybench.stats.record import MACHINE_FAULTS, Failure, RunRecord, State

Key = tuple[str, ...]
RATE_AND_BATCH = ("learning_rate", "batch_size_per_worker", "accumulate", "num_workers")
CURVE_NEUTRAL: Key = (
    *("objective", "seed", "bucket_mb", "compile", "prefetch", "strategy"),
    *("eval_every_samples", "checkpoint_every_s", "record_steps", *RESOURCES),
)
"""Keys that do not change the learning curve of a run (the seed changes it only by chance)."""


class FailurePredictor:
    """Predicts from the failures of earlier trials which configurations will fail.

    - After a run that ran out of memory, the same and larger batch sizes per worker are infeasible
      with the same model, framework, precision and optimizer.
    - After a run that diverged (NaN), the same and higher learning rates are infeasible with
      otherwise the same configuration, whatever its batch size. For larger batches, the limit on
      the learning rate grows as the learning rate scales with the batch size (`batch_power`).
    - After an error in a compiled run, its compilation mode is infeasible.

    Args:
        equal_frameworks: Whether the learning curve is the same in both frameworks.
        has_room: Function that returns whether the workers of a run fit on the cluster.
    """

    def __init__(
        self,
        *,
        equal_frameworks: bool = False,
        has_room: Callable[[RunSpec], bool] = lambda spec: True,
    ) -> None:
        self.has_room = has_room
        self._too_large: dict[Key, int] = {}
        """Smallest batch size per worker that ran out of memory, keyed by `_memory_key`."""
        self._diverged: dict[Key, list[RunSpec]] = {}
        self._not_compiled: set[Key] = set()
        left_out = {*RATE_AND_BATCH, *CURVE_NEUTRAL, *(["framework"] if equal_frameworks else [])}
        self._rate_keys = [key for key in RunSpec.model_fields if key not in left_out]

    def add(self, failure: Failure, spec: RunSpec) -> None:
        """Add a failed run; it is ignored unless its configuration caused the failure."""
        if failure == Failure.OOM:
            key, batch = _memory_key(spec), spec.batch_size_per_worker
            self._too_large[key] = min(batch, self._too_large.get(key, batch))
        elif may_be_compile_error(failure, spec):
            self._not_compiled.add(_compile_key(spec))
        elif failure == Failure.NAN:
            self._diverged.setdefault(self._rate_key(spec), []).append(spec)

    def is_feasible(self, spec: RunSpec) -> bool:
        """Return whether a run fits on the cluster and is not expected to fail."""
        if not self.has_room(spec):
            return False
        if _compile_key(spec) in self._not_compiled:
            return False
        if self._too_large and spec.batch_size_per_worker >= self._too_large.get(
            _memory_key(spec), math.inf
        ):
            return False
        diverged = self._diverged.get(self._rate_key(spec), []) if self._diverged else []
        for failed in diverged:
            growth = max(1.0, spec.global_batch_size / failed.global_batch_size)
            if scaled_rate(spec) >= scaled_rate(failed) * growth ** batch_power(spec.optimizer):
                return False
        return True

    def _rate_key(self, spec: RunSpec) -> Key:
        return tuple(str(getattr(spec, key)) for key in self._rate_keys)


def may_be_compile_error(failure: Failure | None, spec: RunSpec) -> bool:
    """Return whether compilation may be the cause of a failure."""
    return failure == Failure.ERROR and spec.compile != "none"


def _compile_key(spec: RunSpec) -> Key:
    return spec.framework, spec.precision, spec.compile, spec.accelerator_type or ""


def _memory_key(spec: RunSpec) -> Key:
    kind = spec.accelerator_type or ""
    state = str(spec.momentum == 0), str(spec.ema_decay is None), str(spec.frozen_epochs == "all")
    nested = (spec.model, spec.data, spec.optimizer_options)
    settings = (str(sorted(mapping.items())) for mapping in nested)
    framework = spec.framework, spec.strategy, spec.compile, *settings
    return *framework, spec.optimizer, spec.precision, str(spec.gpus_per_worker), kind, *state


MODEL_ALL = ("gp", "cmaes")
"""Samplers that model only COMPLETE trials, and only parameters that all these trials have."""


class Answer(NamedTuple):
    """Result of a trial in the form reported to Optuna: state and objective values."""

    state: TrialState
    values: list[float] | None = None
    step: int | None = None
    """Step at which the value of a PRUNED trial is reported, in training samples."""


def answer_for_score(score: float) -> Answer:
    """Return the result reported to Optuna for a run of which only the score is known."""
    return Answer(TrialState.COMPLETE, [score])


class Feedback:
    """Reports the results of trials to Optuna.

    The reported value of a trial is its log time to target, rescaled to the placement (framework,
    workers, ...) that is predicted to be the fastest for its configuration.

    Args:
        study: The study.
        journal: The Optuna study, which is stored in a journal file.
        infeasible: Learns from the failed trials.
        placer: Predicts the fastest placement; None if the space is not factorized.
        expected: Function that returns a trial's predicted log seconds to target, or None if they
            are unknown.
    """

    def __init__(
        self,
        study: StudySpec,
        journal: optuna.Study,
        infeasible: FailurePredictor,
        placer: Placer | None,
        expected: Callable[[str], float | None],
    ) -> None:
        self._objective, self._keys = study.objective, label_keys(study.space)
        self._journal, self._infeasible, self._placer = journal, infeasible, placer
        self._expected, self._models_all = expected, study.search.sampler in MODEL_ALL
        self._is_pareto = len(journal.directions) > 1

    def add(self, trial: optuna.Trial, record: RunRecord) -> None:
        """Report the result of a finished trial to Optuna."""
        if record.failure is not None:
            self._infeasible.add(record.failure, record.spec)
        answer = self.answer(record)
        if not trial.params:  # outside the space, so samplers cannot use it
            answer = Answer(TrialState.FAIL)
        for name, value in shown_attributes(record, self._keys).items():
            trial.set_user_attr(name, value)
        self._answer(trial, answer)

    def tell_predicted_failure(self, trial: optuna.Trial) -> None:
        """Report the worst score for a proposal that is skipped because it would fail."""
        self._answer(trial, self._failed())

    def answer(self, record: RunRecord, *, fastest_s: float | None = None) -> Answer:
        """Return the state and values to report to Optuna for a run.

        Args:
            record: Record of the run.
            fastest_s: Seconds to target on the fastest placement; None lets the placer predict
                them.
        """
        if record.failure in MACHINE_FAULTS or (record.failure is None and not record.samples):
            return Answer(TrialState.FAIL)  # not caused by the configuration
        if self._placer is not None:
            is_too_large = record.failure == Failure.OOM and self._placer.others(record.spec)
            if is_too_large or may_be_compile_error(record.failure, record.spec):
                return Answer(TrialState.FAIL)  # may be feasible on another placement
        if record.failure is not None:
            return self._failed()
        seconds, cost = record.score, record.score + math.log(record.spec.num_workers)
        if fastest_s is not None and record.time_to_target_s is not None:
            seconds += math.log(fastest_s / record.time_to_target_s)
        elif record.time_to_target_s is not None and self._placer is not None:
            seconds += math.log(self._placer.ratio_to_fastest(record.spec))
            cost += math.log(self._placer.ratio_to_cheapest(record.spec))
        if self._is_pareto:
            return Answer(TrialState.COMPLETE, [seconds, cost])
        is_stopped = record.state == State.STOPPED
        if self._objective.kind == TIME and record.time_to_target_s is None:
            expected = self._expected(record.trial)
            seconds = record.score if expected is None else expected
        elif not is_stopped:
            return Answer(TrialState.COMPLETE, [seconds])
        if self._models_all:
            return Answer(TrialState.COMPLETE, [seconds])
        return Answer(TrialState.PRUNED, [seconds], record.samples if is_stopped else 0)

    def _failed(self) -> Answer:
        """Return the result reported to Optuna for a run that failed or is infeasible."""
        worst = worst_score(self._objective)
        if self._is_pareto or self._models_all:
            return Answer(TrialState.COMPLETE, [worst] * (2 if self._is_pareto else 1))
        return Answer(TrialState.PRUNED, [worst], 0)

    def _answer(self, trial: optuna.Trial, answer: Answer) -> None:
        if answer.state == TrialState.PRUNED:
            assert answer.values is not None
            assert answer.step is not None
            trial.report(answer.values[0], step=answer.step)
            self._journal.tell(trial, state=TrialState.PRUNED)
        else:
            self._journal.tell(trial, answer.values, state=answer.state)


def shown_attributes(record: RunRecord, keys: Iterable[str]) -> dict[str, Any]:
    """Return the user attributes of a finished trial, which Optuna's own tools show.

    Optuna's parameters are encoded for the sampler (exponents, positions in a range), and its
    values are scores. The attributes contain the configuration, the learning rate, the seconds and
    the best metric value in readable form.
    """
    metric = record.spec.objective.judged_by
    attributes = {
        "configuration": describe(record.spec, keys),
        "learning_rate": record.spec.learning_rate,
        "time_to_target_s": record.time_to_target_s,
        metric.best_column: record.best_value,
        "train_s": record.ledger["train"],
        "failure": record.failure,
    }
    return {name: value for name, value in attributes.items() if value is not None}
