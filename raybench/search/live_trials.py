"""Running trials of a search: record and show them, and pass their results to the search.

Ray Tune reports the same event through several hooks, in any order. Each evaluation and each end of
a trial is nevertheless processed only once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from raybench.runs.lifecycle import RunLifecycle, RunRecorder
from raybench.search.confirm_budget import ConfirmBudget
from raybench.search.search import Search
from raybench.spec.objective import StopReason
from raybench.spec.run import RunSpec
from raybench.stats.record import Failure, Role, RunOutcome

LOST = "the trial's own process was lost"
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
    """

    def __init__(
        self,
        search: Search,
        recorder: RunRecorder,
        *,
        confirm_budget: ConfirmBudget,
        release: Callable[[str], int],
        on_begun: Callable[[], None] = lambda: None,
    ) -> None:
        self._search, self._recorder = search, recorder
        self._deadline, self._progress = recorder.deadline, recorder.progress
        self._confirm_budget, self._release, self._on_begun = confirm_budget, release, on_begun
        self._running: dict[str, _Running] = {}
        self._may_warn = search.placer is not None
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
            run = RunLifecycle(self._recorder, name, spec, Role.TRIAL)
            run.resume()
            self._running[name] = _Running(run)
        return suggested

    def started(self, name: str) -> None:
        """Show that a trial is waiting for its workers."""
        self._progress.started(name, self._running[name].run.spec)

    def observe(self, name: str, outcome: RunOutcome) -> None:
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
        self.observe(name, outcome)
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
            outcome = replace(outcome, failure=Failure.WORKER_LOST, message=LOST)
        elif error:
            message = error.strip().splitlines()[-1]
            outcome = replace(outcome, failure=Failure.ERROR, message=message, traceback=error)
        if is_lost or error or not outcome.is_over:
            outcome = replace(outcome, concurrent=self._release(name))
        run.outcome = outcome
        record = run.end(
            stopped_by=running.reason or self._deadline.reason() or StopReason.SCHEDULER
        )
        self._search.on_end(record)
        self._confirm_budget.add(record)
        self._deadline.reserve(self._confirm_budget.reserve_s())
        self._progress.expect_after(self._confirm_budget.confirming_s())
        self._progress.finished(record)
