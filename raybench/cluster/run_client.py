"""The driver's side of one run: request workers from the pool, send commands, return the outcome.

`RunClient` sends the commands. `RunAccount` measures the run's seconds by phase, over all attempts:
if workers are lost, another attempt continues the run on new workers.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray

from raybench.cluster import protocol
from raybench.cluster.protocol import STOPPED, HostLeaves, RunFailed
from raybench.data.load import STORED
from raybench.spec.objective import baseline_value_of
from raybench.spec.own_loop import is_own_loop
from raybench.spec.run import RunSpec
from raybench.stats.clock import OTHER, PHASES, merge_ranks
from raybench.stats.record import MACHINE_FAULTS, Evaluation, Failure, RunOutcome


@dataclass(frozen=True, kw_only=True)
class _Point:
    """A moment of the run, such as an evaluation, and the run's seconds by phase until then."""

    at: float
    """Time of the moment (`time.perf_counter`)."""
    queue_s: float = 0.0
    start_s: float = 0.0
    report_s: float = 0.0
    lost_s: float = 0.0
    worker: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the phases that the workers measure, keyed by phase."""


@dataclass(kw_only=True)
class _Attempt:
    """The current attempt at the run: the point from which it continues, and its own seconds."""

    asked: float
    """Time of the request for workers (`time.perf_counter`)."""
    base: _Point
    """Point of the run from which the attempt continues."""
    queue_before_s: float
    """Seconds that earlier attempts waited in the queue."""
    start_s: float = 0.0
    """Seconds of starting workers in this attempt."""
    report_s: float = 0.0
    """Seconds of the driver's own work and of message latency in this attempt."""
    lost_s: float = 0.0
    """Seconds of failed commands in this attempt."""
    has_evaluated: bool = False
    """Whether the attempt has reached an evaluation."""


