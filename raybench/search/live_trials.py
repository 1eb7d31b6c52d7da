"""Running trials of a search: record and show them, and pass their results to the search.

Ray Tune reports the same event through several hooks, in any order. Each evaluation and each end of
a trial is nevertheless processed only once.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from raybench.runs.lifecycle import RunLifecycle, RunRecorder
from raybench.search.confirm_budget import ConfirmBudget
from raybench.search.search import Search
from raybench.spec.errors import ErrorCode, StudyError, UserError
from raybench.spec.own_loop import OTHER_KEYS, UNREPORTED
from raybench.spec.run import RunSpec
from raybench.stats.record import RunOutcome, StopReason

LOST = "the trial's own process was lost"
HOPELESS = 3
"""The search ends with an error if its first HOPELESS trials fail with the same message before
training."""
BATCH_STATISTICS = (
    "The model has batch normalization over each worker's own samples, so what it learns depends "
    "on the batch per worker too, and predictions (~) for other worker counts are rough. "
    "--set search.factorise=false --fresh samples the worker count like all other keys."
)


@dataclass
class _Running:
    """A trial that runs or waits for its workers."""

    run: RunLifecycle
    reason: StopReason | None = None
    """Why the search stops the trial early; None while it continues."""
    num_judged: int = 0


class LiveTrials:
    """Receives the events of the running trials from Ray Tune's hooks, and processes each once.

    Args:
        search: Proposes and stops the trials.
        recorder: Records and shows the trials.
        confirm_budget: Estimates the time of the confirmation from the records of the trials.
        release: Releases the workers of a trial that the driver ends; returns the largest number of
            other runs that had workers at the same time.
        on_begun: Called before each trial starts.
        has_trained: Whether a trial of an earlier session has trained.
    """

    def __init__(
        self,
        search: Search,
        recorder: RunRecorder,
        *,
        confirm_budget: ConfirmBudget,
        release: Callable[[str], int],
        on_begun: Callable[[], None] = lambda: None,
        has_trained: bool = False,
    ) -> None:
        self._search, self._recorder = search, recorder
        self._deadline, self._progress = recorder.deadline, recorder.progress
        self._confirm_budget, self._release, self._on_begun = confirm_budget, release, on_begun
        self._running: dict[str, _Running] = {}
        self._may_warn = search.placer is not None
        self._has_trained = has_trained
        """Whether any trial of this study has trained."""
        self._causes: list[str] = []
        """Error messages, without digits, of the trials that failed before any trial had
        trained."""
        self._running_at_failure: set[str] = set()
        """Names of the trials that were running when the first trial failed before training."""
        self.ended_by: StopReason | None = None
        """Why the search ended before it had run all its trials; None if it has not."""

    def __getstate__(self) -> dict[str, object]:
        """Return an empty state for Ray Tune to save, because the study is saved in its records."""
        return {}

    def next(self) -> tuple[str, RunSpec] | None:
        """Return the name and run spec of the next trial; None if no trial can start now.

        An interrupted trial resumes from its checkpoint; its evaluations up to the checkpoint are
        recorded again.
        """
        self.ended_by = self.ended_by or self._deadline.reason()
        suggested = None if self.ended_by else self._search.suggest()
        if suggested is not None:
            self._on_begun()
            name, spec = suggested
            run = RunLifecycle(self._recorder, name, spec, "trial")
            run.resume()
            self._running[name] = _Running(run)
        return suggested

    def started(self, name: str) -> None:
        """Show that a trial is waiting for its workers."""
        self._progress.started(name, self._running[name].run.spec)

    def seen(self, name: str, outcome: RunOutcome) -> None:
        """Record the newest evaluation of a trial, and save its checkpoint."""
        if (running := self._running.get(name)) is None:
            return  # the trial has ended
        if self._may_warn and outcome.batch_statistics:
            self._may_warn = False
            self._progress.say(BATCH_STATISTICS)
        running.run.take(outcome)

    def must_stop(self, name: str, outcome: RunOutcome) -> bool:
        """Record a trial's newest evaluation, and return whether the trial must stop now.

        It must stop if it is unlikely to win, or if the time of the study is over.
        """
        self.seen(name, outcome)
        run = self._running.get(name)
        if run is None or self._deadline.over:
            return True
        if outcome.evaluation is None or outcome.is_over:
            return False
        number = outcome.evaluation.index + 1
        if run.reason is None and run.num_judged < number:
            run.num_judged = number
            run.reason = self._search.on_result(name, outcome).stop
        return run.reason is not None

    def ended(self, name: str, *, is_lost: bool = False, error: str = "") -> None:
        """Record the end of a trial, and pass its result to the search.

        Args:
            name: Name of the trial.
            is_lost: Whether its Tune actor died.
            error: Traceback of an exception in its Tune actor.
        """
        running = self._running.pop(name, None)
        if running is None:
            return
        run = running.run
        outcome = run.outcome
        if is_lost:
            outcome = replace(outcome, failure="worker_lost", message=LOST)
        elif error:
            message = error.strip().splitlines()[-1]
            outcome = replace(outcome, failure="error", message=message, traceback=error)
        if is_lost or error or not outcome.is_over:
            outcome = replace(outcome, concurrent=self._release(name))
        run.outcome = outcome
        if (fault := self._fatal_error(outcome)) is not None:
            self._deadline.ends_with(fault)
        record = run.end(stopped_by=running.reason or self._deadline.reason() or "scheduler")
        self._search.on_end(record)
        self._confirm_budget.add(record)
        self._deadline.reserve_s = self._confirm_budget.reserve_s()
        self._progress.state.after_s = self._confirm_budget.confirming_s()
        self._progress.finished(record)

    def _fatal_error(self, outcome: RunOutcome) -> StudyError | UserError | None:
        """Return the error that ends the search after a trial; None if the search may continue.

        Only failures before any trial has trained can end the search: an error that every
        configuration would have, or the same error in all of the first HOPELESS trials.
        """
        if outcome.evaluation is not None:
            self._has_trained = True
        if self._has_trained or outcome.failure not in ("error", "timeout", "worker_lost"):
            return None
        if (message := outcome.message or "").startswith(UNREPORTED) and OTHER_KEYS in message:
            return UserError(outcome.message or "", ErrorCode.COMMAND)
        if not self._causes:
            self._running_at_failure = set(self._running)
        self._causes.append(re.sub(r" on rank \d+|\d+", "", outcome.message or ""))
        may_yet_train = self._running_at_failure & self._running.keys()
        if len(self._causes) < HOPELESS or len(set(self._causes)) > 1 or may_yet_train:
            return None
        why = (outcome.message or "").removesuffix(".")
        return StudyError(
            f"the first {HOPELESS} trials all failed before they trained ({why}); fix the cause, "
            "then rerun the same command to resume."
        )
