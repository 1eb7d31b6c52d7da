"""Reference runs: train a typical configuration to set the target, training limit and evaluation
interval of a study.

The reference configuration is the first configuration of `search.first`. Without one, it is the
first optimizer of the space at its default learning rate (for an optimizer from a library, at the
middle of the searched range). The seeds of reference runs differ from those of all trials.

- `target: auto`: three concurrent runs train for as long as a trial may. With a time budget, they
  train for at most a fifth of it in total; if that is less than FEW_S seconds per run, there are
  only as many runs as can run at the same time.
  - The target is the median of the values reached early enough to leave time for a search
    (`reference_settings.early_s`), minus half a percentage point (or 1 % of the gap to the
    baseline, unless the metric is a proportion). It is always better than chance.
  - The median run (or the best, if the median run missed the target) counts as a trial. If a study
    has a time budget and a given target, its only reference run counts as a trial too.
- `max_train_seconds: auto`: four times the time to target of the reference run.
- `eval_every_samples` not set: about twenty evaluations until the reference run reaches the target.
  Evaluations take at most about a fifth of the training time.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from raybench.results.records import read_records
from raybench.runs.lifecycle import SingleRun, run_in_parallel
from raybench.runs.preflight import GROUP_KEYS
from raybench.search import reference_settings as settings
from raybench.search.reference_settings import ReferenceRun
from raybench.search.sampling.default_rates import rate_factor, typical_values
from raybench.search.sampling.earlier import rejudged
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.objective import (
    MARGIN_WITH_TEST_SPLIT,
    MARGIN_WITHOUT_TEST_SPLIT,
    Baseline,
)
from raybench.spec.run import RunSpec, flat
from raybench.spec.space import (
    Space,
    combinations,
)
from raybench.spec.study import EVAL_INTERVAL, TIME, StudySpec
from raybench.stats.record import Role, RunRecord

NUM_REFERENCE_RUNS = 3
SEEDS_FROM = 2000
"""Offset between the seed of the search and the seeds of reference runs."""
FEW_S = 10.0
"""If the time budget leaves less than this number of seconds per reference run, only as many train
as can run at the same time."""
PARTS_OF_EPOCH = 8
FEWEST_SAMPLES = 512
TYPICAL_BUDGET_S = 600.0
"""A reference run is evaluated PARTS_OF_EPOCH times per epoch. With a time budget below this number
of seconds, it is evaluated proportionally more often, but at most once per FEWEST_SAMPLES
samples."""


def set_by_reference(
    study: StudySpec,
    space: Space,
    single_run: SingleRun,
    *,
    at_once: Callable[[RunSpec], int],
    baseline_value: float | None,
    baselines: Mapping[str, Baseline | None],
    num_train_samples: int,
    has_room: Callable[[RunSpec], bool] = lambda spec: True,
) -> tuple[StudySpec, list[str]] | None:
    """Train the reference runs, and set the `auto` keys of a study from their results.

    Args:
        study: The study.
        space: Search space of the study.
        single_run: Trains and records the reference runs.
        at_once: Function that returns how many runs with a given spec can run on the cluster at the
            same time.
        baseline_value: Metric value of a constant prediction; None if unknown.
        baselines: For each split, the metric value of a constant prediction and its sampling
            error; None if unknown.
        num_train_samples: Number of training samples.
        has_room: Function that returns whether the workers of a run fit on the cluster.

    Returns:
        The study with its settings, and one sentence per setting; None if the user or the time
        budget ended the runs.

    Raises:
        UserError: A key cannot be set, because the reference runs failed or learned nothing.
    """
    deadline, budget = single_run.deadline, study.search.time_budget_s
    eval_interval = num_train_samples // PARTS_OF_EPOCH
    eval_interval = max(
        int(eval_interval * min(1.0, (budget or TYPICAL_BUDGET_S) / TYPICAL_BUDGET_S)),
        FEWEST_SAMPLES,
    )
    run = partial(_train, study, space, single_run, eval_interval, at_once, has_room)
    if study.needs_target:
        runs = run(number=NUM_REFERENCE_RUNS, factor=1.0)
    else:
        runs = run(number=1, factor=rate_factor(study))
        # The raised learning rate may have been too high: try the default rate.
        if runs and runs[0].record.failure and not deadline.over:
            runs = run(number=1, factor=1.0)
    good = [reference for reference in runs if reference.curve and reference.record.failure is None]
    if deadline.over:
        return None
    if not good:
        return _without_reference(study, runs[0].record, eval_interval)
    sentences: list[str] = []
    room_s = settings.room_for(deadline.left_s, at_once(good[0].record.spec))
    if study.needs_target:
        errors = MARGIN_WITHOUT_TEST_SPLIT if baselines["test"] is None else MARGIN_WITH_TEST_SPLIT
        base = baselines["validation"]
        study, sentence = settings.set_target(
            study, good, baseline_value, room_s=room_s, baseline=base, errors=errors
        )
        sentences.append(sentence)
    median_run = sorted(good, key=lambda reference: reference.samples_to(study.objective.target))[
        len(good) // 2
    ]
    if "max_train_seconds" in study.auto and study.objective.kind == TIME:
        study, sentence = settings.set_seconds(study, median_run)
        sentences.append(sentence)
    if EVAL_INTERVAL in study.auto:
        study, sentence = settings.set_eval_interval(study, median_run, num_train_samples)
        sentences.append(sentence)
    if "target" in study.auto or budget is not None:
        trials = [_as_trial(study, reference, baseline_value) for reference in good]
        chosen = good.index(median_run)
        if trials[chosen].time_to_target_s is None:
            chosen = min(range(len(good)), key=lambda index: trials[index].score)
        _count_as_trial(good[chosen], trials[chosen], single_run)
    return study.model_copy(update={"is_set": True}), sentences


def _train(
    study: StudySpec,
    space: Space,
    single_run: SingleRun,
    eval_interval: int,
    at_once: Callable[[RunSpec], int],
    has_room: Callable[[RunSpec], bool],
    *,
    number: int,
    factor: float,
) -> list[ReferenceRun]:
    """Train up to `number` reference runs concurrently; return all that have a record.

    Args:
        study: The study.
        space: Search space of the study.
        single_run: Trains and records the runs.
        eval_interval: Samples between two evaluations, if the study does not set them.
        at_once: Function that returns how many runs with a given spec can run at the same time.
        has_room: Function that returns whether the workers of a run fit on the cluster.
        number: Largest number of runs; fewer train if the time budget is short.
        factor: Factor on the default learning rate.
    """
    deadline, budget = single_run.deadline, study.search.time_budget_s
    spec = reference_spec(study, space, factor=factor, has_room=has_room)
    if EVAL_INTERVAL in study.auto:
        spec = spec.model_copy(update={EVAL_INTERVAL: eval_interval})
    slots = at_once(spec)
    share_s = math.inf
    if budget is not None:
        share_s = max(min(budget / settings.SHARE_OF_BUDGET, deadline.left_s / 3), 0.1)
    if share_s / math.ceil(number / slots) < FEW_S:
        number = min(number, slots)
    limit_s = min(spec.objective.max_train_seconds, share_s / math.ceil(number / slots))
    objective = spec.objective.model_copy(update={"max_train_seconds": limit_s})
    spec = spec.model_copy(update={"objective": objective})
    single_run.progress.begin(Role.REFERENCE, number)
    records: dict[int, RunRecord] = {}

    def train(index: int) -> None:
        seed = (study.search.seed + SEEDS_FROM + index) % 2**32
        seeded = spec.model_copy(update={"seed": seed})
        records[index] = single_run.train(seeded, f"reference{index}", Role.REFERENCE)

    jobs = [partial(train, index) for index in range(number)]
    run_in_parallel(jobs, slots=slots, deadline=deadline)
    curves = read_records(single_run.store.folder).curves
    return [
        ReferenceRun(record, curves.get(record.trial, [])) for _, record in sorted(records.items())
    ]


def _as_trial(study: StudySpec, reference: ReferenceRun, baseline_value: float | None) -> RunRecord:
    """Return the record that a reference run would have as a trial."""
    changes: dict[str, Any] = {"objective": study.objective}
    if EVAL_INTERVAL in study.auto and EVAL_INTERVAL in study.fixed:
        changes[EVAL_INTERVAL] = study.fixed[EVAL_INTERVAL]
    record = replace(reference.record, spec=reference.record.spec.model_copy(update=changes))
    return rejudged(record, reference.curve, study.objective, baseline_value=baseline_value)


def _count_as_trial(reference: ReferenceRun, record: RunRecord, single_run: SingleRun) -> None:
    """Record a reference run a second time, as a trial."""
    for point in reference.curve:
        single_run.append(point.line(record.trial, role=Role.TRIAL, spec=record.spec))
    single_run.append(record.line())
    single_run.saved.finish(record)


def reference_spec(
    study: StudySpec,
    space: Space,
    *,
    factor: float = 1.0,
    has_room: Callable[[RunSpec], bool] = lambda spec: True,
) -> RunSpec:
    """Return the run spec of the reference runs.

    Its configuration is the first of `search.first`, or a typical one of the space that fits on the
    cluster. It may train for as long as a trial; it has no target if reference runs are to set it.

    Args:
        study: The study.
        space: Search space of the study.
        factor: Factor on the default learning rate.
        has_room: Function that returns whether the workers of a run fit on the cluster.
    """
    given = flat(study.search.first[0]) if study.search.first else None
    values = typical_values(study, space, given=given, factor=factor)
    changes = settings.NO_TARGET if study.needs_target else {}
    objective = study.objective.model_copy(update=changes)
    spec = study.run_spec(values)
    if not has_room(spec):
        others = combinations(space, study.fixed, GROUP_KEYS)
        specs = (
            study.run_spec(values | {k: other[k] for k in other if k in space}) for other in others
        )
        spec = next(filter(has_room, specs), spec)
    return spec.model_copy(update={"objective": objective})


def earlier_settings(study: StudySpec, folder_study: dict[str, Any]) -> StudySpec:
    """Return the study with the settings that reference runs of an earlier session have made.

    The study stays unchanged if there are none.

    Args:
        study: The study.
        folder_study: Content of `study.yaml` of the earlier session.
    """
    earlier = folder_study.get("study")
    if not isinstance(earlier, dict) or not isinstance(earlier.get("objective"), dict):
        return study
    if not earlier.get("is_set") or earlier.get("auto") != list(study.auto):
        return study
    objective, fixed = earlier["objective"], study.fixed
    if EVAL_INTERVAL in study.auto and EVAL_INTERVAL in earlier["fixed"]:
        fixed = fixed | {EVAL_INTERVAL: earlier["fixed"][EVAL_INTERVAL]}
    changes = {key: objective[key] for key in study.auto if key != EVAL_INTERVAL}
    study = settings.with_objective(study, **changes)
    return study.model_copy(update={"fixed": fixed, "is_set": True})


def _without_reference(
    study: StudySpec, record: RunRecord, eval_interval: int
) -> tuple[StudySpec, list[str]]:
    """Return a study without working reference runs, and a sentence about its evaluation interval.

    The evaluation interval stays that of the failed reference run.

    Raises:
        UserError: Another key is `auto`, so it has no value.
    """
    unset_keys = [key for key in study.auto if key != EVAL_INTERVAL]
    reason = f"the reference run failed ({record.failure}: {record.message})"
    if unset_keys:
        raise UserError(
            f"{unset_keys[0]}: auto: {reason}; set a value instead.", ErrorCode.NO_RESULT
        )
    fixed = study.fixed | {EVAL_INTERVAL: eval_interval}
    sentence = f"evaluated every {eval_interval:,} samples: {reason}"
    return study.model_copy(update={"fixed": fixed, "is_set": True}), [sentence]
