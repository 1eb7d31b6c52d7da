"""Optuna's journal of a study: opening it, and which of its trials count."""

from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from raybench.core.study import StudySpec
from raybench.search.samplers import PARETO_SAMPLERS, build_sampler

JOURNAL_FILE = "optuna.log"
NOT_RUN = "not_run"
"""User attribute of Optuna trials that are not trials of the study, with the reason."""
WOULD_FAIL = "would fail"
DUPLICATE = "duplicate"
INTERRUPTED = "interrupted"
EARLIER_STUDY = "of an earlier study"


def open_study(study: StudySpec, folder: Path) -> optuna.Study:
    """Open the folder's Optuna study, or make it."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = study.search
    found = optuna.create_study(
        study_name="raybench",
        storage=JournalStorage(JournalFileBackend(str(folder / JOURNAL_FILE))),
        directions=["minimize"] * (2 if search.sampler in PARETO_SAMPLERS else 1),
        load_if_exists=True,
    )
    found.sampler = build_sampler(
        search.sampler, seed=search.seed, num_earlier=len(found.get_trials(deepcopy=False))
    )
    return found


def real_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that ran or run, without rejected draws and interrupted runs."""
    return [
        trial
        for trial in study.get_trials(deepcopy=False)
        if NOT_RUN not in trial.user_attrs and trial.state != TrialState.WAITING
    ]


def key_of(params: dict[str, Any]) -> str:
    """Return the same text for the same parameters."""
    return repr(sorted(params.items()))
