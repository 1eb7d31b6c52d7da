"""What is set before a search by training a usual configuration: target, seconds, cadence.

The reference is the space's first optimizer at its usual rate, with seeds of its own.

- `target: auto`: three runs of it train for as long as a trial may; the target is the median of
  their best validation accuracies less half a point.
- `max_train_seconds: auto`: four times what the reference needs to the target.
- No `eval_every_samples`: evaluations come so often that a run like the reference has about
  twenty of them on its way to the target, and cost at most about a fifth of its training.

All stay as they are from then on, the same for every run.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raybench.core.errors import UserError
from raybench.core.objective import Objective
from raybench.core.record import Evaluation, RunRecord
from raybench.core.space import Space, known_values, possible_values, resolve
from raybench.core.spec import RunSpec
from raybench.core.study import CADENCE, StudySpec
from raybench.results.label import describe
from raybench.results.records import read_records
from raybench.search.pipeline.single_run import SingleRun
from raybench.search.sampling.default_rates import priors, rate_factor

RUNS = 3
SEEDS_FROM = 2000
"""How far the seeds of reference runs are from the search's, and from confirming runs'."""
BELOW = 0.005
"""How far below the reference the target lies: half a point."""
EVALUATIONS = 20
"""Evaluations that a run like the reference has on its way to the target."""
EVALUATION_SHARE = 0.2
"""Seconds of evaluation per second of training, at most."""
PARTS_OF_EPOCH = 8
FEWEST_SAMPLES = 512
"""The reference itself is evaluated every eighth of an epoch, and after so many samples at the
least."""
PATIENCE = 4.0
"""Times the reference's seconds to the target that a trial may train."""
SHARE_OF_BUDGET = 6.0
"""The reference may take one such part of the study's time budget."""


@dataclass(frozen=True)
class Measured:
    """What one reference run has shown."""

    record: RunRecord
    curve: list[Evaluation]

    @property
    def accuracies(self) -> list[float]:
        """Validation accuracy of every evaluation."""
        return [point.accuracy for point in self.curve]

    def samples_to(self, target: float | None) -> float:
        """Return the training samples to an accuracy, or twice all where it was not reached."""
        if target is None:
            return float(self.record.samples)
        reached = (point.samples for point in self.curve if point.accuracy >= target)
        return float(next(reached, 2 * self.record.samples))

    @property
    def evaluation_samples(self) -> float:
        """Training samples in the time of one evaluation."""
        ledger = self.record.ledger
        speed = self.record.samples / max(ledger["train"], 1e-9)
        return speed * ledger["eval"] / max(len(self.curve), 1)


