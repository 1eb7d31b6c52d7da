"""One run on workers of the pool, seen by the process that asked for it."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ray

from raybench.cluster.protocol import (
    STOPPED,
    Advance,
    Command,
    Finish,
    Finished,
    Lent,
    Progress,
    Reply,
    RunFailed,
    Start,
)
from raybench.core.clock import OTHER, merge_ranks
from raybench.core.outcome import RunOutcome
from raybench.core.record import Evaluation, Role, RunRecord, StopReason
from raybench.core.spec import RunSpec

SLICE_TIMEOUT_S = 600.0
"""A worker that has not reached its next evaluation by then (or within three times the
objective's `max_train_seconds`, if that is longer) is taken for hung."""
NOT_FINITE = "the training loss is not finite"


class RunClient:
    """Trains one run, evaluation by evaluation, on workers that it asks for at the first step.

    `finish` must be called once at the end, whatever happened; `release` takes its place where
    the run is ended from outside.
    """

    def __init__(
        self,
        pool: Any,
        name: str,
        spec: RunSpec,
        *,
        keep: bool = True,
        slice_timeout_s: float | None = None,
    ) -> None:
        self._pool, self._name, self._spec, self._keep = pool, name, spec, keep
        limit = 3 * spec.objective.max_train_seconds
        self._timeout_s = slice_timeout_s or max(SLICE_TIMEOUT_S, limit)
        self._outcome = RunOutcome()
        self._asked: float | None = None
        self._between: float | None = None
        """When the last answer came; the owner's own time runs from there."""
        self._report_s = 0.0
        """Seconds between commands, and of commands and answers on their way."""
        self._lent: Lent | None = None
        self._is_held = False
        """Whether the workers have the run, and wait for its next command."""
        self._worker_ledger: dict[str, float] = {}
        self.weights: bytes | None = None
        """What `finish` was asked to save, of rank 0."""

    def step(self) -> RunOutcome:
        """Train to the next evaluation; the first step waits for workers and builds the run.

        What happens to the run ends it, with its last evaluation kept. Raised is only what is
        wrong with the pool itself.
        """
        try:
            if self._lent is None:
                self._acquire()
                self._progress(Start(spec=self._spec))
            else:
                self._progress(Advance())
        except RunFailed as failure:
            self._fail(failure)
        return self._accounted()

    def finish(self, *, save: bool = False, test: bool = False) -> RunOutcome:
        """End the run and give its workers back.

        With `test` the accuracy on the test split is measured, with `save` the `weights` are
        kept; a run that has failed has neither. Unless one of them is wanted, workers that fail
        now take nothing from the run: the pool replaces them.
        """
        if self._is_held:
            has_failed = self._outcome.failure is not None
            command = Finish(save=save and not has_failed, test=test and not has_failed)
            try:
                self._end(command)
            except RunFailed as failure:
                if command.save or command.test:
                    self._fail(failure)
        outcome = self._accounted()
        reference = self._pool.release.remote(self._name, keep=self._keep)
        return replace(outcome, concurrent=_get(reference))

    def _acquire(self) -> None:
        self._asked = time.perf_counter()
        self._lent = _get(self._pool.acquire.remote(self._name, self._spec.placement))
        assert self._lent is not None
        self._between = time.perf_counter()
        waited = self._lent.queue_s + self._lent.start_s
        self._report_s += max(0.0, self._between - self._asked - waited)
        self._outcome = replace(
            self._outcome,
            hosts=self._lent.hosts,
            devices=self._lent.devices,
            workers_per_node=self._lent.workers_per_node,
            accelerators=self._lent.accelerators,
            waited_for=self._lent.waited_for,
        )

    def _progress(self, command: Command) -> None:
        first = self._command(command)[0]
        assert isinstance(first, Progress)
        evaluation = first.evaluation
        self._worker_ledger = dict(evaluation.ledger)
        self._outcome = replace(
            self._outcome,
            evaluation=evaluation,
            is_over=bool(evaluation.stop or evaluation.failure),
            failure=evaluation.failure,
            message=NOT_FINITE if evaluation.failure else None,
            num_parameters=first.num_parameters,
            batch_statistics=first.batch_statistics,
            chance=1.0 / first.num_classes,
        )

    def _end(self, command: Finish) -> None:
        finished = [one for one in self._command(command) if isinstance(one, Finished)]
        self._worker_ledger = merge_ranks([one.ledger for one in finished])
        self._outcome = replace(self._outcome, test_accuracy=finished[0].test_accuracy)
        self.weights = finished[0].weights

    def _command(self, command: Command) -> list[Reply]:
        sent = time.perf_counter()
        if self._between is not None:
            self._report_s += sent - self._between
        self._between, self._is_held = None, False
        reference = self._pool.command.remote(self._name, command, self._timeout_s)
        replies: list[Reply] = _get(reference)
        self._between, self._is_held = time.perf_counter(), not isinstance(command, Finish)
        busy = max(one.busy_s for one in replies if isinstance(one, Progress | Finished))
        self._report_s += self._between - sent - busy
        return replies

    def _fail(self, failed: RunFailed) -> None:
        self._outcome = replace(self._outcome, is_over=True)
        if failed.failure != STOPPED:
            self._outcome = replace(
                self._outcome,
                failure=failed.failure,
                message=failed.message,
                traceback=failed.traceback,
            )

    def _accounted(self) -> RunOutcome:
        """Return the outcome with seconds by phase, and wall seconds since workers were asked for.

        Every phase is measured by itself: `queue` and `start` by the pool, the others by the
        workers; to their `report` comes what the owner has measured of its own time and of the
        travel. `other` is what then is left of the wall time.
        """
        now = time.perf_counter()
        wall = now - self._asked if self._asked is not None else 0.0
        if self._lent is None:  # it never got workers: all of it was waiting
            return replace(self._outcome, ledger={"queue": wall, OTHER: 0.0}, wall_s=wall)
        phases = {"queue": self._lent.queue_s, "start": self._lent.start_s} | self._worker_ledger
        own = self._report_s + (now - self._between if self._between else 0.0)
        phases["report"] = phases.get("report", 0.0) + own
        known = sum(seconds for name, seconds in phases.items() if name != "input")
        return replace(self._outcome, ledger=phases | {OTHER: wall - known}, wall_s=wall)


def run_once(
    pool: Any,
    spec: RunSpec,
    name: str,
    *,
    role: Role,
    source: str | None = None,
    on_evaluation: Callable[[str, Evaluation], None],
    stopped_by: Callable[[], StopReason | None],
    on_error: Callable[[str, str, str], str] = lambda name, message, traceback: message,
    save: bool = False,
    test: bool = False,
    keep: bool = True,
) -> tuple[RunRecord, bytes | None]:
    """Train `spec` to its end; return its record, and the weights if `save`.

    `stopped_by` is asked after every evaluation and ends the run by returning a reason. A
    failed run is a record too, and `on_error` is given its name, message and traceback and
    returns the message to keep; it has no weights. `test` measures the test split. With `keep`
    False the workers are new and end with the run.
    """
    client = RunClient(pool, name, spec, keep=keep)
    reason: StopReason | None = None
    last: Evaluation | None = None
    try:
        while reason is None:
            outcome = client.step()
            if outcome.evaluation is None or outcome.evaluation is last:
                break  # it failed, or was ended from outside, before it reached the next one
            last = outcome.evaluation
            on_evaluation(name, last)
            reason = stopped_by()
            if outcome.is_over:
                break
    except BaseException:
        release(pool, name, keep=keep)
        raise
    outcome = client.finish(save=save, test=test)
    if outcome.message is not None and outcome.failure != "nan":
        message = on_error(name, outcome.message, outcome.traceback)
        outcome = replace(outcome, message=message)
    record = outcome.record(
        name, spec, role=role, source=source, stopped_by=reason or "interrupted"
    )
    return record, client.weights


def release(pool: Any, name: str, *, keep: bool) -> int:
    """Give back the workers of a run that is ended from outside; it gets none any more.

    Return the most other runs that trained beside it. With `keep` False its group is closed.
    """
    concurrent: int = _get(pool.release.remote(name, keep=keep, for_good=True))
    return concurrent


def _get(reference: Any) -> Any:
    """Wait for a call of the pool; its RunFailed comes out as itself, not wrapped by Ray."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RunFailed):
            raise error.cause from None
        raise
