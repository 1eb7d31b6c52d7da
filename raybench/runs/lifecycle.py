"""Life cycle of a run as seen by the driver, from resuming it to recording it.

The checkpoints and the output of runs are copied from the worker pool to the study's folder.
`search.ray_tune` uses `RunLifecycle` for the trials of a search, which Ray Tune drives.
`SingleRun` uses it for all other runs: those before and after a search, and those of other
commands.

`checkpoints/0007/` contains the checkpoints of the run `0007` (see `stats.checkpoint`). It is
removed when the record of the run is written. It is kept if the run did not end by itself, because
it was interrupted, stopped early by the search, or lost too often to faults of machines.

A later run with the same name and run spec starts from the checkpoint, so rerunning a command
resumes an interrupted trial. To continue a trial that the search has stopped, write its run spec,
`raybench.load(DIR).specs["0007"]`, to a file SPEC.yaml, copy `checkpoints/0007` to
`NEW/checkpoints/0000` and run `raybench train SPEC.yaml --out NEW`.
"""

import contextlib
import math
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import ray

from raybench.cluster.run_client import RunClient, release
from raybench.cluster.session import Session
from raybench.cluster.session_files import STATES_FOLDER, keep_end, link_or_copy
from raybench.results.records import read_records
from raybench.results.store import Store, keep_error
from raybench.runs.wait_watch import Deadline, RunScreen, WaitWatch
from raybench.spec.errors import ErrorCode, StudyError, UserError
from raybench.spec.objective import StopReason
from raybench.spec.own_loop import OTHER_KEYS, UNREPORTED
from raybench.spec.run import RunSpec
from raybench.stats.checkpoint import latest_checkpoint, write_checkpoint
from raybench.stats.record import (
    Evaluation,
    Failure,
    Phase,
    Purpose,
    Role,
    RunOutcome,
    RunRecord,
)

CHECKPOINTS = "checkpoints"
OUTPUT_S = 5.0
"""Seconds between two copies of the output of a run that has not ended."""
Result = TypeVar("Result")


def has_checkpoints(folder: Path, name: str) -> bool:
    """Return whether a study's folder has checkpoints from which a run can resume."""
    return (folder / CHECKPOINTS / name).is_dir()


