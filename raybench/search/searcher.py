"""The bridge between Ray Tune and Optuna: ask for a configuration, tell what it scored.

Ray's own `OptunaSearch` tells Optuna that a trial stopped early is complete, with its
truncated accuracy. Here a stopped trial is PRUNED with its score so far, a run out of memory
or into NaN is told with the worst score, and the journal file is the truth on resume.
"""

import itertools
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from ray.tune.search import Searcher

from raybench.core.score import worst_score
from raybench.core.space import Space, num_configurations
from raybench.core.study import StudySpec
from raybench.search.avoid import Failures
from raybench.search.control import Control
from raybench.search.factor import Split, split_of
from raybench.search.opaque import unwrap
from raybench.search.priors import priors
from raybench.search.propose import encode, propose
from raybench.search.samplers import build_sampler
from raybench.search.speed import Speed

JOURNAL_FILE = "optuna.log"
NOT_RUN = "not_run"
"""User attribute of Optuna trials that are not trials of the study, with the reason."""
WOULD_FAIL = "would fail"
REDRAWS = 20
"""Draws to find a configuration not yet tried, before a repetition is accepted."""
STARTUP_TRIALS = 10
"""Trials before TPE begins to model; every other one of them is a prior."""


class StudySearcher(Searcher):
    """Proposes run specs to Ray Tune until the study has its number of trials.

    `recorded` holds the run records of earlier sessions by trial. A record is written before
    Optuna is told, so a driver killed in between leaves a trial that ended and is still open
    in the journal: it is told on the next start.
    """

    def __init__(
        self,
        study: StudySpec,
        space: Space,
        folder: Path,
        control: Control,
        recorded: dict[str, dict[str, Any]] | None = None,
        speed: Speed | None = None,
    ) -> None:
        super().__init__(metric="score", mode="min")
        self._spec, self._control, self._speed = study, control, speed
        self._space = space if speed is None else speed.factors.sampled
        self.optuna_study = open_study(study, folder)
        self._open: dict[str, optuna.Trial] = {}
        self._ended: dict[str, tuple[dict[str, Any], bool]] = {}
        self._untold: list[_Ended] = []
        self._failures = Failures()
        self._learn_speed(recorded or {})
        self._close_open(recorded or {})
        for trial in real_trials(self.optuna_study):
            if "failure" in trial.user_attrs:
                self._failures.add(trial.user_attrs["failure"], trial.user_attrs["spec"])

    @property
    def num_finished(self) -> int:
        """Trials that need not run again."""
        return sum(trial.state.is_finished() for trial in real_trials(self.optuna_study))

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next configuration for Tune, or that there is none."""
        if self._control.over or len(real_trials(self.optuna_study)) >= self._spec.search.trials:
            return str(Searcher.FINISHED)
        self._tell_ended()
        trial, spec = self._draw()
        self._open[trial_id] = trial
        trial.set_user_attr("spec", spec)
        return {"trial": trial.user_attrs["trial"], "spec": spec}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Give Optuna the score so far; milliseconds of training are the step."""
        trial = self._open.get(trial_id)
        if trial is not None:
            self._observe(trial, unwrap(result))
            self._report(trial, unwrap(result))

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
        self._observe(trial, result)
        if self._speed is not None:
            self._speed.forget(trial.user_attrs["trial"])
        failure = "worker_lost" if error else result.get("failure")
        if failure is None and result.get("stop") is None:
            self._report(trial, result)
        reached = (result.get("evaluation") or {}).get("time_to_target_s") is not None
        self._untold.append(
            _Ended(trial, failure, result.get("stop"), result.get("score"), reached)
        )
        self._tell_ended()

    def tell_all(self) -> None:
        """Tell Optuna the trials that still waited for their other splits' speed."""
        for ended in self._untold:
            self._tell(ended)
        self._untold.clear()

    def _tell_ended(self) -> None:
        """Tell what can be told: a time to the target counts on the configuration's fastest
        split, so it waits until the first trials, the probes, have told how fast those are."""
        is_early = len(real_trials(self.optuna_study)) <= STARTUP_TRIALS
        waiting = []
        for ended in self._untold:
            is_known = self._speed is None or self._speed.is_known(ended.trial.user_attrs["spec"])
            if is_early and ended.reached and not is_known:
                waiting.append(ended)
            else:
                self._tell(ended)
        self._untold = waiting

    def _tell(self, ended: "_Ended") -> None:
        """End a trial that failed, was stopped from outside (`stop` None), or ended by itself."""
        trial, failure, stop, score = ended.trial, ended.failure, ended.stop, ended.score
        if failure == "worker_lost":
            # The machine's fault: it says nothing about the configuration.
            self.optuna_study.tell(trial, state=TrialState.FAIL)
        elif failure is not None:
            trial.set_user_attr("failure", failure)
            self._failures.add(failure, trial.user_attrs["spec"])
            self.optuna_study.tell(trial, worst_score(self._spec.objective))
        elif stop is None:
            self.optuna_study.tell(trial, state=TrialState.PRUNED)
        else:
            if ended.reached and self._speed is not None and score is not None:
                score += math.log(self._speed.to_fastest(trial.user_attrs["spec"]))
            self.optuna_study.tell(trial, score)

    def _observe(self, trial: optuna.Trial, result: dict[str, Any]) -> None:
        """Learn the speed of a trial, also where no scheduler did."""
        evaluation = result.get("evaluation")
        if self._speed is not None and evaluation:
            totals = {key: evaluation[key] for key in ("samples", "train_s")}
            name, spec = (trial.user_attrs[key] for key in ("trial", "spec"))
            self._speed.observe(name, spec, **totals)

    def _learn_speed(self, recorded: dict[str, dict[str, Any]]) -> None:
        if self._speed is not None:
            for name, record in recorded.items():
                totals = {"samples": record["samples"], "train_s": record["ledger"]["train"]}
                self._speed.observe(name, record["spec"], **totals)

    def _close_open(self, recorded: dict[str, dict[str, Any]]) -> None:
        """Tell the trials that have ended, propose the others again."""
        for frozen in self.optuna_study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            trial = optuna.Trial(self.optuna_study, frozen._trial_id)
            record = recorded.get(frozen.user_attrs.get("trial", ""))
            if record is None or record["stop"] == "interrupted":
                # First of all enqueued: killed in between, it is at worst a duplicate.
                again = (
                    {"split": frozen.user_attrs["split"]} if "split" in frozen.user_attrs else {}
                )
                self.optuna_study.enqueue_trial(frozen.params, user_attrs=again)
                trial.set_user_attr(NOT_RUN, "interrupted")
                self.optuna_study.tell(trial, state=TrialState.FAIL)
                continue
            stop = record["stop"] if record["state"] == "complete" else None
            if not frozen.intermediate_values:
                trial.report(record["score"], step=int(1000 * record["ledger"]["train"]))
            reached = record["time_to_target_s"] is not None
            self._tell(_Ended(trial, record["failure"], stop, record["score"], reached))

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
        """Ask until the configuration is new (TPE repeats itself in discrete spaces) and not
        one that would fail as an earlier one has; return its run spec with it."""
        earlier = real_trials(self.optuna_study)
        tried = {_key(trial.params) for trial in earlier}
        self._enqueue_prior(earlier)
        size = num_configurations(self._space)
        redraws = 0 if size is not None and len(tried) >= size else REDRAWS
        for attempt in range(redraws + 1):
            trial = self.optuna_study.ask()
            values = propose(trial, self._space, self._spec.fixed)
            options = [spec for spec in self._specs(values) if not self._failures.forbid(spec)]
            reason = None
            if not options:
                reason = WOULD_FAIL
            elif _key(trial.params) in tried:
                reason = "duplicate"
            if reason is None or attempt == redraws:
                break
            trial.set_user_attr(NOT_RUN, reason)
            if reason == WOULD_FAIL:  # the sampler learns it as if it had
                self.optuna_study.tell(trial, worst_score(self._spec.objective))
            else:
                self.optuna_study.tell(trial, state=TrialState.FAIL)
        # The lowest free name: a trial that was interrupted comes back under its own.
        names = {earlier_trial.user_attrs.get("trial") for earlier_trial in earlier}
        name = next(name for number in itertools.count() if (name := f"{number:04d}") not in names)
        trial.set_user_attr("trial", name)
        spec = self._choose(trial, values, options or self._specs(values))
        return trial, spec

    def _specs(self, values: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the run specs a proposal can be run as, one for every split."""
        if self._speed is None:
            return [self._spec.run_spec(values).document()]
        factors = self._speed.factors
        ways = [factors.specify(values, split) for split in factors.splits(values)]
        return [self._spec.run_spec(way).document() for way in ways]

    def _choose(
        self, trial: optuna.Trial, values: dict[str, Any], specs: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the run spec to run, on the split that an interrupted trial had before."""
        if self._speed is None:
            return specs[0]
        by_split = {split_of(spec): spec for spec in specs}
        if "split" in trial.user_attrs and Split(**trial.user_attrs["split"]) in by_split:
            return by_split[Split(**trial.user_attrs["split"])]
        name = trial.user_attrs["trial"]
        chosen = self._speed.choose(name, specs[0]["optimizer"], list(by_split))
        trial.set_user_attr("split", chosen.values())
        return by_split[chosen]

    def _enqueue_prior(self, earlier: list[optuna.trial.FrozenTrial]) -> None:
        """Let every other start-up trial be an optimizer's usual rate, while these do well."""
        count = len(earlier)
        if not self._spec.search.priors or count >= STARTUP_TRIALS or count % 2:
            return
        if self.optuna_study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            return  # interrupted trials come first
        known = priors(self._space, self._spec.fixed)
        everything = self.optuna_study.get_trials(deepcopy=False)
        num_used = sum("prior" in trial.user_attrs for trial in everything)
        ran = {trial.number for trial in earlier if "prior" in trial.user_attrs}
        if num_used < len(known) and not _in_bottom_half(ran, self._scores(earlier)):
            params = encode(self._space, self._spec.fixed, known[num_used])
            self.optuna_study.enqueue_trial(params, user_attrs={"prior": True})

    def _scores(self, earlier: list[optuna.trial.FrozenTrial]) -> dict[int, float]:
        """Return the score of every trial that ended, by number, told or not."""
        ended = (TrialState.COMPLETE, TrialState.PRUNED)
        told = {t.number: t.value for t in earlier if t.state in ended and t.value is not None}
        waiting = {e.trial.number: e.score for e in self._untold if e.score is not None}
        return told | waiting


@dataclass(frozen=True)
class _Ended:
    """A trial that ended and is not yet told."""

    trial: optuna.Trial
    failure: str | None
    stop: str | None
    score: float | None
    reached: bool


def open_study(study: StudySpec, folder: Path) -> optuna.Study:
    """Open the folder's Optuna study, or make it."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found = optuna.create_study(
        study_name="raybench",
        storage=JournalStorage(JournalFileBackend(str(folder / JOURNAL_FILE))),
        direction="minimize",
        load_if_exists=True,
    )
    search = study.search
    found.sampler = build_sampler(
        search.sampler, seed=search.seed, num_earlier=len(found.get_trials(deepcopy=False))
    )
    return found


def real_trials(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Return the trials that ran or run, without rejected draws and interrupted runs."""
    return [
        trial
        for trial in study.get_trials(deepcopy=False)
        if NOT_RUN not in trial.user_attrs and trial.state != TrialState.WAITING
    ]


def _in_bottom_half(some: set[int], scores: dict[int, float]) -> bool:
    """Whether the median of some trials' scores lies in the worse half of all (four at least)."""
    own = [score for number, score in scores.items() if number in some]
    if len(scores) < 4 or not own:
        return False
    return statistics.median(own) > statistics.median(scores.values())


def _key(params: dict[str, Any]) -> str:
    return repr(sorted(params.items()))
