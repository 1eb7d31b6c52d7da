"""Runs of a study outside Ray Tune: before the search, after it, and in other commands."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from raybench.cluster.run_client import RunClient, release
from raybench.cluster.session import Session
from raybench.results.store import Store
from raybench.runs.deadline import Deadline
from raybench.runs.lifecycle import RunLifecycle, RunRecorder
from raybench.runs.saved_runs import SavedRuns
from raybench.runs.wait_watch import RunScreen, WaitWatch
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation, Role, RunRecord, StopReason


@dataclass(frozen=True, kw_only=True)
class SingleRun(RunRecorder):
    """Trains runs one by one, records and shows them; several threads may use it."""

    session: Session
    keep_groups: bool = True
    """False gives every run new worker processes."""
    limit_s: float | None = None
    """Wall-clock seconds with workers after which a run fails."""

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
        """Train a run to its end, or until `deadline` ends it; continue it from its checkpoint.

        Args:
            spec: The run.
            name: Its name in the study.
            role: Its role in the study.
            source: Trial, cell or side that it repeats.
            test: Measure the metric on the test split.
            judge: Takes every evaluation; a reason ends the run.
            cap_s: Seconds of training after which a run that the time budget ends counts as one
                that missed the target (`cap`).
            save: Takes the file in the pool of the final weights, before the record is written.

        Returns:
            The record, which is written.
        """
        run = RunLifecycle(self, name, spec, role, source=source)
        reason: StopReason | None = None
        for evaluation in run.resume():  # shown before: the run still waits for its workers
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
            goes_on=lambda: stopped_by() is None,
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
        record = run.end(stopped_by=why or stopped_by() or "interrupted", cap_s=cap_s)
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
) -> Iterator[SingleRun]:
    """Watch the runs of a session while they train, and keep their checkpoints and output.

    Args:
        session: The session.
        store: The study's folder.
        deadline: End of the study.
        screen: Shows the runs and what they wait for.
        wait_s: Seconds that a run may wait for machines in all; None: unlimited.
    """
    with (
        WaitWatch(session, deadline, screen, wait_s=wait_s),
        SavedRuns(session.pool, store, say=screen.say, on_fault=deadline.ends_with) as saved,
    ):
        yield SingleRun(
            session=session, store=store, deadline=deadline, progress=screen, saved=saved
        )


def side_by_side(jobs: Sequence[Callable[[], None]], *, slots: int, deadline: Deadline) -> None:
    """Do jobs in their order, `slots` at a time, each in a thread.

    Once `deadline` is over no other job starts. An error in a job ends the study: the others stop
    as for Ctrl-C, and then it is raised.
    """

    def do(job: Callable[[], None]) -> None:
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
        done = [threads.submit(do, job) for job in jobs]
    deadline.raise_fault()  # the first of them
    for one in done:
        one.result()
