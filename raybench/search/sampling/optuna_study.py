"""Optuna's journal of a study: opening it, which of its trials count, what it has lost."""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from raybench.results.store import mend_last_line
from raybench.search.factorisation import speed_values
from raybench.search.sampling.feedback import Answer, Feedback, shown_attributes
from raybench.search.sampling.optuna_space import (
    PARETO_SAMPLERS,
    build_sampler,
    distributions,
    params_of,
)
from raybench.spec.objective import BUDGET
from raybench.spec.run import RunSpec, label_keys
from raybench.spec.space import Space
from raybench.spec.study import EVAL_INTERVAL, StudySpec
from raybench.stats.record import RunRecord


class JournalFile(JournalFileBackend):
    """Optuna's file, line for line; whoever writes it holds the folder's lock.

    It does not wait for the disk: what a machine that loses power takes from it, the study's
    records tell again (`optuna_study.restore`).
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write lines; another process sees them when this returns."""
        text = "".join(f"{json.dumps(log, separators=(',', ':'))}\n" for log in logs)
        with self._path.open("ab") as file:
            file.write(text.encode())


JOURNAL_FILE, STUDY_NAME = "optuna.log", "raybench"
NOT_RUN = "not_run"
"""User attribute of Optuna trials that are not trials of the study, with the reason."""
WOULD_FAIL = "would fail"
NO_ROOM = "no room"
NO_TIME = "no time"
DUPLICATE = "duplicate"
EARLIER_STUDY = "of an earlier study"
INTERRUPTED = "interrupted"
"""User attribute of Optuna's study: the trials that were open when a session of it ended."""
TRIAL, PLACEMENT, PRIOR = "trial", "placement", "prior"
"""User attributes that an interrupted trial keeps when it is proposed again."""
FIRST = "first"
"""User attribute of a configuration that the user has named: which it is (`search.first`)."""


def open_study(study: StudySpec, folder: Path) -> optuna.Study:
    """Open the folder's Optuna study, or make it; whoever calls holds the folder's lock.

    A torn last line, as a full disk leaves it, is cut. A journal that is damaged otherwise is put
    aside, and begun anew: what it held is told again from the records (`restore`).
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = study.search
    path = folder / JOURNAL_FILE
    mend_last_line(path)
    # Left by a killed driver; Optuna would wait for it for half a minute.
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    try:
        found = _open(study, path)
    except (ValueError, KeyError, TypeError, AssertionError, IndexError):
        path.replace(path.with_name(f"{path.name}.damaged"))
        found = _open(study, path)
    found.sampler = build_sampler(
        search.sampler,
        seed=search.seed,
        num_earlier=len(found.get_trials(deepcopy=False)),
    )
    return found


def _open(study: StudySpec, path: Path) -> optuna.Study:
    found = optuna.create_study(
        study_name=STUDY_NAME,
        storage=JournalStorage(JournalFile(path)),
        directions=["minimize"] * (2 if study.search.sampler in PARETO_SAMPLERS else 1),
        load_if_exists=True,
    )
    if found.metric_names is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            found.set_metric_names(_metric_names(study)[: len(found.directions)])
    return found


def _metric_names(study: StudySpec) -> list[str]:
    """Return what Optuna's own tools call the values of a trial (`spec.objective`)."""
    objective, metric = study.objective, study.objective.judged_by
    if objective.kind != BUDGET:
        return [
            "log seconds to target, on the fastest split",
            "log worker-seconds to target, on the cheapest split",
        ]
    name = f"1 - {metric.name}" if metric.is_share else f"score by {metric.name}"
    return [name, f"{name}, weighed by workers"]


