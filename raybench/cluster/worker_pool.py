"""The pool of worker groups: one Ray actor that assigns groups to trials and relays commands.

The driver calls `acquire`, `command` and `release`. A worker calls `exchange`, which delivers the
worker's last reply and waits for its next command, so that a command costs one round trip.

The pool keeps the newest checkpoint of every run in a file (`session_files.py`). A run that loses
its workers continues from this checkpoint. Replies contain only the checkpoint's index, because Ray
Tune keeps all replies in memory; the driver copies the file to the results folder.
"""

import asyncio
import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from raybench.cluster import protocol
from raybench.cluster.layout import Node, workers_per_node
from raybench.cluster.protocol import (
    STOPPED,
    Allocation,
    Command,
    Finish,
    Reply,
    RunFailed,
    Start,
)
from raybench.cluster.scheduler import RequestQueue, Reservation, ResourceScheduler, WaitingTrial
from raybench.cluster.session_files import StateFiles, keep_end
from raybench.cluster.worker_group import PoolOptions, WorkerGroup
from raybench.spec.run import ResourceRequest
from raybench.stats.checkpoint import Checkpoint
from raybench.stats.record import Failure
from raybench.training.ranks import Position

TEST_S = 60.0
"""Additional seconds that `stop_running` allows a run that is evaluating the test split."""


@dataclass
class _Unanswered:
    """A command that the workers of a run have not answered yet."""

    grace_s: float = 0.0
    """Seconds that are added to the limit of `stop_running` for this command."""
    began: float = field(default_factory=time.perf_counter)
    """Time at which the command was sent (`time.perf_counter`)."""
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the pool stops waiting for the answer."""


@dataclass
class _PooledRun:
    """State of a run in the pool."""

    checkpoint: Checkpoint | None = None
    """Newest checkpoint of the run; None without one."""
    printed: bytes = b""
    """Output of the run so far; only the end of a long output is kept."""
    group: int | None = None
    """Number of the worker group of the run; None while the run has no workers."""
    max_concurrent: int = 0
    """Largest number of other runs that had workers at the same time as this run."""
    is_starting: bool = False
    """Whether the run's worker group is being started."""
    is_abandoned: bool = False
    """Whether the run was released while its worker group was being started."""
    is_over: bool = False
    """Whether the run has ended for good, so that further requests are refused."""
    unanswered: _Unanswered | None = None
    """Command that the workers have not answered yet; None without one."""