class RunAccount:
    """Seconds of a run by phase.

    Each phase is measured separately: `queue` and `start` by the worker pool, most others by the
    workers. The driver adds its own time and message latency to `report`; `other` is the rest of
    the wall time.

    An attempt lasts from a request for workers until these workers are lost or the run ends. It
    continues the run from its newest checkpoint, or from its beginning without a checkpoint. The
    time from this checkpoint or the beginning to the start of the attempt counts as `lost`, except
    the time spent waiting for workers, which stays in `queue`. Until the attempt has reached its
    first evaluation, the seconds are computed as if it continued from the last evaluation.
    """

    def __init__(self) -> None:
        self.is_allocated = False
        """Whether the run has ever had workers."""
        self._attempt: _Attempt | None = None
        self._earlier_s = 0.0
        """Seconds of the run in an interrupted earlier session, up to the checkpoint from which
        this session continues."""
        self._queue_s = 0.0
        """Seconds that all attempts have waited in the queue."""
        self._between: float | None = None
        """Time of the last answer of the workers, from which the driver's own time counts; None
        while the workers execute a command."""
        self._sent = 0.0
        """Time of the last command to the workers."""
        self._worker: Mapping[str, float] = {}
        """Seconds of the phases that the workers measure, as of the last evaluation."""
        self._first = self._last = _Point(at=0.0)
        """Points of the beginning of the run and of its last evaluation."""
        self._kept: _Point | None = None
        """Point of the newest checkpoint that was saved in this session; None without one."""

    def begin_attempt(self) -> None:
        """Begin an attempt; call just before workers are requested."""
        now = time.perf_counter()
        if self._attempt is None:
            self._first = self._last = _Point(at=now)
        self._attempt = _Attempt(asked=now, base=self._last, queue_before_s=self._queue_s)
        self._between, self._worker = None, self._last.worker

    def workers_given(self, allocation: protocol.Allocation) -> None:
        """Record that the run has received its workers."""
        attempt, self._between = self._current_attempt(), time.perf_counter()
        self.is_allocated = True
        waited_s = allocation.queue_s + allocation.start_s
        self._queue_s += allocation.queue_s
        attempt.start_s += allocation.start_s
        attempt.report_s += max(0.0, self._between - attempt.asked - waited_s)
        if allocation.resume is not None and self._kept is None and not self._earlier_s:
            worker = allocation.resume.ledger
            self._earlier_s = sum(s for phase, s in worker.items() if phase in PHASES)
            self._first = self._last = attempt.base = _Point(at=self._first.at, worker=worker)
            self._worker = worker

    def command_sent(self) -> None:
        """Record that a command is being sent to the workers."""
        self._sent = time.perf_counter()
        if self._between is not None:
            self._current_attempt().report_s += self._sent - self._between
        self._between = None

    def answered(self, *, busy_s: float) -> None:
        """Record the answer to the last command, which took the workers `busy_s` seconds."""
        self._between = time.perf_counter()
        self._current_attempt().report_s += self._between - self._sent - busy_s

    def evaluated(self, evaluation: Evaluation, *, is_saved: bool) -> None:
        """Record an evaluation; `is_saved` is whether a checkpoint was saved after it."""
        attempt = self._current_attempt()
        if not attempt.has_evaluated:
            attempt.has_evaluated, attempt.base = True, self._kept or self._first
        self._worker = dict(evaluation.ledger)
        assert self._between is not None
        self._last = self._point(self._between)
        if is_saved:
            self._kept = self._last

    def command_failed(self, why: str) -> None:
        """Record that a command has failed for the reason `why` (`RunFailed.failure`).

        The seconds of the command count as `lost` if the run was stopped, or if the workers were
        lost or did not answer in time. After an error in the run itself they do not, because the
        workers may have trained until then.
        """
        if why in (STOPPED, *MACHINE_FAULTS, Failure.TIMEOUT):
            self._between = time.perf_counter()
            self._current_attempt().lost_s += self._between - self._sent

    def seconds_with_workers(self) -> float:
        """Return the wall-clock seconds of the run so far, excluding the phases `queue` and
        `start`."""
        phases, wall_s = self.now()
        return wall_s - phases["queue"] - phases.get("start", 0.0)

    def ended(self, ledger: Mapping[str, float]) -> None:
        """Record the end of the run; `ledger` is the seconds by phase that the workers have
        measured over the whole run."""
        self._worker = ledger

    def now(self) -> tuple[dict[str, float], float]:
        """Return the run's seconds so far, keyed by phase, and its wall-clock seconds so far."""
        now = time.perf_counter()
        wall = 0.0 if self._attempt is None else now - self._first.at + self._earlier_s
        if not self.is_allocated:  # the run has only waited so far
            return {"queue": wall, OTHER: 0.0}, wall
        here = self._point(now)
        phases = {"queue": here.queue_s, "start": here.start_s, "lost": here.lost_s, **here.worker}
        driver_s = here.report_s + (now - self._between if self._between is not None else 0.0)
        phases["report"] = phases.get("report", 0.0) + driver_s
        known_s = sum(seconds for name, seconds in phases.items() if name in PHASES)
        return phases | {OTHER: wall - known_s}, wall

    def _current_attempt(self) -> _Attempt:
        """Return the current attempt; call only after `begin_attempt`."""
        assert self._attempt is not None
        return self._attempt

    def _point(self, at: float) -> _Point:
        """Return the current point of the run, with time `at`."""
        attempt = self._current_attempt()
        base = attempt.base
        waited_s = attempt.queue_before_s - base.queue_s
        return _Point(
            at=at,
            queue_s=self._queue_s,
            start_s=base.start_s + attempt.start_s,
            report_s=base.report_s + attempt.report_s,
            lost_s=base.lost_s + attempt.lost_s + attempt.asked - base.at - waited_s,
            worker=self._worker,
        )


TIMEOUT_S = 3600.0
"""Timeout of a command in seconds; three times the objective's `max_train_seconds` is added."""
STORE_TIMEOUT_S = 6 * 3600.0
"""Timeout in seconds of the command `Start` if the dataset is decoded into a store on disk. Nodes
other than the driver's may not have the store yet; if stopped too early, they would have to decode
the dataset from the beginning again."""
RESTARTS = 3
"""Maximum number of restarts on new workers without a newer checkpoint in between; a run whose
workers are then lost once more has failed. There is no other retry after machine faults."""


