"""The Optuna study in its journal file, which each session rewrites from the study's records."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

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
from raybench.stats.record import Role, RunRecord


class JournalFile(JournalFileBackend):
    """Backend for Optuna's journal file that uses no lock and no fsync.

    Neither is needed, because the results folder is already locked and each session rebuilds the
    file (`restore`).
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append log entries; other processes can read them when this returns."""
        text = "".join(f"{json.dumps(log, separators=(',', ':'))}\n" for log in logs)
        with self._path.open("ab") as file:
            file.write(text.encode())


JOURNAL_FILE, STUDY_NAME = "optuna.log", "raybench"
NOT_RUN = "not_run"
"""User attribute that marks an Optuna trial that never ran; its value is the reason."""
INFEASIBLE = "infeasible"
DUPLICATE = "duplicate"
EARLIER_STUDY = "of an earlier study"
TRIAL, PLACEMENT, SEED = "trial", "placement", "seed"
"""User attributes that an interrupted trial keeps when it is suggested again: name, placement and
seed. The seed distinguishes repeats of a configuration."""
FIRST = "first"
"""User attribute of a trial whose configuration comes from `search.first`; its value is the key of
the configuration in `first_specs`."""


def open_study(study: StudySpec, folder: Path, *, num_earlier: int = 0) -> optuna.Study:
    """Create an Optuna study without trials in a results folder.

    Args:
        study: The study.
        folder: The results folder; the caller must have locked it.
        num_earlier: Number of runs in earlier sessions. It changes the random numbers of a resumed
            study.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search, path = study.search, folder / JOURNAL_FILE
    path.unlink(missing_ok=True)
    journal = optuna.create_study(
        study_name=STUDY_NAME,
        sampler=build_sampler(search.sampler, seed=search.seed, num_earlier=num_earlier),
        storage=JournalStorage(JournalFile(path)),
        directions=["minimize"] * (2 if search.sampler in PARETO_SAMPLERS else 1),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        journal.set_metric_names(_metric_names(study)[: len(journal.directions)])
    return journal


def _metric_names(study: StudySpec) -> list[str]:
    """Return one name per objective value, which Optuna's own tools show."""
    objective, metric = study.objective, study.objective.judged_by
    if objective.kind != BUDGET:
        return [
            "log seconds to target, on the fastest placement",
            "log worker-seconds to target, on the cheapest placement",
        ]
    name = f"1 - {metric.name}" if metric.is_share else f"score by {metric.name}"
    return [name, f"{name}, weighted by workers"]


def real_trials(journal: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that ran or are running, without rejected proposals."""
    return [
        trial
        for trial in journal.get_trials(deepcopy=False)
        if NOT_RUN not in trial.user_attrs and trial.state != TrialState.WAITING
    ]


def key_of(params: dict[str, Any]) -> str:
    """Return a string that identifies a set of Optuna parameters.

    Values are rounded, since parameters computed from a recorded learning rate are not exact.
    """
    rounded = {k: f"{v:.9g}" if isinstance(v, float) else v for k, v in params.items()}
    return repr(sorted(rounded.items()))


def restore(
    journal: optuna.Study,
    runs: Mapping[str, RunRecord],
    unfinished: Mapping[str, RunSpec],
    study: StudySpec,
    space: Space,
    feedback: Feedback,
    firsts: Mapping[str, RunSpec],
) -> None:
    """Add the trials of earlier sessions to an empty Optuna study.

    Finished trials are added with their results. Interrupted trials are enqueued, except those of
    `search.first`, which the proposer suggests again.

    Args:
        journal: The Optuna study.
        runs: Records of earlier sessions by run name.
        unfinished: Run specs by name of trials that have no record, because their driver was
            killed.
        study: The study.
        space: The sampled space.
        feedback: Converts records to the states and values reported to Optuna.
        firsts: Run specs of `search.first` by key.
    """
    distribution_of, widen = distributions(space), study.search.widen
    trials = {name: record for name, record in runs.items() if record.role == Role.TRIAL}
    specs = {name: record.spec for name, record in trials.items()} | dict(unfinished)
    for name, spec in specs.items():
        record = trials.get(name)
        params = params_of(spec, study, space, widen=widen)
        first = _matching_first(name, spec, record, firsts)
        if record is None or name in unfinished or record.runs_again:
            if first is None and params:
                queued = {TRIAL: name, PLACEMENT: speed_values(spec.placement), SEED: spec.seed}
                journal.enqueue_trial(params, user_attrs=queued)
        elif first is not None or params:
            answer = feedback.answer(record) if params else Answer(TrialState.FAIL)
            attributes = {TRIAL: name, "spec": spec.document()}
            attributes |= {} if first is None else {FIRST: first}
            attributes |= shown_attributes(record, label_keys(study.space))
            add_answer(journal, answer, params or {}, distribution_of, attributes)


def _matching_first(
    name: str, spec: RunSpec, record: RunRecord | None, firsts: Mapping[str, RunSpec]
) -> str | None:
    """Return which configuration of `search.first` a trial ran, as its key in `firsts`; None if it
    ran none of them.

    A reference run that counts as a trial matches too, if it reached the target.
    """
    judged = {"objective": spec.objective, EVAL_INTERVAL: spec.eval_every_samples}
    if name.startswith("reference") and record is not None and record.time_to_target_s is not None:
        judged["seed"] = spec.seed
    for given, first in firsts.items():
        if first.model_copy(update=judged) == spec:
            return given
    return None


def add_answer(
    journal: optuna.Study,
    answer: Answer,
    params: dict[str, Any],
    distribution_of: Mapping[str, BaseDistribution],
    attributes: dict[str, Any],
) -> None:
    """Add a finished trial to an Optuna study.

    Args:
        journal: The Optuna study.
        answer: State and values of the trial.
        params: Parameters of the trial.
        distribution_of: Distribution by parameter; it is widened if the value lies outside.
        attributes: User attributes of the trial.
    """
    reports = None
    if answer.step is not None and answer.values is not None:
        reports = {answer.step: answer.values[0]}
    journal.add_trial(
        create_trial(
            state=answer.state,
            params=params,
            distributions={
                name: _wide_enough(distribution_of[name], at) for name, at in params.items()
            },
            values=answer.values,
            intermediate_values=reports,
            user_attrs=attributes,
        )
    )


def _wide_enough(distribution: BaseDistribution, value: Any) -> BaseDistribution:
    if not isinstance(distribution, FloatDistribution):
        return distribution
    low, high = min(distribution.low, value), max(distribution.high, value)
    return FloatDistribution(low, high, log=distribution.log)