class SavedRuns:
    """Context manager that copies checkpoints and output of runs from the worker pool to a study's
    folder.

    Once it is created, the pool stores the states of runs in that folder too. Files are written
    in a background thread. On exit, the context manager waits until all files are written, and
    raises the first error.

    Args:
        pool: Handle of the `WorkerPool`.
        store: The study's folder.
        say: Prints a sentence.
        on_fault: Called immediately with every error of the background thread.
    """

    def __init__(
        self,
        pool: Any,
        store: Store,
        *,
        say: Callable[[str], None],
        on_fault: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self._pool, self._store, self._say, self._on_fault = pool, store, say, on_fault
        self._fault: Exception | None = None
        shutil.rmtree(store.folder / STATES_FOLDER, ignore_errors=True)  # left by a killed session
        ray.get(pool.hold_states_in.remote(store.folder.absolute()))
        self._earlier: dict[str, bytes] = {}
        """Output that resumed runs printed before they were interrupted, keyed by run name."""
        self._written_at: dict[str, float] = {}
        """Time (`monotonic`) at which the output of a run was last written, keyed by run name."""
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix=CHECKPOINTS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._writer.shutdown(wait=True)
        shutil.rmtree(self._store.folder / STATES_FOLDER, ignore_errors=True)
        if self._fault is not None and kind is None:
            raise self._fault

    def resume(self, name: str, spec: RunSpec) -> tuple[Evaluation, ...]:
        """Send the checkpoint of a run, if there is one, to the worker pool before the run starts.

        A checkpoint of another run spec is moved to another folder, with a message.

        Returns:
            The evaluations up to the checkpoint; empty if the run starts from the beginning.
        """
        folder = self._folder(name)
        try:
            checkpoint = latest_checkpoint(folder, spec)
        except UserError as error:
            aside = folder.with_name(f"{folder.name}.refused")
            shutil.rmtree(aside, ignore_errors=True)
            folder.replace(aside)
            self._say(
                f"{error} Run {name} starts from its beginning; its old checkpoints are now "
                f"in {aside}."
            )
            return ()
        if checkpoint is None:
            return ()
        for sentence in checkpoint.refused:
            self._say(sentence)
        if (log := self._store.log_file(name)).is_file():
            self._earlier[name] = log.read_bytes()
        ray.get(self._pool.restore.remote(name, checkpoint))
        return checkpoint.state.evaluations

    def save(self, name: str) -> None:
        """Write a run's newest checkpoint in the pool to the study folder, in the background."""
        self._writer.submit(self._noting_faults, self._write, name)

    def write_output(self, name: str) -> None:
        """Write what a run has printed so far, in the background, at most once per OUTPUT_S
        seconds."""
        now = time.monotonic()
        if now - self._written_at.setdefault(name, now) >= OUTPUT_S:
            self._written_at[name] = now
            self._writer.submit(self._noting_faults, self._write_log, name)

    def log(self, name: str) -> Path | None:
        """Write the output of a run and wait for it; return the file, or None if there is no
        output."""
        return self._writer.submit(self._noting_faults, self._write_log, name).result()

    def finish(self, record: RunRecord) -> None:
        """Write the output of a run that has ended, and delete its checkpoints unless a later run
        may resume from them."""
        is_kept = not record.counts_for(
            Purpose.COMPARISON if record.phase == Phase.CONFIRM else Purpose.MEASUREMENT
        )
        self._written_at.pop(record.trial, None)
        self._writer.submit(self._noting_faults, self._write_log, record.trial, True)
        self._writer.submit(self._noting_faults, self._forget, record.trial, is_kept)

    def _write(self, name: str) -> None:
        checkpoint = ray.get(self._pool.checkpoint.remote(name))
        if checkpoint is None or self._fault is not None:
            return
        self._store.check()
        place = partial(link_or_copy, checkpoint.weights)
        try:
            write_checkpoint(self._folder(name), checkpoint.state, place)
        except FileNotFoundError:
            if ray.get(self._pool.checkpoint.remote(name)) == checkpoint:
                raise
            # A newer checkpoint has replaced this one and will be written next.

    def _write_log(self, name: str, is_over: bool = False) -> Path | None:
        try:
            printed = ray.get(self._pool.printed.remote(name, is_over=is_over))
        except ray.exceptions.RayError:
            return None  # the pool is lost, which ends the study
        if not printed or self._fault is not None:
            return None
        return self._store.write_log(name, keep_end(self._earlier.get(name, b"") + printed))

    def _forget(self, name: str, is_kept: bool) -> None:
        self._pool.forget.remote(name)
        folder = self._folder(name)
        if not is_kept and folder.is_dir():
            shutil.rmtree(folder)

    def _noting_faults(self, function: Callable[..., Result], *arguments: object) -> Result | None:
        try:
            return function(*arguments)
        except (OSError, StudyError, ray.exceptions.RayError) as error:
            self._fault = self._fault or error
            self._on_fault(error)
            return None

    def _folder(self, name: str) -> Path:
        return self._store.folder / CHECKPOINTS / name


SAME_FAILURES = 3
"""Number of first runs that end a study with an error if all fail with the same message."""


def failed_before_training(
    runs: str, message: str, rerun: str = "the same command to resume"
) -> StudyError:
    """Return the error that ends a study because of runs that failed before they trained.

    Args:
        runs: The runs, as the subject of the sentence.
        message: Error message of the last of them.
        rerun: Command to run once the cause is fixed, as the object of "rerun".
    """
    problem = message.removesuffix(".")
    return StudyError(
        f"{runs} failed before training ({problem}); fix the cause, then rerun {rerun}."
    )


@dataclass(kw_only=True)
class FirstRuns:
    """Detector of studies in which no run can train, because the first runs fail before they train.

    Only failures that may occur in every configuration count: errors, timeouts and lost workers,
    but not running out of memory or divergence. Once any run has trained, no failure counts.
    """

    have_trained: bool = False
    """Whether any run of the study has trained."""
    limit: int = SAME_FAILURES
    """Number of runs that must fail with the same message to end the study."""
    noun: str = "trials"
    """Plural noun for the runs in error messages."""
    rerun: str = "the same command with --fresh"
    """Command to run once the cause is fixed. By default it starts the study anew, because a
    resumed search does not repeat failed trials."""
    _running: set[str] = field(default_factory=set)
    _causes: list[str] = field(default_factory=list)
    """Error messages, without digits, of the runs that failed before any run had trained."""
    _running_at_failure: set[str] = field(default_factory=set)
    """Names of the runs that were running when the first run failed before training."""

    def begin(self, name: str) -> None:
        """Register a run before it starts."""
        self._running.add(name)

    def end(self, name: str, outcome: RunOutcome) -> StudyError | UserError | None:
        """Register the end of a run.

        Returns:
            The error that ends the study; None if the study may continue.
        """
        self._running.discard(name)
        if outcome.evaluation is not None:
            self.have_trained = True
        if self.have_trained or outcome.failure not in (
            Failure.ERROR,
            Failure.TIMEOUT,
            Failure.WORKER_LOST,
        ):
            return None
        message = outcome.message or ""
        if message.startswith(UNREPORTED) and OTHER_KEYS in message:
            return UserError(message, ErrorCode.COMMAND)
        if not self._causes:
            self._running_at_failure = set(self._running)
        self._causes.append(re.sub(r" on rank \d+|\d+", "", message))
        may_yet_train = self._running_at_failure & self._running
        if len(self._causes) < self.limit or len(set(self._causes)) > 1 or may_yet_train:
            return None
        runs = f"the first {len(self._causes)} {self.noun} all"
        return failed_before_training(runs, message, self.rerun)


@dataclass(frozen=True, kw_only=True)
class RunRecorder:
    """Recorder and display of the runs of a study. Thread-safe."""

    store: Store
    deadline: Deadline
    """End of the study; an error while writing to the store also ends the study."""
    progress: Any
    """Display of the runs, a `RunScreen`; it is a `ProgressDisplay` if the study has phases."""
    saved: SavedRuns
    """Checkpoints and output of the runs."""
    notes: set[str] = field(default_factory=set, repr=False)
    """Notes that were already printed."""
    first_runs: FirstRuns | None = field(default=None, repr=False)
    """Detector that ends the study if no run can train; None if failed runs never end it."""
    writing: threading.RLock = field(default_factory=threading.RLock, repr=False)
    """Lock that is held while a record is written."""

    def append(self, line: dict[str, object]) -> bool:
        """Append a line (evaluation or run) to the records; return whether it was written."""
        with self.ending_study(), self.writing:
            self.store.append(line)
            return True
        return False

    @contextmanager
    def ending_study(self) -> Iterator[None]:
        """Context manager that ends the study if its folder cannot be written."""
        try:
            yield
        except (OSError, StudyError) as error:
            self.deadline.ends_with(error)


class RunLifecycle:
    """Life cycle of a run, from its request for workers to its record.

    Call `resume` before the run starts, `take` with every new state of the run (in any order;
    duplicates are ignored), and finally `end` once.

    Args:
        recorder: Records and shows the run.
        name: Name of the run, unique in the study.
        spec: Run spec of the run.
        role: Role of the run in the study.
        source: Name of what the run repeats: a trial, a cell (run spec) of a scaling study, or a
            side of a comparison.
    """

    def __init__(
        self,
        recorder: RunRecorder,
        name: str,
        spec: RunSpec,
        role: Role,
        *,
        source: str | None = None,
    ) -> None:
        self._recorder, self.name, self.spec = recorder, name, spec
        self._role, self._source = role, source
        self.outcome = RunOutcome()
        """Latest known state of the run."""

    def resume(self) -> tuple[Evaluation, ...]:
        """Send the checkpoint that an interrupted command left for this run, if any, to the worker
        pool.

        Returns:
            The evaluations up to the checkpoint, which are recorded again.
        """
        if self._recorder.first_runs is not None:
            self._recorder.first_runs.begin(self.name)
        curve = self._recorder.saved.resume(self.name, self.spec)
        for point in curve:
            self._append(point)
        if curve:
            self.outcome = RunOutcome(evaluation=curve[-1], ledger=dict(curve[-1].ledger))
        return curve

    def take(self, outcome: RunOutcome) -> bool:
        """Record and show a new state of the run; a state older than the latest is ignored.

        Args:
            outcome: State of the run, as returned by its `RunClient`.

        Returns:
            Whether there is a new evaluation. After a restart, repeated evaluations count as new.
        """
        previous, recorder = self.outcome, self._recorder
        if _time_order(outcome) < _time_order(previous):
            return False
        self.outcome = outcome
        if outcome.restarts > previous.restarts and not outcome.is_over:
            reason = outcome.restart_reason
            recorder.progress.say(f"trial {self.name} goes on in new workers: {reason}")
        point = outcome.evaluation
        is_new = point is not None and _is_new(outcome, previous)
        if is_new and point is not None:
            self._append(point)
            recorder.progress.evaluated(self.name, point)
        recorder.saved.write_output(self.name)
        if outcome.saved is not None and outcome.saved != previous.saved:
            recorder.saved.save(self.name)
        return is_new

    def end(self, *, stopped_by: StopReason, cap_s: float = math.inf) -> RunRecord:
        """Write the record of the run in its latest known state.

        A mistake of the user (`RunOutcome.user_error`) ends the study if no run of the study has an
        evaluation yet; the run is then not recorded. Later, a mistake only makes its own run fail.

        Args:
            stopped_by: Why the run was stopped; ignored if the run has ended by itself.
            cap_s: Training seconds from which a run that the time budget ends counts as having
                missed the target (stop reason `cap`).

        Returns:
            The record. If it was not written, its stop reason is `interrupted`, and the run is
            repeated when the study is resumed.
        """
        recorder, outcome = self._recorder, self.outcome
        mistake = outcome.user_error
        if mistake is not None and read_records(recorder.store.folder).curves:
            mistake = None
        if mistake is not None:
            recorder.deadline.ends_with(mistake)
        if (first_runs := recorder.first_runs) is not None:
            with recorder.writing:
                fault = first_runs.end(self.name, outcome)
            if fault is not None:
                recorder.deadline.ends_with(fault)
        if outcome.failure not in (None, Failure.NAN):
            with recorder.ending_study():
                log = recorder.saved.log(self.name)
                error = outcome.message or "", outcome.traceback
                message = keep_error(recorder.store, self.name, *error, log=log)
                outcome = replace(outcome, message=message)
        for note in outcome.notes:
            if note not in recorder.notes:
                recorder.notes.add(note)
                recorder.progress.say(f"trial {self.name}: {note}")
        record = outcome.record(
            self.name, self.spec, role=self._role, source=self._source, stopped_by=stopped_by
        )
        if record.stop == StopReason.TIME_BUDGET and record.ledger["train"] > cap_s:
            record = replace(record, stop=StopReason.CAP)
        if mistake is not None or not recorder.append(record.line()):
            record = replace(record, stop=StopReason.INTERRUPTED)
        recorder.saved.finish(record)
        return record

    def _append(self, point: Evaluation) -> None:
        self._recorder.append(point.line(self.name, role=self._role, spec=self.spec))


def _time_order(outcome: RunOutcome) -> tuple[bool, int, int]:
    """Return a sort key that orders the states of a run by time."""
    index = -1 if outcome.evaluation is None else outcome.evaluation.index
    return outcome.is_over, outcome.restarts, index


def _is_new(outcome: RunOutcome, previous: RunOutcome) -> bool:
    """Return whether `outcome` has an evaluation that `previous` does not have; after a restart,
    repeated evaluations count as new."""
    point, previous_point = outcome.evaluation, previous.evaluation
    if point is None or previous_point is None or point == previous_point:
        return point is not None and previous_point is None
    return point.index > previous_point.index or outcome.restarts > previous.restarts


@dataclass(frozen=True, kw_only=True)
class SingleRun(RunRecorder):
    """Runner that trains, records and shows runs that are not trials of a search. Thread-safe."""

    session: Session
    keep_groups: bool = True
    """Whether worker processes are reused; False starts new ones for every run."""
    limit_s: float | None = None
    """Seconds after which a run fails, counted from the time at which it got its workers; None for
    no limit."""

    def train(
        self,
        spec: RunSpec,
        name: str,
        role: Role,
        *,
        source: str | None = None,
        test: bool = False,
        judge: Callable[[Evaluation], StopReason | None] = lambda evaluation: None,
        cap_s: float = math.inf,
        save: Callable[[Path], None] | None = None,
    ) -> RunRecord:
        """Train a run until it ends or `deadline` is over, starting from its checkpoint if there is
        one.

        Args:
            spec: Run spec of the run.
            name: Name of the run, unique in the study.
            role: Role of the run in the study.
            source: Name of what the run repeats, as in `RunLifecycle`.
            test: Whether to measure the metric on the test split at the end.
            judge: Called with every evaluation; returns the reason to stop the run, or None.
            cap_s: Training seconds, as in `RunLifecycle.end`.
            save: Called with the file of the final weights before the record is written; the file
                is on the host of the worker pool. None if weights are not saved.

        Returns:
            The record, as written.
        """
        run = RunLifecycle(self, name, spec, role, source=source)
        reason: StopReason | None = None
        for evaluation in run.resume():  # before `started`, because the run has no workers yet
            self.progress.evaluated(name, evaluation)
            reason = judge(evaluation)
        self.progress.started(name, spec)

        def stopped_by() -> StopReason | None:
            return reason or self.deadline.reason()

        client = RunClient(
            self.session.pool,
            name,
            spec,
            keep=self.keep_groups,
            may_restart=lambda: stopped_by() is None,
            limit_s=self.limit_s,
        )
        try:
            while True:
                outcome = client.step()
                if run.take(outcome) and outcome.evaluation is not None:
                    reason = judge(outcome.evaluation)
                if outcome.is_over or stopped_by() is not None:
                    break
        except BaseException:
            release(self.session.pool, name, keep=self.keep_groups)
            raise
        why = stopped_by()
        run.outcome = client.finish(save=save is not None, test=test)
        if save is not None and client.weights is not None:
            save(client.weights)
        record = run.end(stopped_by=why or stopped_by() or StopReason.INTERRUPTED, cap_s=cap_s)
        self.progress.finished(record)
        return record


@contextlib.contextmanager
def single_runs(
    session: Session,
    store: Store,
    deadline: Deadline,
    screen: RunScreen,
    *,
    wait_s: float | None,
    keep_groups: bool = True,
    limit_s: float | None = None,
    first_runs: FirstRuns | None = None,
) -> Iterator[SingleRun]:
    """Context manager that yields a `SingleRun`, watches its runs, and saves their checkpoints and
    output.

    Args:
        session: Ray connection with the worker pool.
        store: The study's folder.
        deadline: End of the study.
        screen: Shows the runs and what they wait for.
        wait_s: Total seconds that a run may wait for resources; None for no limit.
        keep_groups: Whether worker processes are reused, as in `SingleRun`.
        limit_s: Seconds with workers after which a run fails, as in `SingleRun`.
        first_runs: Detector that ends the study if no run can train, as in `RunRecorder`.
    """
    with (
        WaitWatch(session, deadline, screen, wait_s=wait_s),
        SavedRuns(session.pool, store, say=screen.say, on_fault=deadline.ends_with) as saved,
    ):
        yield SingleRun(
            session=session,
            store=store,
            deadline=deadline,
            progress=screen,
            saved=saved,
            keep_groups=keep_groups,
            limit_s=limit_s,
            first_runs=first_runs,
        )


def run_in_parallel(jobs: Sequence[Callable[[], None]], *, slots: int, deadline: Deadline) -> None:
    """Run jobs in threads, at most `slots` at a time. They start in the given order.

    No job starts once `deadline` is over. An error in a job ends the study: the other jobs stop as
    after Ctrl-C, and then the error is raised.
    """

    def run_job(job: Callable[[], None]) -> None:
        if deadline.over:
            return
        try:
            job()
        except Exception as error:
            deadline.ends_with(error)
            raise

    if not jobs:
        return
    with ThreadPoolExecutor(min(slots, len(jobs)), thread_name_prefix="race") as threads:
        futures = [threads.submit(run_job, job) for job in jobs]
    deadline.raise_fault()  # the first error
    for future in futures:
        future.result()