def set_by_reference(
    study: StudySpec,
    space: Space,
    single_run: SingleRun,
    *,
    num_classes: int,
    num_train_samples: int,
) -> tuple[StudySpec, list[str]] | None:
    """Train the reference; return the study with what it sets, and how, in sentences.

    None if the user, or the time budget, ended it before. UserError where a key is `auto` that
    cannot be set because the reference fails or learns nothing.
    """
    cadence = max(num_train_samples // PARTS_OF_EPOCH, FEWEST_SAMPLES)
    if study.needs_target:
        runs = _train(study, space, single_run, cadence, number=RUNS, factor=1.0)
    else:
        runs = _train(study, space, single_run, cadence, number=1, factor=rate_factor(study))
        if runs and runs[0].record.failure:  # too fast for it: its usual rate then
            runs = _train(study, space, single_run, cadence, number=1, factor=1.0)
    if single_run.deadline.over:
        return None
    failed = [one.record for one in runs if one.record.failure or not one.curve]
    if failed:
        return _without_reference(study, failed[0], num_train_samples)
    words: list[str] = []
    if study.needs_target:
        study, sentence = _set_target(study, runs, num_classes)
        words.append(sentence)
    middle = sorted(runs, key=lambda one: one.samples_to(study.objective.target))[len(runs) // 2]
    if "max_train_seconds" in study.auto:
        study, sentence = _set_seconds(study, middle.record)
        words.append(sentence)
    if CADENCE in study.auto:
        study, sentence = _set_cadence(study, middle, num_train_samples)
        words.append(sentence)
    return study.model_copy(update={"is_set": True}), words


def _train(
    study: StudySpec,
    space: Space,
    single_run: SingleRun,
    cadence: int,
    *,
    number: int,
    factor: float,
) -> list[Measured]:
    """Train the reference `number` times; fewer if the deadline ends it."""
    spec = reference_spec(study, space, factor=factor)
    if CADENCE in study.auto:
        spec = spec.model_copy(update={CADENCE: cadence})
    single_run.progress.begin("reference", number)
    records = []
    for index in range(number):
        seed = (study.search.seed + SEEDS_FROM + index) % 2**32
        run_spec = spec.model_copy(update={"seed": seed})
        records.append(single_run.train(run_spec, f"reference{index}", "reference"))
        if single_run.deadline.over:
            return []
    curves = read_records(single_run.store.folder).curves
    return [Measured(one, curves.get(one.trial, [])) for one in records]


def reference_spec(study: StudySpec, space: Space, *, factor: float = 1.0) -> RunSpec:
    """Return the configuration that a user of the space would try first.

    It trains for as long as a trial may, but for no more than a part of the time budget; while
    the target is not set, without one.
    """
    hints = next(iter(priors(space, study.fixed, factor=factor)), {})
    values: dict[str, Any] = {}
    for key, dimension in space.items():
        known = known_values(study.fixed, hints | values)
        values[key] = hints.get(key, possible_values(resolve(dimension, known))[0])
    objective, budget = study.objective, study.search.time_budget_s
    seconds = objective.max_train_seconds
    if budget is not None:
        seconds = min(seconds, budget / SHARE_OF_BUDGET)
    if study.needs_target:
        objective = Objective(kind="accuracy_at_budget", max_train_seconds=seconds)
    else:
        objective = objective.model_copy(update={"max_train_seconds": seconds})
    return study.run_spec(values).model_copy(update={"objective": objective})


def target_from(accuracies: list[float], chance: float) -> float:
    """Return the target, in tenths of a point; UserError where the reference learnt nothing."""
    median = statistics.median(accuracies)
    target = round(median - BELOW, 3)
    if target <= chance + BELOW:
        raise UserError(
            f"target: auto: the reference runs reached {median:.1%}, hardly above chance; "
            "raise objective.max_train_seconds, or name a target."
        )
    return target


def held(accuracies: Sequence[float], hold: int) -> float:
    """Return the best accuracy that was reached and held for `hold` evaluations in a row."""
    windows = [accuracies[at : at + hold] for at in range(len(accuracies) - hold + 1)]
    return max((min(window) for window in windows), default=0.0)


def _in_a_row(hold: int) -> str:
    return f" held for {hold} evaluations" if hold > 1 else ""


def cadence_from(samples: float, evaluation_samples: float, most: int) -> int:
    """Return the training samples between evaluations.

    `samples`: of a reference run to the target; `evaluation_samples`: trained in the time of one
    evaluation; `most`: so that a run can have the evaluations it must.
    """
    wanted = max(samples / EVALUATIONS, evaluation_samples / EVALUATION_SHARE, 1.0)
    return max(1, min(round(wanted), most))


def earlier_settings(study: StudySpec, folder_study: dict[str, Any]) -> StudySpec:
    """Return the study with what an earlier session of it has set, if one has."""
    earlier = folder_study.get("study")
    if not isinstance(earlier, dict) or not earlier.get("is_set"):
        return study
    if earlier.get("auto") != list(study.auto):
        return study
    changes: dict[str, Any] = {"is_set": True}
    objective = {str(key): earlier["objective"][key] for key in study.auto if key != CADENCE}
    changes["objective"] = study.objective.model_copy(update=objective)
    if CADENCE in study.auto and CADENCE in earlier["fixed"]:
        changes["fixed"] = study.fixed | {CADENCE: earlier["fixed"][CADENCE]}
    return study.model_copy(update=changes)


def _set_target(study: StudySpec, runs: list[Measured], num_classes: int) -> tuple[StudySpec, str]:
    accuracies = [held(one.accuracies, study.objective.hold) for one in runs]
    target = target_from(accuracies, 1.0 / num_classes)
    objective = study.objective.model_copy(update={"target": target})
    how = (
        f"target {target} (auto: median of {', '.join(f'{one:.4f}' for one in accuracies)}, best "
        f"validation accuracy{_in_a_row(study.objective.hold)} of "
        f"{describe(runs[0].record.spec)}, less half a point)"
    )
    return study.model_copy(update={"objective": objective}), how


def _set_seconds(study: StudySpec, record: RunRecord) -> tuple[StudySpec, str]:
    tried = record.ledger["train"]
    reached = record.time_to_target_s
    seconds = PATIENCE * (tried if reached is None else reached)
    if study.search.time_budget_s is not None:
        seconds = min(seconds, 2 * study.search.time_budget_s / SHARE_OF_BUDGET)
    seconds = max(_two_digits(seconds), 0.1)
    objective = study.objective.model_copy(update={"max_train_seconds": seconds})
    what = (
        f"did not get to the target in {tried:.2g} s"
        if reached is None
        else f"took {reached:.2g} s to the target"
    )
    how = f"trials train for at most {seconds:g} s (auto: {describe(record.spec)} {what})"
    return study.model_copy(update={"objective": objective}), how


def _set_cadence(study: StudySpec, one: Measured, num_train_samples: int) -> tuple[StudySpec, str]:
    target = study.objective.target
    samples = one.samples_to(target)
    epochs = float(known_values(study.fixed, {})["epochs"])
    most = int(epochs * num_train_samples) // (study.objective.hold + 1)
    cadence = cadence_from(samples, one.evaluation_samples, most)
    is_dear = one.evaluation_samples / EVALUATION_SHARE > samples / EVALUATIONS
    how = f"evaluated every {cadence:,} samples (about {max(1, round(samples / cadence))} times "
    how += "to the target" if target is not None else "in a run"
    if is_dear:
        how += (
            "; more often would cost more than a fifth of training: the validation set is large "
            "for it, dataset.validation_size makes it smaller"
        )
    fixed = study.fixed | {CADENCE: cadence}
    return study.model_copy(update={"fixed": fixed}), f"{how})"


def _without_reference(
    study: StudySpec, record: RunRecord, num_train_samples: int
) -> tuple[StudySpec, list[str]]:
    """Go on with one evaluation an epoch, where nothing but that was to be set."""
    named = [key for key in study.auto if key != CADENCE]
    reason = f"the reference run failed ({record.failure}: {record.message})"
    if named:
        raise UserError(f"{named[0]}: auto: {reason}; name a value instead.")
    fixed = study.fixed | {CADENCE: num_train_samples}
    how = f"evaluated once an epoch: {reason}"
    return study.model_copy(update={"fixed": fixed, "is_set": True}), [how]


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")
