"""`--seed-from`: earlier results of the same task as starting points of a search.

The source is an earlier study, a training, a CSV or an Optuna study (`known_points`). Its trials
are told to the sampler only: they are not trials of the new study, do not appear in its tables,
and their times stop no trial.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from raybench.results.place import comparable, is_url
from raybench.results.store import RECORDS_FILE, STUDY_FILE, machine
from raybench.results.study import Study, load
from raybench.search.sampling.feedback import MODEL_ALL, Answer, Feedback
from raybench.search.sampling.known_points import (
    KnownPoints,
    parameters_of,
    points_of_optuna,
    points_of_runs,
    points_of_table,
    score_of,
    settings_of_spec,
)
from raybench.search.sampling.optuna_space import (
    PARETO_SAMPLERS,
    distributions,
    params_of,
    values_of_params,
)
from raybench.search.sampling.optuna_study import (
    EARLIER_STUDY,
    JOURNAL_FILE,
    NOT_RUN,
    add_answer,
)
from raybench.spec.documents import validate
from raybench.spec.errors import UserError
from raybench.spec.objective import BUDGET
from raybench.spec.run import flat
from raybench.spec.space import Space
from raybench.spec.study import EVAL_INTERVAL, StudySpec
from raybench.spec.text import counted

DATABASE = re.compile(r"(sqlite|mysql|postgresql)[+\w]*://")
"""Matches the URL of an Optuna storage."""
OWN_FILES = (STUDY_FILE, RECORDS_FILE, JOURNAL_FILE, "trials.csv")
"""Files that may be named in place of their results folder."""
SAME = ("workload", "dataset", "objective")
"""Settings that must be equal for scores to be comparable."""


Earlier = Study | KnownPoints
"""Source of `--seed-from`: an earlier search, or other known points."""


def load_earlier(folder: str | Path, study: StudySpec, space: Space | None = None) -> Earlier:
    """Read the source of `--seed-from`.

    Args:
        folder: Results folder or URL, CSV file, or Optuna storage.
        study: The new study.
        space: Its search space.

    Raises:
        UserError: The source cannot be read, or is of another task.
    """
    if study.search.sampler in (*PARETO_SAMPLERS, "grid"):
        raise UserError(f"--seed-from: has no use with search.sampler: {study.search.sampler}.")
    place = str(folder)
    path = Path(place.partition("#")[0])
    if not (is_url(place) or path.exists()):
        raise UserError(f"--seed-from {place}: is not there; name a folder or a file that is.")
    is_own = path.name in OWN_FILES and (path.parent / STUDY_FILE).is_file()
    if DATABASE.match(place) or (path.is_file() and not is_own):
        if path.suffix.lower() in (".csv", ".tsv"):
            return points_of_table(path, study, space or {})
        return points_of_optuna(place, study, space or {})
    earlier = load(path.parent if is_own else folder)
    if earlier.study["study"].get("run"):
        return points_of_runs(earlier, study)
    if not earlier.searched:
        raise UserError(f"--seed-from {place}: holds no search and no training; name one.")
    study = settings_of(earlier, study)[0]
    before, now = comparable(earlier.study["study"], earlier.folder / STUDY_FILE, study)
    for key in SAME:
        if before.get(key) != now[key]:
            old, new = before.get(key), now[key]
            parts = old if isinstance(old, dict) else {}
            changed = [f"{key}.{k} was {v}, is {new[k]}" for k, v in parts.items() if v != new[k]]
            what = changed[0] if changed else f"{key} was {old}, is {new}"
            raise UserError(
                f"--seed-from {folder}: is a study of another task ({what}), so its scores say "
                "nothing here; leave it out, or search the same task."
            )
    return earlier


def settings_of(earlier: Earlier, study: StudySpec) -> tuple[StudySpec, list[str]]:
    """Take the `auto` settings of a study from the earlier one, so that scores are comparable.

    Returns:
        The study, and a sentence for each setting taken over. A study whose settings are set stays
        unchanged.
    """
    if not study.needs_reference or isinstance(earlier, KnownPoints):
        return study, []
    before = validate(StudySpec, earlier.study["study"], f"{earlier.folder / STUDY_FILE}: study")
    has_eval_interval = EVAL_INTERVAL in before.fixed
    if study.auto == [EVAL_INTERVAL] and not has_eval_interval:
        return study, []  # the reference sets it
    if before.needs_reference or (EVAL_INTERVAL in study.auto and not has_eval_interval):
        unset = before.auto[0] if before.needs_reference else EVAL_INTERVAL
        raise UserError(
            f"--seed-from {earlier.place}: has no {unset} that this study could take over (auto); "
            "name yours, or leave --seed-from out."
        )
    there = before.objective.model_dump()
    named = {key: there[key] for key in set_keys(study, there)}
    fixed = {EVAL_INTERVAL: before.fixed[EVAL_INTERVAL]} if EVAL_INTERVAL in study.auto else {}
    taken = (named | fixed).items()
    words = [f"{key} {value}: that of {earlier.place}" for key, value in taken]
    changes = {"objective": study.objective.model_copy(update=named), "is_set": True}
    return study.model_copy(update=changes | {"fixed": study.fixed | fixed}), words


def set_keys(study: StudySpec, objective: Mapping[str, Any]) -> list[str]:
    """Return the keys of an earlier objective that were set by reference runs."""
    keys = [str(key) for key in study.auto if key != EVAL_INTERVAL]
    if "target" in keys:
        keys += ["kind", "max_train_seconds", *(["hold"] if objective["kind"] == BUDGET else [])]
    return keys


def tell_earlier(
    journal: optuna.Study, earlier: Earlier, study: StudySpec, space: Space, feedback: Feedback
) -> str | None:
    """Add the earlier trials to an Optuna study.

    Returns:
        A sentence on what was added; None in a resumed session, which has them already.
    """
    if any(t.user_attrs.get(NOT_RUN) == EARLIER_STUDY for t in journal.get_trials(deepcopy=False)):
        return None
    if isinstance(earlier, KnownPoints):
        return _tell_points(journal, earlier, study, space)
    known, fastest = distributions(space), _fastest(earlier)
    before = earlier.study["study"]
    named = {*flat(before.get("space") or {}), *flat(before.get("fixed") or {})}
    runs = [record for record in earlier.runs.values() if record.phase == "search"]
    useful = [one for one in runs if one.failure in (None, "oom", "nan")]
    num_told = num_outside = 0
    for record in sorted(useful, key=lambda one: one.score):
        params = params_of(record.spec, study, space)
        if params is None:
            params = parameters_of(settings_of_spec(record.spec), named, study, space)
        if params is None or _lacks(params, known, study):
            num_outside += 1
            continue
        answer = feedback.answer(record, fastest_s=fastest.get(record.trial))
        add_answer(journal, answer, params, known, {NOT_RUN: EARLIER_STUDY})
        num_told += 1
    text = f"the sampler knows {num_told} trials of {earlier.place}"
    if num_outside:
        text += f"; {num_outside} lie outside the space and were left out"
    if earlier.study.get("machine", {}).get("processor") != machine()["processor"]:
        text += "; they were timed on another machine, so their seconds are a rough guide"
    return f"{text}."


def best_earlier(journal: optuna.Study, space: Space, study: StudySpec) -> list[dict[str, Any]]:
    """Return the configurations that `tell_earlier` added, best first; those that reached the
    target come before the others."""
    told = [one for one in journal.get_trials(deepcopy=False) if one.values]
    told = [one for one in told if one.user_attrs.get(NOT_RUN) == EARLIER_STUDY]
    told.sort(key=lambda one: (one.state != TrialState.COMPLETE, float(one.values[0])))
    values = (values_of_params(one.params, space, study.fixed) for one in told)
    return [one for one in values if one is not None]


def _lacks(params: Mapping[str, Any], known: Mapping[str, Any], study: StudySpec) -> bool:
    return study.search.sampler in MODEL_ALL and not known.keys() <= params.keys()


def _tell_points(
    journal: optuna.Study, earlier: KnownPoints, study: StudySpec, space: Space
) -> str:
    """Add known points to an Optuna study; return a sentence with their number."""
    known, num_told = distributions(space), 0
    for point in earlier.points:
        score = score_of(point, study.objective)
        params = parameters_of(point.settings, point.named, study, space)
        if score is None or not params or _lacks(params, known, study):
            continue
        answer = Answer(TrialState.COMPLETE, [score])
        add_answer(journal, answer, params, known, {NOT_RUN: EARLIER_STUDY})
        num_told += 1
    text = f"the sampler knows {num_told} of the {counted(len(earlier.points), 'result')} of "
    text += earlier.place
    if num_told < len(earlier.points):
        text += "; the others lie outside the space, or do not say when they reached the target"
    return f"{text}{f'; {earlier.words}' if earlier.words else ''}."


def _fastest(earlier: Study) -> dict[str, float]:
    """Return the seconds to target of every trial on its fastest known placement."""
    times: dict[str, float] = {}
    for table in (earlier.trials, earlier.predictions):
        for trial, seconds in zip(table["trial"], table["time_to_target_s"], strict=True):
            if seconds == seconds:
                times[str(trial)] = min(float(seconds), times.get(str(trial), float("inf")))
    return times
