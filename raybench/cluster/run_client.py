"""One run on workers of the pool, seen by the process that asked for it: from asking for
workers to its record, with where its seconds went through several attempts at it.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray

from raybench.cluster import protocol
from raybench.cluster.connectivity import MISNAMED
from raybench.cluster.protocol import REFUSED, STOPPED, HostLeaves, RunFailed
from raybench.data.load import STORED
from raybench.spec.objective import baseline_value_of
from raybench.spec.own_loop import is_own_loop
from raybench.spec.run import RunSpec
from raybench.stats.clock import OTHER, PHASES, merge_ranks
from raybench.stats.record import (
    MACHINE_FAULTS,
    Evaluation,
    Role,
    RunOutcome,
    RunRecord,
    StopReason,
)


@dataclass(frozen=True, kw_only=True)
class _Point:
    """The account at a moment of the run; the beginning, unless it says more."""

    at: float
    queue_s: float = 0.0
    start_s: float = 0.0
    report_s: float = 0.0
    lost_s: float = 0.0
    worker: Mapping[str, float] = field(default_factory=dict)
    """Seconds that the workers account for."""


class RunAccount:
    """Every phase is measured by itself: `queue` and `start` by the pool, most by the workers.

    To their `report` comes what the driver measures of its own time and of the travel; `other` is
    what is left of the wall time. An attempt (from asking for workers until they are lost, or it
    ends) goes on from a point that the run was at before: what lies between that point and the
    attempt is `lost`. While an attempt has not reached an evaluation that point is the last one
    that was reached, and then the one that it really went on from, since it repeats the others.
    Waiting is never lost: it stays in `queue`.
    """

    def __init__(self) -> None:
        self.is_allocated = False
        """Whether the run has ever had workers."""
        self._earlier_s = 0.0
        """Wall seconds of another driver, up to the checkpoint that this one goes on from."""
        self._queue_s = 0.0
        self._between: float | None = None
        """Moment of the last answer; the driver's own time runs from there."""
        self._asked: float | None = None
        """Moment at which workers were asked for; what follows is of the present attempt."""
        self._own_start_s = self._own_report_s = self._own_lost_s = self._before_queue_s = 0.0
        self._sent = 0.0
        """Moment at which the last command went out."""
        self._worker: Mapping[str, float] = {}
        self._first = self._base = self._last = _Point(at=0.0)
        self._kept: _Point | None = None
        """Position of the newest checkpoint of this session."""
        self._has_evaluated = False

    def asks(self) -> None:
        """Begin an attempt: workers are asked for."""
        now = time.perf_counter()
        if self._asked is None:
            self._first = self._last = _Point(at=now)
        self._asked, self._between, self._base = now, None, self._last
        self._own_start_s = self._own_report_s = self._own_lost_s = 0.0
        self._before_queue_s, self._has_evaluated = self._queue_s, False
        self._worker = self._last.worker

    def has(self, allocation: protocol.Allocation) -> None:
        """Workers were given."""
        assert self._asked is not None
        self.is_allocated, self._between = True, time.perf_counter()
        waited = allocation.queue_s + allocation.start_s
        self._queue_s += allocation.queue_s
        self._own_start_s += allocation.start_s
        self._own_report_s += max(0.0, self._between - self._asked - waited)
        if allocation.resume is not None and self._kept is None and not self._earlier_s:
            worker = allocation.resume.ledger
            self._earlier_s = sum(s for phase, s in worker.items() if phase in PHASES)
            self._first = self._last = self._base = _Point(at=self._first.at, worker=worker)
            self._worker = worker

    def begins_anew(self) -> None:
        """The checkpoint is refused: what led up to it, in another session, is no part of it."""
        self._earlier_s, self._kept, self._worker = 0.0, None, {}
        self._first = self._last = _Point(at=self._first.at)

    def sends(self) -> float:
        """Note that a command goes out; return when."""
        self._sent = time.perf_counter()
        if self._between is not None:
            self._own_report_s += self._sent - self._between
        self._between = None
        return self._sent

    def hears(self, *, sent: float, busy_s: float) -> None:
        """Note the answer to a command; its workers were busy for so long."""
        self._between = time.perf_counter()
        self._own_report_s += self._between - sent - busy_s

    def reached(self, evaluation: Evaluation, *, is_saved: bool) -> None:
        """Note an evaluation, and whether the run can be continued from it."""
        if not self._has_evaluated:
            self._has_evaluated, self._base = True, self._kept or self._first
        self._worker = dict(evaluation.ledger)
        assert self._between is not None
        self._last = self._point(self._between)
        if is_saved:
            self._kept = self._last

    def gives_up(self, why: str) -> None:
        """Note that a command is not answered any more. Where nothing went wrong in the code, its
        seconds are lost; what crashed may have trained until then."""
        if why in (STOPPED, *MACHINE_FAULTS, "timeout"):
            self._between = time.perf_counter()
            self._own_lost_s += self._between - self._sent

    def with_workers_s(self) -> float:
        """Return the seconds of the run so far, without those that it waited for workers."""
        phases, wall_s = self.now()
        return wall_s - phases["queue"] - phases.get("start", 0.0)

    def ended(self, ledger: Mapping[str, float]) -> None:
        """Take the workers' account of the whole run."""
        self._worker = ledger

    def now(self) -> tuple[dict[str, float], float]:
        """Return the seconds by phase so far, and those of the wall."""
        now = time.perf_counter()
        wall = 0.0 if self._asked is None else now - self._first.at + self._earlier_s
        if not self.is_allocated:  # it never got workers: all of it was waiting
            return {"queue": wall, OTHER: 0.0}, wall
        here = self._point(now)
        phases = {"queue": here.queue_s, "start": here.start_s, "lost": here.lost_s, **here.worker}
        own = here.report_s + (now - self._between if self._between is not None else 0.0)
        phases["report"] = phases.get("report", 0.0) + own
        known = sum(seconds for name, seconds in phases.items() if name in PHASES)
        return phases | {OTHER: wall - known}, wall

    def _point(self, at: float) -> _Point:
        base = self._base
        assert self._asked is not None
        waited = self._before_queue_s - base.queue_s
        return _Point(
            at=at,
            queue_s=self._queue_s,
            start_s=base.start_s + self._own_start_s,
            report_s=base.report_s + self._own_report_s,
            lost_s=base.lost_s + self._own_lost_s + self._asked - base.at - waited,
            worker=self._worker,
        )