class WorkerPool:
    """Starts worker groups, assigns them to trials, relays commands and keeps checkpoints.

    In this module, a trial is a run of any kind, identified by its name. `session.start_pool` makes
    an actor of this class; all methods run in one event loop.
    """

    def __init__(self, scheduler: ResourceScheduler, options: PoolOptions) -> None:
        self._scheduler, self._options = scheduler, options
        self._queue = RequestQueue(scheduler, options, on_lost=self._close_soon)
        self._groups: dict[int, WorkerGroup] = {}
        """Groups whose workers are alive or starting, keyed by number."""
        self._closing: set[asyncio.Task[None]] = set()
        """Background tasks that close groups; kept here because asyncio does not keep them."""
        self._states = StateFiles(options.scratch)
        self._runs: defaultdict[str, _PooledRun] = defaultdict(_PooledRun)
        """States of the runs, keyed by run name."""
        self._stop = asyncio.Event()
        """Set by `stop_waiting`, which replaces it by a new one for later requests."""

    def attach(self, handle: Any) -> int:
        """Set the handle of this actor, which is passed to the workers; return the process id."""
        self._options = replace(self._options, pool=handle)
        return os.getpid()

    def hold_states_in(self, folder: Path) -> None:
        """Keep run states in a study's folder, if that folder exists on this host."""
        self._states.use_study_folder(folder)

    def incoming_file(self, group: int) -> Path:
        """Return the file for the run state that a worker group is sending."""
        return self._states.incoming(group)

    async def write_chunk(self, group: int, offset: int, chunk: bytes) -> None:
        """Write a chunk of a run state; called by workers that cannot access the file. Arguments:
        see `StateFiles.write`."""
        await asyncio.to_thread(self._states.write, group, offset, chunk)

    async def read_chunk(self, file: Path, offset: int) -> bytes | None:
        """Return a chunk of a run state; called by workers that cannot access the file. Arguments
        and result: see `StateFiles.read`."""
        return await asyncio.to_thread(self._states.read, file, offset)

    def checkpoint(self, trial: str) -> Checkpoint | None:
        """Return the newest checkpoint of a run; None if there is none.

        Raises:
            OSError: A run state, possibly of another run, could not be written.
        """
        if self._states.fault is not None:
            raise self._states.fault
        return self._runs[trial].checkpoint

    def restore(self, trial: str, checkpoint: Checkpoint) -> None:
        """Set a checkpoint of an earlier, interrupted session, from which the run continues."""
        file = self._states.adopt(checkpoint.weights, f"{trial}-{checkpoint.state.index}")
        self._set_checkpoint(trial, replace(checkpoint, weights=file))

    def forget(self, trial: str) -> None:
        """Delete the checkpoint of a run."""
        run = self._runs[trial]
        if run.checkpoint is not None:
            run.checkpoint.weights.unlink(missing_ok=True)
        run.checkpoint = None

    def _set_checkpoint(self, trial: str, checkpoint: Checkpoint) -> None:
        """Set the newest checkpoint of a run, and delete the file of the previous one."""
        before = self._runs[trial].checkpoint
        if before is not None and before.weights != checkpoint.weights:
            before.weights.unlink(missing_ok=True)
        self._runs[trial].checkpoint = checkpoint

    def printed(self, trial: str, *, is_over: bool = False) -> bytes:
        """Return the output of a run so far; if the run is over, the pool also deletes it."""
        run = self._runs[trial]
        output = run.printed
        if is_over:
            run.printed = b""
        return output

    def _collect(self, trial: str, group: WorkerGroup | None, *, is_lost: bool = False) -> None:
        """Append to a run's output what its workers have printed since the last call.

        Does nothing if the group no longer exists. `is_lost`: see `WorkerGroup.take_printed`.
        """
        if group is not None and (printed := group.take_printed(is_lost=is_lost)):
            run = self._runs[trial]
            run.printed = keep_end(run.printed + printed)

    async def acquire(self, trial: str, request: ResourceRequest) -> Allocation:
        """Wait for a worker group and assign it to the trial.

        Raises:
            RunFailed: The workers did not start, `stop_waiting` was called, or the trial was
                released.
        """
        self._refuse_abandoned(trial)
        acquiring = asyncio.ensure_future(self._acquire(trial, request))
        if await _ended_before(acquiring, self._stop):
            return acquiring.result()
        await self.release(trial)
        raise _stopped()

    def stop_waiting(self) -> None:
        """Cancel the requests of all trials that are waiting for workers now."""
        self._stop.set()
        self._stop = asyncio.Event()

    def stop_running(self, least_s: float = 0.0) -> dict[str, float]:
        """End the workers of all runs that have not answered a command for `least_s` seconds.

        A run that is evaluating the test split is given TEST_S seconds more.

        Returns:
            Seconds since that command for each run whose workers are ended, keyed by run name.
        """
        now = time.perf_counter()
        ended = {}
        for trial, run in self._runs.items():
            command = run.unanswered
            if command is None or command.cut.is_set():
                continue
            if now - command.began < least_s + command.grace_s:
                continue
            command.cut.set()
            ended[trial] = now - command.began
        return ended

    async def _acquire(self, trial: str, request: ResourceRequest) -> Allocation:
        """Wait for a worker group and assign it to the trial; a group whose workers do not start is
        not started again."""
        requested = time.perf_counter()
        reserved, waited_for = await self._queue.wait(trial, request)
        while not reserved.is_new and self._has_ended(reserved.group):
            await self._drop(trial, reserved.group)
            reserved, waited_for = await self._queue.wait(trial, request)
        started = time.perf_counter()
        run = self._runs[trial]
        run.is_starting = True
        try:
            group = await self._queue.started(self._open(reserved), reserved.nodes)
        except RunFailed:
            await self._drop(trial, reserved.group)
            raise
        finally:
            run.is_starting = False
        try:
            self._refuse_abandoned(trial)
        except RunFailed:
            self._scheduler.release(trial)
            self._queue.admit()
            raise
        run.group = reserved.group
        running = [other for other in self._runs.values() if other.group is not None]
        for other in running:
            other.max_concurrent = max(len(running) - 1, other.max_concurrent)
        members = group.members()
        return Allocation(
            queue_s=started - requested,
            start_s=time.perf_counter() - started if reserved.is_new else 0.0,
            hosts=tuple(member.host for member in members),
            devices=tuple(member.device for member in members),
            workers_per_node=workers_per_node([member.node for member in members]),
            accelerators=self._scheduler.accelerators(reserved),
            waited_for=waited_for,
            resume=None if run.checkpoint is None else run.checkpoint.state,
        )

    def _refuse_abandoned(self, trial: str) -> None:
        """Raise RunFailed if the run is over or was released while its group was being started."""
        run = self._runs[trial]
        if run.is_abandoned or run.is_over:
            run.is_abandoned = False
            raise _stopped()

    async def command(self, trial: str, command: Command, timeout_s: float) -> list[Reply]:
        """Send a command to every worker of the trial's group and wait for the replies.

        With the command `Start`, the run continues from its newest checkpoint, if there is one.

        Returns:
            The replies in rank order.

        Raises:
            RunFailed: A worker raised an exception, died or did not answer within `timeout_s`
                seconds, or the run was stopped. The group is then closed.
        """
        run = self._runs[trial]
        number = run.group
        if number is None:
            raise _stopped()
        if isinstance(command, Start):
            command = replace(command, resume=run.checkpoint)
        is_test = isinstance(command, Finish) and command.test
        unanswered = _Unanswered(grace_s=TEST_S if is_test else 0.0)
        run.unanswered = unanswered
        try:
            asking = asyncio.ensure_future(self._ask(number, command, timeout_s))
            if not await _ended_before(asking, unanswered.cut):
                if run.group is not None:  # otherwise the run was released in the meantime
                    run.group = None
                    self._collect(trial, self._groups.get(number), is_lost=True)
                    self._close_soon([number])
                raise _stopped()
            replies = asking.result()
            self._collect(trial, self._groups.get(number))
        except RunFailed:
            if run.group is not None:
                await self._drop(trial, number)
            raise
        finally:
            if run.unanswered is unanswered:
                run.unanswered = None
        return [self._without_state(trial, number, replies[0]), *replies[1:]]

    def _without_state(self, trial: str, number: int, first: Reply) -> Reply:
        """Keep the run state (checkpoint or final weights) that rank 0 has sent before its reply.

        If a checkpoint cannot be written, the run continues, and the method `checkpoint` raises the
        error. If the final weights cannot be written, RunFailed is raised.

        Returns:
            The reply `first` of rank 0 without the state: it contains the index of the checkpoint,
            or the file of the weights.
        """
        if isinstance(first, protocol.Finished):
            self.forget(trial)
        if not isinstance(first, protocol.WorkerAnswer) or first.sent_bytes is None:
            return first
        sent = partial(self._states.keep, number, num_bytes=first.sent_bytes)
        if isinstance(first, protocol.Finished):
            try:
                return replace(first, weights=sent(f"{trial}-weights"))
            except OSError as error:
                raise RunFailed(
                    Failure.ERROR, f"the weights could not be written: {error}"
                ) from None
        assert isinstance(first, protocol.Progress)
        assert first.state is not None
        index = first.state.index
        with contextlib.suppress(OSError):
            file = sent(f"{trial}-{index}")
            self._set_checkpoint(trial, Checkpoint(state=first.state, weights=file))
        return replace(first, state=None, sent_bytes=None, saved=index)

    async def release(self, trial: str, *, keep: bool = True, for_good: bool = False) -> int:
        """Release the trial's workers, or cancel its request for workers.

        Args:
            trial: Name of the run. Nothing is released if it has neither workers nor a request.
            keep: Whether the worker group stays alive for other runs; otherwise it is closed.
            for_good: Whether later requests for workers of this run are refused; needed if the
                process that trains the run may not know that the run is over.

        Returns:
            The largest number of other runs that had workers at the same time as this run.
        """
        run = self._runs[trial]
        if for_good:
            run.is_over = True
            self._queue.forget(trial)
        self._queue.cancel(trial)
        run.is_abandoned = run.is_abandoned or run.is_starting
        number, run.group = run.group, None
        if number is not None:
            group = self._groups[number]
            # While a command is unanswered, the workers are still training, and another run would
            # have to wait for them.
            if keep and run.unanswered is None and await group.end_run():
                self._scheduler.release(trial)
            else:
                await self._close(number, force=keep)
            self._collect(trial, group)
        self._queue.admit()
        concurrent, run.max_concurrent = run.max_concurrent, 0
        return concurrent

    async def exchange(
        self, number: int, rank: int, turn: int, reply: Reply | None
    ) -> Command | None:
        """Deliver a worker's reply and return its next command; see `WorkerGroup.exchange`."""
        group = self._groups.get(number)
        return protocol.Close() if group is None else await group.exchange(rank, turn, reply)

    def compare(self, number: int, position: Position) -> str | None:
        """Record the position of a rank of group `number` in the user's training loop; return a
        sentence if some ranks can never synchronize again, otherwise None."""
        group = self._groups.get(number)
        return None if group is None else group.compare(position)

    async def shutdown(self) -> None:
        """Cancel all requests and close every group."""
        for trial in self._queue.trials():
            await self.release(trial)
        await asyncio.gather(*map(self._close, list(self._groups)))

    def groups(self) -> list[tuple[str | None, ResourceRequest, list[int]]]:
        """Return the trial (None if idle), the request and the workers' process ids of every group;
        used by tests."""
        trials = {run.group: trial for trial, run in self._runs.items()}
        return [
            (trials.get(number), group.request, [member.pid for member in group.members()])
            for number, group in self._groups.items()
        ]

    def waiting(self) -> dict[str, WaitingTrial]:
        """Return the requests of the trials that wait for workers, keyed by trial name."""
        return self._queue.waiting()

    async def nodes(self) -> tuple[Node, ...]:
        """Return the current nodes of the cluster."""
        await self._queue.refresh_nodes()
        return tuple(node for node in self._scheduler.nodes if not node.is_gone)

    async def _open(self, reserved: Reservation) -> WorkerGroup:
        """Return the worker group of a reservation; a new group is started first.

        Raises:
            RunFailed: The workers did not start.
        """
        for number in reserved.evict:
            evicted = self._groups.get(number)
            await self._close(number)
            if evicted is not None:
                await evicted.wait_for_end()  # until then its processes occupy the GPUs
        if reserved.is_new:
            nodes = [self._scheduler.nodes[node].id for node in reserved.nodes]
            group = WorkerGroup(reserved.group, reserved.request, self._options, nodes)
            self._groups[reserved.group] = group
            await group.start()
        return self._groups[reserved.group]

    def _has_ended(self, number: int) -> bool:
        """Whether a group was closed or has lost its workers, for example together with a host."""
        group = self._groups.get(number)
        return group is None or group.ended.is_set()

    async def _ask(self, number: int, command: Command, timeout_s: float) -> list[Reply]:
        """Send a command to every worker of a group and return the replies in rank order.

        The command `Start` also contains the cores to which each worker is pinned.
        """
        group = self._groups[number]
        commands: list[Command] = [command] * group.request.num_workers
        if isinstance(command, Start):
            taken = {
                c for other in self._groups.values() if other is not group for c in other.cores
            }
            commands = [replace(command, cores=cores) for cores in group.choose_cores(taken)]
        return await group.ask(commands, timeout_s)

    async def _close(self, number: int, *, force: bool = False) -> None:
        """End a group, if it still exists, and delete its reservation once its workers are gone.

        Until then, Ray counts the workers' CPUs and GPUs as in use. If the workers take long to
        end, the reservation is deleted later, in the background.
        """
        group = self._groups.get(number)
        if group is not None:
            await group.close(force=force)
            self._groups.pop(number, None)
        if group is None or group.ended.is_set():
            self._scheduler.remove(number)
            return

        async def free_when_gone() -> None:
            await group.ended.wait()
            self._scheduler.remove(number)
            self._queue.admit()

        self._in_background(free_when_gone())

    def _close_soon(self, numbers: list[int]) -> None:
        """End groups and delete their reservations in the background."""

        async def close_and_admit(number: int) -> None:
            await self._close(number, force=True)
            self._queue.admit()

        for number in numbers:
            self._in_background(close_and_admit(number))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in a background task."""
        task = asyncio.ensure_future(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _drop(self, trial: str, number: int) -> None:
        """Close the broken worker group of a trial, and serve the next requests."""
        self._runs[trial].group = None
        self._states.drop(number)
        group = self._groups.get(number)
        await self._close(number, force=True)
        self._collect(trial, group, is_lost=True)
        await self._queue.refresh_nodes()  # the group's host may be gone as well
        self._queue.admit()


def _stopped() -> RunFailed:
    """Return the error for a run that was stopped."""
    return RunFailed(STOPPED, "the run was stopped")


async def _ended_before(work: "asyncio.Future[Any]", stop: asyncio.Event) -> bool:
    """Wait until `work` ends or `stop` is set; return whether the work has ended."""
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not work.done():
        # Read the error of `work` when it ends; otherwise asyncio logs the error.
        work.add_done_callback(lambda ended: ended.exception())
    return work.done()
