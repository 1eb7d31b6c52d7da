"""The bridge between Ray Tune and Optuna: ask for a configuration, tell what it scored."""

from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState
from ray.tune.search import Searcher

from raybench.core.space import Space
from raybench.core.study import StudySpec
from raybench.results.load import StudyResults
from raybench.search.pipeline.deadline import Deadline
from raybench.search.ray_tune.opaque import unwrap
from raybench.search.sampling.feedback import Ended, Feedback
from raybench.search.sampling.grid import num_trials
from raybench.search.sampling.infeasible import Infeasible
from raybench.search.sampling.optuna_study import (
    EARLIER_STUDY,
    INTERRUPTED,
    NOT_RUN,
    open_study,
    real_trials,
)
from raybench.search.sampling.proposer import STARTUP_TRIALS, Proposer
from raybench.search.sampling.restore import restore
from raybench.search.sampling.transfer import Told, tell_earlier
from raybench.speed.placement import Placer

RECORDED = " (recorded)"
"""Tells the totals of an earlier session's run from those of its rerun."""


class StudySearcher(Searcher):
    """Proposes run specs to Ray Tune until the study has its number of trials.

    `recorded` holds the run records of earlier sessions by trial. A record is written before
    Optuna is told, so a driver killed in between leaves a trial that ended and is still open
    in the journal: it is told on the next start. `speed` is given where the space is taken
    apart; then the sampler's space is that of its factors.
    """

    def __init__(
        self,
        study: StudySpec,
        space: Space,
        folder: Path,
        control: Deadline,
        recorded: dict[str, dict[str, Any]] | None = None,
        speed: Placer | None = None,
    ) -> None:
        super().__init__(metric="score", mode="min")
        self._control, self._speed = control, speed
        sampled = space if speed is None else speed.factors.sampled
        self._study, self._sampled = study, sampled
        self.num_trials = num_trials(study, sampled)
        """Trials of the whole study."""
        self.optuna_study = open_study(study, folder)
        restore(self.optuna_study, recorded or {}, study, sampled)
        self._open: dict[str, optuna.Trial] = {}
        self._ended: dict[str, tuple[dict[str, Any], bool]] = {}
        failures = Infeasible()
        self._endings = Feedback(study, self.optuna_study, failures, speed)
        self._proposals = Proposer(
            study, sampled, self.optuna_study, failures, self._endings, speed
        )
        for trial in real_trials(self.optuna_study):
            if "failure" in trial.user_attrs:
                failures.add(trial.user_attrs["failure"], trial.user_attrs["spec"])
        for name, record in (recorded or {}).items():
            # Not under its own name: what was interrupted runs again from the start, under it.
            seconds = record["ledger"]["train"]
            self._observe(f"{name}{RECORDED}", record["spec"], record["samples"], seconds)
        self._close_open(recorded or {})

    @property
    def num_finished(self) -> int:
        """Trials that need not run again."""
        return sum(trial.state.is_finished() for trial in real_trials(self.optuna_study))

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next configuration for Tune, or that there is none."""
        if self._control.over or len(real_trials(self.optuna_study)) >= self.num_trials:
            return str(Searcher.FINISHED)
        self._endings.tell_known(is_early=self._is_early)
        proposal = self._proposals.next()
        if proposal is None:
            return str(Searcher.FINISHED)
        trial, spec = proposal
        self._open[trial_id] = trial
        return {"trial": trial.user_attrs["trial"], "spec": spec}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Learn an evaluation after which the trial goes on."""
        trial, result = self._open.get(trial_id), unwrap(result)
        if trial is not None:
            self._learn(trial, result)
            self._endings.report(trial, result["score"], result["train_s"])

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Keep how the trial ended, until its record is written."""
        self._ended[trial_id] = unwrap(result), error

    def settle(self, trial_id: str) -> None:
        """Tell Optuna how the trial ended; an interrupted one stays open, to be run again."""
        result, error = self._ended.pop(trial_id)
        trial = self._open.pop(trial_id, None)
        if trial is None or self._control.interrupted:
            return
        self._learn(trial, result)
        if self._speed is not None:
            self._speed.forget(trial.user_attrs["trial"])
        ended = Ended(
            trial,
            failure="worker_lost" if error else result.get("failure"),
            stop=result.get("stop"),
            score=result.get("score"),
            train_s=result.get("train_s", 0.0),
            reached=(result.get("evaluation") or {}).get("time_to_target_s") is not None,
        )
        self._endings.add(ended, is_early=self._is_early)

    def tell_earlier(self, earlier: StudyResults) -> Told | None:
        """Tell Optuna an earlier study's trials, once; None in a session that goes on."""
        trials = self.optuna_study.get_trials(deepcopy=False)
        if any(trial.user_attrs.get(NOT_RUN) == EARLIER_STUDY for trial in trials):
            return None
        return tell_earlier(self.optuna_study, earlier, self._study, self._sampled)

    def tell_all(self) -> None:
        """Tell Optuna the trials that still waited for their other splits' speed."""
        self._endings.tell_known(is_early=False)

    def __getstate__(self) -> dict[str, Any]:
        """Give Tune nothing to pickle: the journal holds the study."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the journal holds the study."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing: the journal holds the study."""

    @property
    def _is_early(self) -> bool:
        return len(real_trials(self.optuna_study)) <= STARTUP_TRIALS

    def _learn(self, trial: optuna.Trial, result: dict[str, Any]) -> None:
        """Learn the speed of a trial, also where no scheduler does."""
        evaluation = result.get("evaluation")
        if evaluation:
            name, spec = (trial.user_attrs[key] for key in ("trial", "spec"))
            self._observe(name, spec, evaluation["samples"], evaluation["train_s"])

    def _observe(self, trial: str, spec: dict[str, Any], samples: int, train_s: float) -> None:
        if self._speed is not None:
            self._speed.observe(trial, spec, samples=samples, train_s=train_s)

    def _close_open(self, recorded: dict[str, dict[str, Any]]) -> None:
        """Tell the trials that have ended, propose the others again."""
        for frozen in self.optuna_study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            trial = optuna.Trial(self.optuna_study, frozen._trial_id)
            record = recorded.get(frozen.user_attrs.get("trial", ""))
            if record is None or record["stop"] == "interrupted":
                # First of all enqueued: killed in between, it is at worst a duplicate.
                kept = {k: v for k, v in frozen.user_attrs.items() if k in ("split", "prior")}
                self.optuna_study.enqueue_trial(frozen.params, user_attrs=kept)
                trial.set_user_attr(NOT_RUN, INTERRUPTED)
                self.optuna_study.tell(trial, state=TrialState.FAIL)
                continue
            ended = Ended(
                trial,
                failure=record["failure"],
                stop=record["stop"] if record["state"] == "complete" else None,
                score=record["score"],
                train_s=record["ledger"]["train"],
                reached=record["time_to_target_s"] is not None,
            )
            self._endings.add(ended, is_early=False)
