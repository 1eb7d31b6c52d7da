"""Optuna's journal of a study: opening it, and which of its trials count."""

from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from raybench.core.study import StudySpec
from raybench.results.store import mend_last_line
from raybench.search.sampling.samplers import PARETO_SAMPLERS, build_sampler

JOURNAL_FILE = "optuna.log"
NOT_RUN = "not_run"
"""User attribute of Optuna trials that are not trials of the study, with the reason."""
WOULD_FAIL = "would fail"
DUPLICATE = "duplicate"
INTERRUPTED = "interrupted"
EARLIER_STUDY = "of an earlier study"


def open_study(study: StudySpec, folder: Path) -> optuna.Study:
    """Open the folder's Optuna study, or make it; whoever calls holds the folder's lock.

    A torn last line, as a full disk leaves it, is cut. A journal that is damaged otherwise is put
    aside, and begun anew: what it held is told again from the records (`restore.py`).
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
        search.sampler, seed=search.seed, num_earlier=len(found.get_trials(deepcopy=False))
    )
    return found


def _open(study: StudySpec, path: Path) -> optuna.Study:
    return optuna.create_study(
        study_name="raybench",
        storage=JournalStorage(JournalFileBackend(str(path))),
        directions=["minimize"] * (2 if study.search.sampler in PARETO_SAMPLERS else 1),
        load_if_exists=True,
    )


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