def real_trials(journal: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that ran or run, without rejected draws and interrupted runs."""
    return [
        trial
        for trial in proposed_trials(journal)
        if NOT_RUN not in trial.user_attrs and trial.state != TrialState.WAITING
    ]


def proposed_trials(journal: optuna.Study) -> list[FrozenTrial]:
    """Return all trials but those that were interrupted: these are proposed again."""
    interrupted = set(journal.user_attrs.get(INTERRUPTED, []))
    return [t for t in journal.get_trials(deepcopy=False) if t.number not in interrupted]


def names_in_use(journal: optuna.Study, *, without: Sequence[FrozenTrial] = ()) -> set[str]:
    """Return the names of the trials that ran, run, or come back after an interruption."""
    left_out = {trial.number for trial in without}
    trials = [one for one in proposed_trials(journal) if one.number not in left_out]
    named = [one for one in trials if NOT_RUN not in one.user_attrs and TRIAL in one.user_attrs]
    return {one.user_attrs[TRIAL] for one in named}


def key_of(params: dict[str, Any]) -> str:
    """Return the same text for the same parameters, within rounding: of a record they are reckoned
    back from its rate."""
    rounded = {k: f"{v:.9g}" if isinstance(v, float) else v for k, v in params.items()}
    return repr(sorted(rounded.items()))


def restore(
    journal: optuna.Study,
    runs: Mapping[str, RunRecord],
    study: StudySpec,
    space: Space,
    feedback: Feedback,
    firsts: Mapping[str, RunSpec],
) -> None:
    """Bring the journal in line with the records, which are the truth.

    `runs` are the study's records by name, `space` is what the sampler samples. A record is
    written before Optuna is told, so a driver killed in between leaves a trial that has ended and
    is open in the journal: it is told here, as are trials that a damaged journal has lost. Those
    that were interrupted are proposed again, first of all; of `firsts` by the proposer.
    """
    running = journal.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    left_open = {one.user_attrs.get(TRIAL, f"number {one.number}"): one for one in running}
    held = names_in_use(journal, without=running)
    known, widen = distributions(space), study.search.widen
    for name, record in runs.items():
        if record.role != "trial" or name in held:
            continue
        before = left_open.pop(name, None)
        kept = before.user_attrs if before else {PLACEMENT: speed_values(record.spec.placement)}
        params = before.params if before else params_of(record.spec, study, space, widen=widen)
        first = _first_of(record, firsts)
        if first is None and not params:
            continue
        attributes = _kept(kept) | {TRIAL: name}
        if record.stop == "interrupted":
            if first is None:
                journal.enqueue_trial(params, user_attrs=attributes)
            continue
        answer = feedback.answer(record) if params else Answer(TrialState.FAIL)
        attributes |= {"spec": record.spec.document()} | ({} if first is None else {FIRST: first})
        attributes |= shown_attributes(record, label_keys(study.space))
        add_answer(journal, answer, params or {}, known, attributes)
    for name, trial in left_open.items():
        if name not in held and FIRST not in trial.user_attrs:
            journal.enqueue_trial(trial.params, user_attrs=_kept(trial.user_attrs))
    # Last of all what was left open is closed: a session that is killed before has lost nothing.
    if running:
        earlier = journal.user_attrs.get(INTERRUPTED, [])
        journal.set_user_attr(INTERRUPTED, [*earlier, *(trial.number for trial in running)])
    for trial in running:
        journal.tell(trial.number, state=TrialState.FAIL)


def _first_of(record: RunRecord, firsts: Mapping[str, RunSpec]) -> str | None:
    """Return which of the user's own configurations a trial is; None where it is none.

    Also a reference run of it that counts as a trial, unless the reference's end cut it off.
    """
    spec = record.spec
    judged = {"objective": spec.objective, EVAL_INTERVAL: spec.eval_every_samples}
    if record.trial.startswith("reference") and record.time_to_target_s is not None:
        judged["seed"] = spec.seed
    for given, first in firsts.items():
        if first.model_copy(update=judged) == spec:
            return given
    return None


def add_answer(
    journal: optuna.Study,
    answer: Answer,
    params: dict[str, Any],
    known: Mapping[str, BaseDistribution],
    attributes: dict[str, Any],
) -> None:
    """Add a trial that has ended to Optuna's study; `known` holds its parameters' distributions,
    which are as wide here as its parameters need."""
    course = None
    if answer.step is not None and answer.values is not None:
        course = {answer.step: answer.values[0]}
    journal.add_trial(
        create_trial(
            state=answer.state,
            params=params,
            distributions={name: _wide_enough(known[name], at) for name, at in params.items()},
            values=answer.values,
            intermediate_values=course,
            user_attrs=attributes,
        )
    )


def _wide_enough(distribution: BaseDistribution, value: Any) -> BaseDistribution:
    if not isinstance(distribution, FloatDistribution):
        return distribution
    low, high = min(distribution.low, value), max(distribution.high, value)
    return FloatDistribution(low, high, log=distribution.log)


def _kept(attributes: dict[str, Any]) -> dict[str, Any]:
    return {key: attributes[key] for key in (TRIAL, PLACEMENT, PRIOR) if key in attributes}