LEAST_S, FIRST_S, TIMES = 600.0, 3600.0, 10.0
"""A worker that has not answered is taken for hung after three times the objective's
`max_train_seconds`, for training, and for the rest after so many `TIMES` the longest answer so far
(of this run; of a run's beginning, that of any), `LEAST_S` at the least; `FIRST_S` where nothing is
known yet of what it does: set-up, compilation and first evaluation, or that of the test split."""
STORE_TIMEOUT_S = 6 * 3600.0
"""Timeout of the first command on a node that may still have to decode the dataset: the
driver's own node has it, others begin with nothing. Ended early, they would begin again."""
RESTARTS = 3
"""Number of times in a row that a run is given new workers and gets no further than the checkpoint
it has; then it has failed. Nothing else tries again what the machine broke."""


class RunClient:
    """Trains one run, evaluation by evaluation, on workers that it asks for at the first step.

    Where they are lost it goes on with new ones, from its newest checkpoint or from its beginning:
    the evaluations after that come again. A checkpoint that they refuse is dropped.
    `finish` must be called once at the end, whatever happened; `release` takes its place where the
    run is ended from outside.
    """

    def __init__(
        self,
        pool: Any,
        name: str,
        spec: RunSpec,
        *,
        keep: bool = True,
        goes_on: Callable[[], bool] = lambda: True,
        limit_s: float | None = None,
    ) -> None:
        """`goes_on` is asked before the run is given new workers. `limit_s`: wall-clock seconds
        with workers after which the run has failed (`timeout`), whatever it does then."""
        self._pool, self._name, self._spec, self._keep = pool, name, spec, keep
        self._is_own = is_own_loop(spec.workload)
        what = "the value reported" if self._is_own else "the training loss"
        self._not_finite = f"{what} is not finite"
        self._slowest_s = 0.0
        self._slowest_start_s: float | None = None
        self._goes_on = goes_on
        self._in_a_row = 0
        """Restarts since the newest checkpoint."""
        self._limit_s = math.inf if limit_s is None else limit_s
        self._outcome, self._account = RunOutcome(), RunAccount()
        self._is_held = False
        """Whether workers have the run, and wait for its next command."""
        self.weights: Path | None = None
        """Place in the pool of what `finish` was asked to save (`states.parts`)."""

    def step(self) -> RunOutcome:
        """Train to the next evaluation; the first step waits for workers and builds the run.

        What happens to the run ends it, with its last evaluation kept. Raised is only what is
        wrong with the pool itself.
        """
        try:
            self._next()
        except RunFailed as failure:
            self._fail(failure)
        return self._accounted()

    def finish(self, *, save: bool = False, test: bool = False) -> RunOutcome:
        """End the run and give its workers back.

        With `test` the metric on the test split is measured, with `save` the `weights` are
        kept; a run that has failed has neither. Unless one of them is wanted, workers that fail
        now take nothing from the run: the pool replaces them.
        """
        if self._is_held:
            has_failed = self._outcome.failure is not None
            try:
                save = save and not has_failed
                test = test and not has_failed and not self._is_own  # which has told it, or not
                self._end(protocol.Finish(save=save, test=test))
            except RunFailed as failure:
                self._fail(failure)
        outcome = self._accounted()
        reference = self._pool.release.remote(self._name, keep=self._keep)
        return replace(outcome, concurrent=_get(reference))

    def _next(self) -> None:
        """Reach an evaluation, on new workers where those at hand are lost."""
        while True:
            try:
                if self._is_held:
                    self._progress(protocol.Advance())
                else:
                    self._acquire()
                    self._progress(protocol.Start(spec=self._spec))
                return
            except RunFailed as failure:
                self._restart_or_raise(failure)

    def _restart_or_raise(self, failed: RunFailed) -> None:
        """Note that the run needs new workers; raise what has failed where it gets none."""
        if failed.failure == REFUSED:
            self._begin_anew(failed)
            return
        is_final = failed.failure not in MACHINE_FAULTS or failed.message.startswith(MISNAMED)
        if is_final or not self._goes_on():
            raise failed
        given = self._outcome.restarts
        is_counted = not isinstance(failed, HostLeaves)  # that is nobody's fault
        if is_counted and self._in_a_row == RESTARTS:
            tried = f"{failed.message} (given new workers {given} times)"
            raise RunFailed(failed.failure, tried, failed.traceback)
        self._in_a_row += is_counted
        self._outcome = replace(self._outcome, restarts=given + 1, restart_reason=failed.message)

    def _begin_anew(self, refused: RunFailed) -> None:
        """Drop the checkpoint that was refused; end the run as stopped where it gets no workers."""
        if not self._goes_on():
            raise RunFailed(STOPPED, refused.message)
        _get(self._pool.forget.remote(self._name))
        self._account.begins_anew()
        self._outcome = replace(
            self._outcome,
            evaluation=None,
            saved=None,
            refused=refused.message,
            restarts=self._outcome.restarts + 1,
            restart_reason=refused.message,
        )

    def _acquire(self) -> None:
        self._account.asks()
        allocation = _get(self._pool.acquire.remote(self._name, self._spec.placement))
        self._account.has(allocation)
        self._slowest_start_s = allocation.slowest_start_s
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
        first = self._command(command)[0]
        assert isinstance(first, protocol.Progress)
        evaluation = first.evaluation
        is_saved = first.saved is not None
        self._account.reached(evaluation, is_saved=is_saved)
        if is_saved:
            self._in_a_row = 0
        self._outcome = replace(
            self._outcome,
            evaluation=evaluation,
            is_over=bool(evaluation.stop or evaluation.failure),
            failure=evaluation.failure,
            message=self._not_finite if evaluation.failure else None,
            num_parameters=first.num_parameters,
            batch_statistics=first.batch_statistics,
            baseline_value=baseline_value_of(self._spec.objective, first.num_classes),
            saved=first.saved if is_saved else self._outcome.saved,
        )

    def _end(self, command: protocol.Finish) -> None:
        """End the run; where its workers are lost and are still needed, it is repeated so far."""
        reached = self._outcome.evaluation
        assert reached is not None
        while True:
            try:
                replies = self._command(command)
                break
            except RunFailed as failure:
                if not command.save and not command.test:
                    self._outcome = replace(self._outcome, note=failure.message)
                    return
                self._restart_or_raise(failure)
                while not self._is_held or not self._is_back_at(reached):
                    self._next()
        finished = [one for one in replies if isinstance(one, protocol.Finished)]
        self._account.ended(merge_ranks([one.ledger for one in finished]))
        self._outcome = replace(
            self._outcome,
            evaluation=reached,
            test_value=finished[0].test_value,
            note=finished[0].note,
        )
        self.weights = finished[0].weights

    def _is_back_at(self, reached: Evaluation) -> bool:
        now = self._outcome.evaluation
        return self._outcome.is_over or (now is not None and now.index >= reached.index)

    def _command(self, command: protocol.Command) -> list[protocol.Reply]:
        patience_s, left_s = self._patience_s(command), math.inf
        if not isinstance(command, protocol.Finish):
            left_s = self._limit_s - self._account.with_workers_s()
            if left_s <= 0:
                raise self._timeout()
        sent, self._is_held = self._account.sends(), False
        try:
            reference = self._pool.command.remote(self._name, command, min(patience_s, left_s))
            replies: list[protocol.Reply] = _get(reference)
        except RunFailed as failure:
            self._account.gives_up(failure.failure)
            if failure.failure != "timeout":
                raise
            if left_s < patience_s:
                raise self._timeout() from None
            if not self._is_own:  # code of ours hangs where a host or the network does
                raise RunFailed("worker_lost", failure.message) from None
            raise
        self._is_held = not isinstance(command, protocol.Finish)
        busy_s = max(one.busy_s for one in replies if isinstance(one, protocol.WorkerAnswer))
        self._account.hears(sent=sent, busy_s=busy_s)
        self._slowest_s = max(self._slowest_s, busy_s)
        return replies

    def _patience_s(self, command: protocol.Command) -> float:
        """Return the seconds after which a worker that has not answered is taken for hung."""
        if isinstance(command, protocol.Start) and self._spec.dataset.name in STORED:
            return STORE_TIMEOUT_S
        known_s = max(LEAST_S, TIMES * self._slowest_s)
        if isinstance(command, protocol.Start):
            slowest_s = self._slowest_start_s
            known_s = FIRST_S if slowest_s is None else max(LEAST_S, TIMES * slowest_s)
        elif isinstance(command, protocol.Finish) and command.test:
            known_s = max(known_s, FIRST_S)
        return known_s + 3 * self._spec.objective.max_train_seconds

    def _timeout(self) -> RunFailed:
        evaluation = self._outcome.evaluation
        reached = "no report" if evaluation is None else f"{evaluation.index + 1} reports"
        return RunFailed(
            "timeout", f"took longer than {self._limit_s:g} s (search.trial_seconds), {reached}"
        )

    def _fail(self, failed: RunFailed) -> None:
        self._outcome = replace(self._outcome, is_over=True)
        if failed.failure != STOPPED and failed.failure != REFUSED:
            self._outcome = replace(
                self._outcome,
                failure=failed.failure,
                message=failed.message,
                traceback=failed.traceback,
            )

    def _accounted(self) -> RunOutcome:
        """Return the outcome with its seconds by phase, and since workers were asked for."""
        ledger, wall_s = self._account.now()
        return replace(self._outcome, ledger=ledger, wall_s=wall_s)


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
    on_saved: Callable[[str], None] = lambda name: None,
    on_refused: Callable[[str, str], None] = lambda name, why: None,
    on_restart: Callable[[str, str], None] = lambda name, why: None,
    on_note: Callable[[str, str], None] = lambda name, note: None,
    save: bool = False,
    test: bool = False,
    keep: bool = True,
    limit_s: float | None = None,
) -> tuple[RunRecord, Path | None]:
    """Train `spec` to its end; return its record, and where the pool holds the weights if `save`.

    `stopped_by` is asked after every evaluation and ends the run by returning a reason. A
    failed run is a record too, and `on_error` is given its name, message and traceback and
    returns the message to keep; it has no weights. `on_saved` is given the name when the pool has
    a new checkpoint of the run, `on_refused` the name and a sentence when it does not go on from
    the one it had, `on_restart` the name and what has happened when it has lost its workers and
    goes on in new ones, `on_note` the name and what there is to say of how it ran. `test` measures
    the test split. With `keep` False the workers are new and end with the run. `limit_s` is that of
    RunClient.
    """
    client = RunClient(
        pool, name, spec, keep=keep, goes_on=lambda: stopped_by() is None, limit_s=limit_s
    )
    saved: int | None = None
    refused: str | None = None
    restarts = 0
    reason: StopReason | None = None
    last: Evaluation | None = None
    try:
        while reason is None:
            outcome = client.step()
            if outcome.refused is not None and refused is None:
                refused = outcome.refused
                on_refused(name, refused)
            elif outcome.restarts > restarts and outcome.failure is None:
                on_restart(name, outcome.restart_reason or "")
            restarts = outcome.restarts
            if outcome.evaluation is None or outcome.evaluation is last:
                break  # it failed, or was ended from outside, before it reached the next one
            before, last = last, outcome.evaluation
            # A training loop of the user's own may end after an evaluation that is known.
            if before is None or (before.index, before.train_s) != (last.index, last.train_s):
                on_evaluation(name, last)
            if outcome.saved != saved:
                saved = outcome.saved
                on_saved(name)
            reason = stopped_by()
            if outcome.is_over:
                break
    except BaseException:
        release(pool, name, keep=keep)
        raise
    outcome = client.finish(save=save, test=test)
    if outcome.note is not None:
        on_note(name, outcome.note)
    if outcome.message is not None and outcome.failure != "nan":
        message = on_error(name, outcome.message, outcome.traceback)
        outcome = replace(outcome, message=message)
    record = outcome.record(
        name, spec, role=role, source=source, stopped_by=reason or stopped_by() or "interrupted"
    )
    return record, client.weights