class RunClient:
    """Trains one run, evaluation by evaluation, on workers that are requested at the first `step`.

    If the workers are lost, the run continues on new workers from its latest checkpoint, or from
    the beginning if there is none; evaluations after that point are repeated. Always call `finish`
    once at the end, or the function `release` if another thread or process ends the run.
    """

    def __init__(
        self,
        pool: Any,
        name: str,
        spec: RunSpec,
        *,
        keep: bool = True,
        may_restart: Callable[[], bool] = lambda: True,
        limit_s: float | None = None,
    ) -> None:
        """Create a client without requesting workers.

        Args:
            pool: Handle of the `WorkerPool`.
            name: Name of the run, unique in the pool.
            spec: The run.
            keep: Whether the worker group stays alive for other runs after this run.
            may_restart: Function that returns whether the run may get new workers after its workers
                were lost.
            limit_s: Wall-clock seconds with workers after which the run fails with `timeout`; None
                for no limit.
        """
        self._pool, self._name, self._spec, self._keep = pool, name, spec, keep
        self._is_own = is_own_loop(spec.workload)
        """Whether the user's own training loop trains the run."""
        self._may_restart, self._limit_s = may_restart, math.inf if limit_s is None else limit_s
        self._restarts_in_a_row = 0
        """Number of restarts since the newest checkpoint."""
        self._outcome, self._account = RunOutcome(), RunAccount()
        self._has_waiting_workers = False
        """Whether the run has workers that wait for its next command."""
        self.weights: Path | None = None
        """File on the pool's host with the weights saved by `finish`; None if none were saved."""

    def step(self) -> RunOutcome:
        """Train to the next evaluation; the first step waits for workers and sets up the run.

        Returns:
            The outcome so far. A failure of the run is recorded in the outcome, next to the last
            evaluation, and not raised; only errors of the pool itself are raised.
        """
        try:
            self._next()
        except RunFailed as failure:
            self._fail(failure)
        return self._accounted()

    def finish(self, *, save: bool = False, test: bool = False) -> RunOutcome:
        """End the run and release its workers.

        Args:
            save: Whether to save the weights in the file `weights`, unless the run has failed.
            test: Whether to measure the metric on the test split, unless the run has failed.

        Returns:
            The final outcome of the run. Without `save` and `test`, a failure of the workers during
            this call only adds a note to the outcome.
        """
        if self._has_waiting_workers:
            has_failed = self._outcome.failure is not None
            try:
                save = save and not has_failed
                # A user's own training loop reports its test value by itself.
                test = test and not has_failed and not self._is_own
                self._end(protocol.Finish(save=save, test=test))
            except RunFailed as failure:
                self._fail(failure)
        outcome = self._accounted()
        reference = self._pool.release.remote(self._name, keep=self._keep)
        return replace(outcome, concurrent=_get(reference))

    def _next(self) -> None:
        """Train to the next evaluation, on new workers if the current ones are lost."""
        while True:
            try:
                if self._has_waiting_workers:
                    self._progress(protocol.Advance())
                else:
                    self._acquire()
                    self._progress(protocol.Start(spec=self._spec))
                return
            except RunFailed as failure:
                self._restart_or_raise(failure)

    def _restart_or_raise(self, failed: RunFailed) -> None:
        """Prepare a restart on new workers; raise `failed` if the run may not restart."""
        if failed.failure not in MACHINE_FAULTS or not self._may_restart():
            raise failed
        restarts = self._outcome.restarts
        is_counted = not isinstance(failed, HostLeaves)
        if is_counted and self._restarts_in_a_row == RESTARTS:
            message = f"{failed.message} (given new workers {restarts} times)"
            raise RunFailed(failed.failure, message, failed.traceback)
        self._restarts_in_a_row += is_counted
        self._outcome = replace(self._outcome, restarts=restarts + 1, restart_reason=failed.message)

    def _acquire(self) -> None:
        """Request workers, wait for them, and record them in the outcome."""
        self._account.begin_attempt()
        allocation = _get(self._pool.acquire.remote(self._name, self._spec.resources))
        self._account.workers_given(allocation)
        evaluation = self._outcome.evaluation
        if evaluation is None and allocation.resume is not None:
            evaluation = allocation.resume.evaluations[-1]
        self._outcome = replace(
            self._outcome,
            evaluation=evaluation,
            hosts=allocation.hosts,
            devices=allocation.devices,
            workers_per_node=allocation.workers_per_node,
            accelerators=allocation.accelerators,
            waited_for=allocation.waited_for or self._outcome.waited_for,
        )

    def _progress(self, command: protocol.Command) -> None:
        """Send a command that trains to the next evaluation; record the evaluation it returns."""
        first = self._command(command)[0]
        assert isinstance(first, protocol.Progress)
        evaluation = first.evaluation
        is_saved = first.saved is not None
        self._account.evaluated(evaluation, is_saved=is_saved)
        if is_saved:
            self._restarts_in_a_row = 0
        value = "the value reported" if self._is_own else "the training or validation loss"
        self._outcome = replace(
            self._outcome,
            evaluation=evaluation,
            is_over=bool(evaluation.stop or evaluation.failure),
            failure=evaluation.failure,
            message=f"{value} is not finite" if evaluation.failure else None,
            num_parameters=first.num_parameters,
            batch_statistics=first.batch_statistics,
            baseline_value=baseline_value_of(self._spec.objective, first.num_classes),
            saved=first.saved if is_saved else self._outcome.saved,
        )

    def _end(self, command: protocol.Finish) -> None:
        """End the run; if workers are lost while the weights or the test value are needed, first
        train to the last evaluation again."""
        reached = self._outcome.evaluation
        assert reached is not None
        while True:
            try:
                replies = self._command(command)
                break
            except RunFailed as failure:
                if not command.save and not command.test:
                    if failure.failure != STOPPED:  # a requested stop needs no note
                        self._outcome = replace(self._outcome, notes=(failure.message,))
                    return
                self._restart_or_raise(failure)
                while not self._has_waiting_workers or not self._is_back_at(reached):
                    self._next()
        finished = [reply for reply in replies if isinstance(reply, protocol.Finished)]
        self._account.ended(merge_ranks([reply.ledger for reply in finished]))
        self._outcome = replace(
            self._outcome,
            evaluation=reached,
            test_value=finished[0].test_value,
            notes=finished[0].notes,
        )
        self.weights = finished[0].weights

    def _is_back_at(self, reached: Evaluation) -> bool:
        """Whether the repeated training has reached the evaluation `reached` again, or is over."""
        now = self._outcome.evaluation
        return self._outcome.is_over or (now is not None and now.index >= reached.index)

    def _command(self, command: protocol.Command) -> list[protocol.Reply]:
        """Send a command to all workers and return their replies in rank order.

        Raises:
            RunFailed: The workers have failed or were lost, or a time limit was exceeded.
        """
        timeout_s, left_s = self._timeout_s(command), math.inf
        if not isinstance(command, protocol.Finish):
            left_s = self._limit_s - self._account.seconds_with_workers()
            if left_s <= 0:
                raise self._over_limit()
        self._account.command_sent()
        self._has_waiting_workers = False
        try:
            reference = self._pool.command.remote(self._name, command, min(timeout_s, left_s))
            replies: list[protocol.Reply] = _get(reference)
        except RunFailed as failure:
            self._account.command_failed(failure.failure)
            if failure.failure != Failure.TIMEOUT:
                raise
            if left_s < timeout_s:
                raise self._over_limit() from None
            if not self._is_own:  # raybench's own loop hangs only if a host or the network does
                raise RunFailed(Failure.WORKER_LOST, failure.message) from None
            raise
        self._has_waiting_workers = not isinstance(command, protocol.Finish)
        busy_s = max(reply.busy_s for reply in replies if isinstance(reply, protocol.WorkerAnswer))
        self._account.answered(busy_s=busy_s)
        return replies

    def _timeout_s(self, command: protocol.Command) -> float:
        """Return the timeout of a command in seconds, after which the workers count as hung."""
        if isinstance(command, protocol.Start) and self._spec.dataset.name in STORED:
            return STORE_TIMEOUT_S
        return TIMEOUT_S + 3 * self._spec.objective.max_train_seconds

    def _over_limit(self) -> RunFailed:
        """Return the failure of a run that has exceeded its limit of wall-clock seconds."""
        evaluation = self._outcome.evaluation
        reached = "no report" if evaluation is None else f"{evaluation.index + 1} reports"
        return RunFailed(
            Failure.TIMEOUT,
            f"took longer than {self._limit_s:g} s (search.trial_seconds), {reached}",
        )

    def _fail(self, failed: RunFailed) -> None:
        """Record in the outcome that the run is over and, unless it was stopped, how it failed."""
        self._outcome = replace(self._outcome, is_over=True)
        if failed.failure != STOPPED:
            failure, message, traceback, mistake = failed.args
            self._outcome = replace(
                self._outcome,
                failure=failure,
                message=message,
                traceback=traceback,
                mistake=mistake,
            )

    def _accounted(self) -> RunOutcome:
        """Return the outcome with its seconds by phase and its wall-clock seconds."""
        ledger, wall_s = self._account.now()
        return replace(self._outcome, ledger=ledger, wall_s=wall_s)


def release(pool: Any, name: str, *, keep: bool) -> int:
    """Release the workers of a run that is ended from outside; the run gets no new workers.

    Args:
        pool: Handle of the `WorkerPool`.
        name: Name of the run.
        keep: Whether the worker group stays alive for other runs.

    Returns:
        The largest number of other runs that had workers at the same time.
    """
    concurrent: int = _get(pool.release.remote(name, keep=keep, for_good=True))
    return concurrent


def _get(reference: Any) -> Any:
    """Return the result of a call to the worker pool.

    If the call raised RunFailed, re-raise it without the RayTaskError around it.
    """
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RunFailed):
            raise error.cause from None
        raise
