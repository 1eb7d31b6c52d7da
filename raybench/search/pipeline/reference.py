"""What is set before a search by training a usual configuration: target, seconds, cadence.

The reference is the space's first optimizer at its usual rate, with seeds of its own.

- `target: auto`: three runs of it train for as long as a trial may; the target is the median of
  their best validation accuracies less half a point. Of a metric that is no share it is worse than
  the median by 1 % of the gap between it and chance. It is always above what luck adds to the
  baseline on so many validation rows.
- `max_train_seconds: auto`: four times what the reference needs to the target.
- No `eval_every_samples`: evaluations come so often that a run like the reference has about
  twenty of them on its way to the target, and cost at most about a fifth of its training.

All stay as they are from then on, the same for every run.
"""

from collections.abc import Mapping
from typing import Any

from raybench.core.errors import UserError
from raybench.core.objective import BUDGET
from raybench.core.record import RunRecord
from raybench.core.score import BEST_OF_ALL, BEST_OF_MANY, Baseline
from raybench.core.space import Space, known_values, possible_values, resolve
from raybench.core.spec import RunSpec
from raybench.core.study import CADENCE, StudySpec
from raybench.results.records import read_records
from raybench.search.pipeline.reference_settings import (
    SHARE_OF_BUDGET,
    Measured,
    set_cadence,
    set_seconds,
    set_target,
)
from raybench.search.pipeline.single_run import SingleRun
from raybench.search.sampling.default_rates import priors, rate_factor

RUNS = 3
SEEDS_FROM = 2000
"""How far the seeds of reference runs are from the search's, and from confirming runs'."""
PARTS_OF_EPOCH = 8
FEWEST_SAMPLES = 512
"""The reference itself is evaluated every eighth of an epoch, and after so many samples at the
least."""


def set_by_reference(
    study: StudySpec,
    space: Space,
    single_run: SingleRun,
    *,
    chance: float | None,
    baselines: Mapping[str, Baseline | None],
    num_train_samples: int,
) -> tuple[StudySpec, list[str]] | None:
    """Train the reference; return the study with what it sets, and how, in sentences.

    `chance`: what an answer that does not look at the inputs reaches, where it is known;
    `baselines`: the same on the rows of each split, with what luck adds to it. None if the user, or
    the time budget, ended it before. UserError where a key is `auto` that cannot be set because the
    reference fails or learns nothing.
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
        errors = BEST_OF_ALL if baselines["test"] is None else BEST_OF_MANY
        base = baselines["validation"]
        study, sentence = set_target(study, runs, chance, baseline=base, errors=errors)
        words.append(sentence)
    middle = sorted(runs, key=lambda one: one.samples_to(study.objective.target))[len(runs) // 2]
    if "max_train_seconds" in study.auto:
        study, sentence = set_seconds(study, middle.record)
        words.append(sentence)
    if CADENCE in study.auto:
        study, sentence = set_cadence(study, middle, num_train_samples)
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
    budget, seconds = study.search.time_budget_s, study.objective.max_train_seconds
    if budget is not None:
        seconds = min(seconds, budget / SHARE_OF_BUDGET)
    changes: dict[str, Any] = {"max_train_seconds": seconds}
    if study.needs_target:
        changes |= {"kind": BUDGET, "target": None, "hold": 1}
    objective = study.objective.model_copy(update=changes)
    return study.run_spec(values).model_copy(update={"objective": objective})


def earlier_settings(
    study: StudySpec, folder_study: dict[str, Any], *, is_chance_asked: bool = False
) -> StudySpec:
    """Return the study with what an earlier session of it has set, if one has.

    One that an earlier version began goes on as it was begun: with that version's chance level
    (unless the user names one, `is_chance_asked`), and, where it is older than the setting of the
    cadence, with one evaluation an epoch.
    """
    earlier = folder_study.get("study")
    if not isinstance(earlier, dict) or not isinstance(earlier.get("objective"), dict):
        return study
    if earlier["objective"].get("chance") is None and not is_chance_asked:
        objective = study.objective.model_copy(update={"chance": None})
        study = study.model_copy(update={"objective": objective})
    if "auto" not in earlier and study.auto == [CADENCE]:
        study = study.model_copy(update={"auto": []})
    if not earlier.get("is_set"):
        return study
    if earlier.get("auto") != list(study.auto):
        return study
    changes: dict[str, Any] = {"is_set": True}
    named = {str(key): earlier["objective"][key] for key in study.auto if key != CADENCE}
    changes["objective"] = study.objective.model_copy(update=named)
    if CADENCE in study.auto and CADENCE in earlier["fixed"]:
        changes["fixed"] = study.fixed | {CADENCE: earlier["fixed"][CADENCE]}
    return study.model_copy(update=changes)


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
