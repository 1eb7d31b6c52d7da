"""Writes a search's records: Tune tells it of every evaluation and of every trial's end."""

from typing import Any

import ray
from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from raybench.core.errors import StudyError
from raybench.core.outcome import run_record
from raybench.core.record import Evaluation
from raybench.core.objective import Objective
from raybench.results.errors import keep_error
from raybench.results.progress import Progress
from raybench.results.store import Store
from raybench.results.tables import BATCH_STATISTICS
from raybench.search.pipeline.confirm_budget import ConfirmBudget
from raybench.search.pipeline.deadline import Deadline
from raybench.search.ray_tune.opaque import unwrap
from raybench.search.ray_tune.scheduler import TimeRungs
from raybench.search.ray_tune.searcher import StudySearcher


class Recorder(Callback):  # type: ignore[misc, unused-ignore]
    """Runs in the driver, which alone writes the results folder."""

    def __init__(
        self,
        store: Store,
        objective: Objective,
        hub: Any,
        control: Deadline,
        screen: Progress,
        scheduler: TrialScheduler,
        searcher: StudySearcher,
        *,
        allowance: ConfirmBudget,
        is_factorised: bool,
        keep_groups: bool,
    ) -> None:
        self._store, self._objective, self._hub = store, objective, hub
        self._control, self._screen = control, screen
        self._scheduler, self._searcher = scheduler, searcher
        self._last: dict[str, dict[str, Any]] = {}
        self._may_warn = is_factorised
        self._keep_groups, self._allowance = keep_groups, allowance

    def __getstate__(self) -> dict[str, Any]:
        """Give Tune nothing to pickle: its saved state is not used, the records are."""
        return {}

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Once the search is over, let nobody wait for workers any more."""
        if self._control.over:
            self._hub.stop_waiting.remote()

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Show the trial."""
        self._screen.started(trial.config["trial"], trial.config["spec"])

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Write the evaluation."""
        name, result = trial.config["trial"], unwrap(result)
        # A failure's result has no evaluation: what was known before it stays.
        self._last[name] = self._last.get(name, {}) | result
        if self._may_warn and result.get("batch_statistics"):
            self._may_warn = False  # once is enough
            self._screen.say(BATCH_STATISTICS)
        if "evaluation" in result:
            evaluation = Evaluation(**result["evaluation"])
            self._append(evaluation.line(name))
            self._screen.evaluated(name, evaluation)

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Write the run's record, and give its workers back if Tune stopped it."""
        name = trial.config["trial"]
        result = self._last.pop(name, {})
        if not (result.get("stop") or result.get("failure")):
            # Stopped from outside: its group still waits for the next command.
            result["concurrent"] = self._release(name)
        self._write(trial, result)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Write the record of a trial whose Tune actor was lost."""
        name = trial.config["trial"]
        self._release(name)
        result = self._last.pop(name, {}) | {
            "failure": "worker_lost",
            "message": "the trial's own process was lost",
        }
        self._write(trial, result)

    def _release(self, name: str) -> int:
        concurrent: int = ray.get(
            self._hub.release.remote(name, keep=self._keep_groups, for_good=True)
        )
        return concurrent

    def _write(self, trial: Trial, result: dict[str, Any]) -> None:
        name = trial.config["trial"]
        stop = self._control.reason()
        if stop is None and isinstance(self._scheduler, TimeRungs):
            stop = self._scheduler.reason(name)
        spec = trial.config["spec"]
        if "traceback" in result:
            message = keep_error(self._store, name, result["message"], result["traceback"])
            result = result | {"message": message}
        record = run_record(name, spec, result, self._objective, stop or "scheduler")
        self._append(record.line())
        self._searcher.settle(trial.trial_id)
        self._allowance.add(record)
        self._control.reserve_s = self._allowance.reserve_s()
        self._screen.after_s = self._allowance.confirming_s()
        self._screen.finished(record)

    def _append(self, line: dict[str, Any]) -> None:
        """Write a record; where that fails the study ends, and says why when it has."""
        try:
            self._store.append(line)
        except (OSError, StudyError) as error:
            self._control.fault = self._control.fault or error
