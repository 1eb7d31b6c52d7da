"""Optuna's journal file of a study: open it, list its trials, and restore it from the records."""

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
    """Optuna's journal file without its lock and without fsync.

    The results folder is already locked, and lines lost in a power failure are restored from the
    records of the study (`restore`).
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines; other processes see them when this returns."""
        text = "".join(f"{json.dumps(log, separators=(',', ':'))}\n" for log in logs)
        with self._path.open("ab") as file:
            file.write(text.encode())


JOURNAL_FILE, STUDY_NAME = "optuna.log", "raybench"
NOT_RUN = "not_run"
"""User attribute of an Optuna trial that never ran; its value is the reason."""
WOULD_FAIL = "would fail"
NO_ROOM = "no room"
DUPLICATE = "duplicate"
EARLIER_STUDY = "of an earlier study"
INTERRUPTED = "interrupted"
"""User attribute of the Optuna study: numbers of the trials that were open when a session ended."""
TRIAL, PLACEMENT, PRIOR = "trial", "placement", "prior"
"""User attributes that an interrupted trial keeps when it is suggested again."""
SEED = "seed"
"""User attribute of an interrupted trial: its seed, in which repeats of a configuration differ."""
FIRST = "first"
"""User attribute of a trial of a configuration of `search.first`: its key in `first_specs`."""


def open_study(study: StudySpec, folder: Path) -> optuna.Study:
    """Open or create the Optuna study of a results folder; the caller holds the folder's lock.

    An incomplete last line (full disk) is cut off. A damaged journal is renamed and replaced by a
    new one, which `restore` fills from the records.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = study.search
    path = folder / JOURNAL_FILE
    mend_last_line(path)
    # Without this, Optuna would wait half a minute for the lock of a killed driver.
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
    """Return the names of the objective values, which Optuna's own tools show."""
    objective, metric = study.objective, study.objective.judged_by
    if objective.kind != BUDGET:
        return [
            "log seconds to target, on the fastest split",
            "log worker-seconds to target, on the cheapest split",
        ]
    name = f"1 - {metric.name}" if metric.is_share else f"score by {metric.name}"
    return [name, f"{name}, weighed by workers"]


def real_trials(journal: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that ran or are running, without rejected and interrupted ones."""
    return [
        trial
        for trial in proposed_trials(journal)
        if NOT_RUN not in trial.user_attrs and trial.state != TrialState.WAITING
    ]


def proposed_trials(journal: optuna.Study) -> list[FrozenTrial]:
    """Return all trials but the interrupted ones, which have been enqueued again as new trials."""
    interrupted = set(journal.user_attrs.get(INTERRUPTED, []))
    return [t for t in journal.get_trials(deepcopy=False) if t.number not in interrupted]


def names_in_use(journal: optuna.Study, *, without: Sequence[FrozenTrial] = ()) -> set[str]:
    """Return the names of all trials that ran, are running, or will be suggested again, except the
    trials in `without`."""
    left_out = {trial.number for trial in without}
    trials = [one for one in proposed_trials(journal) if one.number not in left_out]
    named = [one for one in trials if NOT_RUN not in one.user_attrs and TRIAL in one.user_attrs]
    return {one.user_attrs[TRIAL] for one in named}


def key_of(params: dict[str, Any]) -> str:
    """Return a string that identifies parameters. They are rounded, since parameters computed back
    from a recorded learning rate are not exact."""
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
    """Make the journal agree with the records, which are authoritative.

    A record is written before the result is reported to Optuna, so a killed driver can leave a
    finished trial open in the journal. Such trials, and those lost from a damaged journal, are
    reported here. Interrupted trials are enqueued again (those of `search.first` by the proposer).

    Args:
        journal: The Optuna study.
        runs: Records of the study by run name.
        study: The study.
        space: The sampled space.
        feedback: Turns records into states and values for Optuna.
        firsts: Run specs of `search.first` by key.
    """
    running = journal.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    left_open = {one.user_attrs.get(TRIAL, f"number {one.number}"): one for one in running}
    held = names_in_use(journal, without=running)
    known, widen = distributions(space), study.search.widen
    for name, record in runs.items():
        if record.role != "trial" or name in held:
            continue
        before = left_open.pop(name, None)
        kept = {PLACEMENT: speed_values(record.spec.placement), SEED: record.spec.seed}
        kept = before.user_attrs if before else kept
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
        attributes.pop(SEED, None)
        attributes |= {"spec": record.spec.document()} | ({} if first is None else {FIRST: first})
        attributes |= shown_attributes(record, label_keys(study.space))
        add_answer(journal, answer, params or {}, known, attributes)
    for name, trial in left_open.items():
        if name not in held and FIRST not in trial.user_attrs:
            journal.enqueue_trial(trial.params, user_attrs=_kept(trial.user_attrs))
    # Open trials are closed last, so nothing is lost if the driver is killed before.
    if running:
        earlier = journal.user_attrs.get(INTERRUPTED, [])
        journal.set_user_attr(INTERRUPTED, [*earlier, *(trial.number for trial in running)])
    for trial in running:
        journal.tell(trial.number, state=TrialState.FAIL)


def _first_of(record: RunRecord, firsts: Mapping[str, RunSpec]) -> str | None:
    """Return the key of the configuration of `search.first` that a trial ran; None if it ran none.

    A reference run that counts as a trial matches too, if it reached the target.
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
    """Add a finished trial to an Optuna study.

    Args:
        journal: The Optuna study.
        answer: State and values of the trial.
        params: Parameters of the trial.
        known: Distribution of each parameter; widened if the value lies outside.
        attributes: User attributes of the trial.
    """
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
    found = {key: attributes[key] for key in (TRIAL, PLACEMENT, PRIOR, SEED) if key in attributes}
    return found | ({SEED: attributes["spec"]["seed"]} if "spec" in attributes else {})
