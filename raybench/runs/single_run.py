"""Runs of a study outside Ray Tune: before the search, after it, and in other commands."""

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from raybench.cluster.protocol import fault_of
from raybench.cluster.run_client import run_once
from raybench.cluster.session import Session
from raybench.report.live.progress import ProgressDisplay
from raybench.results.store import Store, keep_error
from raybench.runs.deadline import Deadline
from raybench.runs.saved_runs import Disturbed, SavedRuns
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation, Role, RunRecord, StopReason


@dataclass(frozen=True)
class SingleRun:
    """Trains runs one by one, records and shows them; several threads may use it."""

    session: Session
    store: Store
    deadline: Deadline
    progress: ProgressDisplay
    saved: SavedRuns
    keep_groups: bool = True
    """False gives every run new worker processes."""
    disturbed: Disturbed = field(default_factory=Disturbed)
    limit_s: float | None = None
    """Wall-clock seconds with workers after which a run fails."""
    _writing: threading.RLock = field(default_factory=threading.RLock, repr=False)
    """Held while records are written and shown."""

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
    ) -> RunRecord:
        """Train a run to its end, or until `deadline` ends it; continue it from its checkpoint.

        Args:
            spec: the run.
            name: its name in the study.
            role: its role in the study.
            source: trial or cell that it repeats.
            test: measure the metric on the test split.
            judge: takes every evaluation; a reason ends the run.
            cap_s: seconds of training after which a run that the time budget ends counts as one
                that missed the target (`cap`).

        Returns:
            The record, which is written.
        """
        reasons: list[StopReason | None] = [None]

        def evaluated(name: str, evaluation: Evaluation) -> None:
            with self._writing:
                self.store.append(evaluation.line(name, role=role, spec=spec))
                self.progress.evaluated(name, evaluation)
            self.saved.look(name)
            reasons.append(judge(evaluation))

        def say(sentence: str) -> None:
            with self._writing:
                self.progress.say(sentence)

        with self._writing:
            self.progress.started(name, spec)
        for evaluation in self.saved.resume(name, spec):
            evaluated(name, evaluation)
        record, _ = run_once(
            self.session.pool,
            spec,
            name,
            role=role,
            source=source,
            on_evaluation=evaluated,
            stopped_by=lambda: reasons[-1] or self.deadline.reason(),
            on_error=lambda *error: keep_error(self.store, *error, log=self.saved.log(name)),
            on_saved=self.saved.save,
            on_refused=self.saved.refused,
            on_restart=lambda name, why: say(f"trial {name} goes on in new workers: {why}"),
            on_note=lambda name, note: say(f"trial {name}: {note}"),
            test=test,
            keep=self.keep_groups,
            limit_s=self.limit_s,
        )
        if (fault := fault_of(record.message)) is not None:
            self.deadline.ends_with(fault)
        if record.stop == "time_budget" and record.ledger["train"] > cap_s:
            record = replace(record, stop="cap")
        with self._writing:
            record = self.disturbed.judged(record)
            self.store.append(record.line())
            self.saved.over(record)
            self.progress.finished(record)
        return record


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
