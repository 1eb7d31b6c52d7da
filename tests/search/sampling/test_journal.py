"""A long search: what Optuna is shown of it, and what is kept beside Optuna, are the same."""

import random
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from raybench.search.sampling.optuna_study import NUM_BEST, Journal


def played(path: Path, *, num_modelled: int = 1000) -> optuna.Study:
    """A study of 60 trials: complete, pruned, failed, running and waiting ones."""
    journal = Journal(path, "one", num_modelled=num_modelled)
    study = optuna.create_study(storage=journal, study_name="one", load_if_exists=True)
    draw = random.Random(0)
    for number in range(60):
        trial = study.ask()
        trial.suggest_float("rate", 1e-4, 1.0, log=True)
        trial.set_user_attr("trial", f"{number:04d}")
        if number % 3 == 0:
            study.tell(trial, draw.random())
        elif number % 3 == 1:
            trial.report(draw.random(), step=number)
            study.tell(trial, state=TrialState.PRUNED)
        elif number % 2:
            study.tell(trial, state=TrialState.FAIL)
    study.enqueue_trial({"rate": 0.1})
    return study


@pytest.mark.parametrize("states", [None, (TrialState.WAITING,), (TrialState.COMPLETE,)])
def test_trials_are_those_of_optunas_own_storage(
    tmp_path: Path, states: tuple[TrialState, ...] | None
) -> None:
    study, path = played(tmp_path / "log"), tmp_path / "log"
    own = optuna.load_study(
        study_name="one", storage=JournalStorage(JournalFileBackend(str(path)))
    ).get_trials(states=states)
    assert study.get_trials(states=states) == own
    again = optuna.load_study(study_name="one", storage=Journal(path, "one", num_modelled=9))
    assert again.get_trials(states=states) == own


def test_a_model_is_of_the_best_the_latest_and_those_that_run(tmp_path: Path) -> None:
    journal = played(tmp_path / "log", num_modelled=4)._storage
    assert isinstance(journal, Journal)
    study_id = journal.get_study_id_from_name("one")
    every = journal.get_all_trials(study_id, deepcopy=False)
    with journal.modelled():
        shown = {one.number for one in journal.get_all_trials(study_id, deepcopy=False)}
    by_value = sorted((t.values[0], t.number) for t in every if t.state == TrialState.COMPLETE)
    pruned = [one.number for one in every if one.state == TrialState.PRUNED]
    running = {one.number for one in every if one.state in (TrialState.RUNNING, TrialState.WAITING)}
    best = {number for _, number in by_value[:NUM_BEST]} | set(sorted(pruned)[-NUM_BEST:])
    assert shown == running | best | {54, 55, 57, 58}
    assert len(journal.get_all_trials(study_id, deepcopy=False)) == len(every)
