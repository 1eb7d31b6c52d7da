"""The bridge between Ray Tune and Optuna: ask for a configuration, tell what it scored.

Ray's own `OptunaSearch` tells Optuna that a trial stopped early is complete, with its
truncated accuracy. Here a stopped trial is PRUNED with its score so far, a run out of memory
or into NaN is told with the worst score, and the journal file is the truth on resume.
"""

import itertools
import warnings
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from ray.tune.search import Searcher

from raybench.core.score import worst_score
from raybench.core.space import Space
from raybench.core.study import StudySpec
from raybench.search.control import Control
from raybench.search.opaque import unwrap
from raybench.search.propose import propose

JOURNAL_FILE = "optuna.log"
NOT_RUN = "not_run"
"""User attribute of Optuna trials that are not trials of the study, with the reason."""
REDRAWS = 20
"""Draws to find a configuration not yet tried, before a repetition is accepted."""


class StudySearcher(Searcher):
    """Proposes run specs to Ray Tune until the study has its number of trials."""

    def __init__(self, study: StudySpec, space: Space, folder: Path, control: Control) -> None:
        super().__init__(metric="score", mode="min")
        self._spec, self._space, self._control = study, space, control
        self.optuna_study = open_study(study, folder)
        self.num_requeued = requeue_interrupted(self.optuna_study)
        self._open: dict[str, optuna.Trial] = {}

    @property
    def num_finished(self) -> int:
        """Trials that need not run again."""
        return sum(trial.state.is_finished() for trial in real_trials(self.optuna_study))

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next configuration for Tune, or that there is none."""
        if self._control.over or len(real_trials(self.optuna_study)) >= self._spec.search.trials:
            return str(Searcher.FINISHED)
        trial, values = self._draw()
        self._open[trial_id] = trial
        return {
            "trial": trial.user_attrs["trial"],
            "spec": self._spec.run_spec(values).document(),
        }

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Give Optuna the score so far; milliseconds of training are the step."""
        trial = self._open.get(trial_id)
        if trial is not None:
            self._report(trial, unwrap(result))

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell Optuna how the trial ended; an interrupted one stays open, to be run again."""
        result = unwrap(result)
        failure = result.get("failure")
        trial = self._open.pop(trial_id, None)
        if trial is None or self._control.interrupted:
            return
        if error or failure == "worker_lost":
            # The machine's fault: it says nothing about the configuration.
            self.optuna_study.tell(trial, state=TrialState.FAIL)
        elif failure is not None:
            trial.set_user_attr("failure", failure)
            self.optuna_study.tell(trial, worst_score(self._spec.objective))
        elif result.get("stop") is None:
            self._report(trial, result)
            self.optuna_study.tell(trial, state=TrialState.PRUNED)
        else:
            self.optuna_study.tell(trial, result["score"])

    def __getstate__(self) -> dict[str, Any]:
        """Give Tune nothing to pickle: the journal holds the study."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the journal holds the study."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing: the journal holds the study."""

    @staticmethod
    def _report(trial: optuna.Trial, result: dict[str, Any]) -> None:
        if "score" in result:
            trial.report(result["score"], step=int(1000 * result["train_s"]))

    def _draw(self) -> tuple[optuna.Trial, dict[str, Any]]:
        """Ask until the configuration is new; TPE repeats itself in discrete spaces."""
        earlier = real_trials(self.optuna_study)
        tried = {_key(trial.params) for trial in earlier}
        for attempt in range(REDRAWS):
            trial = self.optuna_study.ask()
            values = propose(trial, self._space, self._spec.fixed)
            if _key(trial.params) not in tried or attempt == REDRAWS - 1:
                break
            trial.set_user_attr(NOT_RUN, "duplicate")
            self.optuna_study.tell(trial, state=TrialState.FAIL)
        # The lowest free name: a trial that was interrupted comes back under its own.
        names = {earlier_trial.user_attrs.get("trial") for earlier_trial in earlier}
        name = next(name for number in itertools.count() if (name := f"{number:04d}") not in names)
        trial.set_user_attr("trial", name)
        return trial, values


def open_study(study: StudySpec, folder: Path) -> optuna.Study:
    """Open the folder's Optuna study, or make it."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # `group` samples the ranges of different optimizers apart; Optuna marks it experimental.
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    samplers = {
        "tpe": lambda seed: optuna.samplers.TPESampler(
            seed=seed, multivariate=True, group=True, constant_liar=True
        ),
        "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    }
    return optuna.create_study(
        study_name="raybench",
        storage=JournalStorage(JournalFileBackend(str(folder / JOURNAL_FILE))),
        sampler=samplers[study.search.sampler](study.search.seed),
        direction="minimize",
        load_if_exists=True,
    )


def real_trials(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Return the trials that ran or run, without rejected draws and interrupted runs."""
    return [t for t in study.get_trials(deepcopy=False) if NOT_RUN not in t.user_attrs]


def requeue_interrupted(study: optuna.Study) -> int:
    """Propose again what was running when the study was interrupted; return how many."""
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    for frozen in running:
        trial = optuna.Trial(study, frozen._trial_id)
        trial.set_user_attr(NOT_RUN, "interrupted")
        study.tell(frozen.number, state=TrialState.FAIL)
        study.enqueue_trial(frozen.params)
    return len(running)


def _key(params: dict[str, Any]) -> str:
    return repr(sorted(params.items()))
