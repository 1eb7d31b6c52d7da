"""A worker group: a Ray Train trainer whose workers stay alive and execute commands of the pool."""

import asyncio
import contextlib
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from raybench.cluster.protocol import (
    Close,
    Command,
    Crashed,
    Finish,
    Finished,
    Measure,
    Ready,
    Reply,
    RunFailed,
    Start,
    WorkerAnswer,
)
from raybench.cluster.ray_internals import trainer as internals
from raybench.cluster.ray_internals.rendezvous import MISNAMED, UNREACHED, rendezvous_config
from raybench.cluster.session_files import prefix_rank, unsent_output
from raybench.spec.errors import ErrorCode
from raybench.spec.run import ResourceRequest
from raybench.stats.record import Failure
from raybench.training.ranks import Position, parting

NODE_ID = "ray.io/node-id"
"""Label of every node in Ray. Its value is the node's id, by which a worker's node is selected."""
NOMINAL_CPU = 0.001
"""CPUs reserved in Ray per worker if Ray runs on this machine only: there, the pool itself assigns
the cores."""


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """Options shared by all worker groups of a session."""

    scratch: str
    """The session's temporary folder on the driver's host."""
    search_path: str
    """Folder of the user's own modules (`module:Class`)."""
    is_local: bool
    """Whether raybench has started Ray itself, on this machine only."""
    grows: bool = False
    """Whether the cluster has an autoscaler."""
    interface: str | None = None
    """Network interface that the user has set for all hosts; None to detect it on each host."""
    pool: Any = None
    """Handle of the pool's actor; None until the actor runs."""


def build_trainer(
    number: int, request: ResourceRequest, options: PoolOptions, nodes: Sequence[str] = ()
) -> Any:
    """Return a Ray Train trainer whose workers execute commands of the pool.

    Args:
        number: Number of the group.
        request: Framework, number and resources of the workers.
        options: Options of the pool.
        nodes: Ray node id of every worker, in rank order; ignored if `options.is_local`.
    """
    import ray.train

    # Only the pool's process imports what the workers run; the driver needs none of it.
    from raybench.cluster.worker import serve

    # On a cluster, Ray must reserve the workers' cores, or other jobs would take them.
    resources: dict[str, float] = {
        "CPU": NOMINAL_CPU if options.is_local else request.cpus_per_worker
    }
    if request.gpus_per_worker:
        resources["GPU"] = request.gpus_per_worker
    config = {
        "pool": options.pool,
        "group": number,
        "request": request,
        "search_path": options.search_path,
        "scratch": options.scratch,
    }
    arguments = {
        "train_loop_config": config,
        "scaling_config": ray.train.ScalingConfig(
            num_workers=request.num_workers,
            use_gpu=request.gpus_per_worker > 0,
            resources_per_worker=resources,
            placement_strategy=request.packing.upper(),
            accelerator_type=request.accelerator_type,
            label_selector=None if options.is_local else [{NODE_ID: node} for node in nodes],
        ),
        "run_config": ray.train.RunConfig(
            name=f"group-{number}",
            storage_path=options.scratch,
            # The pool decides whether a group is started again; Ray by itself would retry forever.
            failure_config=ray.train.FailureConfig(max_failures=0, controller_failure_limit=0),
        ),
    }
    file = Path(options.scratch) / f"group-{number}.store"
    if request.framework == "python":  # one worker, no rendezvous
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer as Trainer
    elif request.framework == "torch":
        from ray.train.torch import TorchTrainer as Trainer

        through = {"file": str(file)} if options.is_local else {"interface": options.interface}
        arguments |= rendezvous_config("torch", **through)
    else:
        from ray.train.tensorflow import TensorflowTrainer as Trainer

        if not options.is_local:
            arguments |= rendezvous_config("tensorflow", interface=options.interface)
    trainer = Trainer(serve, **arguments)
    return internals.with_controller_in_process(internals.without_unused_callbacks(trainer))


POLL_S = 20.0
"""Seconds after which `exchange` returns without a command; the worker then calls it again."""
START_TIMEOUT_S, CLUSTER_START_TIMEOUT_S = 180.0, 780.0
"""Timeouts in seconds of the start of a group, on this machine and on a cluster. The nodes of a
cluster may first install the job's runtime environment, for which Ray allows 600 s."""
END_RUN_TIMEOUT_S = 60.0
"""Timeout of `WorkerGroup.end_run` in seconds."""
CLOSE_TIMEOUT_S = 20.0
"""Seconds to wait for the end of workers that were told to close or were killed."""
LIFE_SIGN_TIMEOUT_S = 30.0
"""Seconds after which an actor that does not answer counts as lost."""


class WorkerGroup:
    """The pool's side of one worker group; runs in the pool's event loop.

    `trainer.fit()` blocks while the group is alive, so it runs in a separate thread. Once `fit`
    returns or raises an error, the group has ended, and calls that wait for a reply raise
    RunFailed.
    """

    def __init__(
        self,
        number: int,
        request: ResourceRequest,
        options: PoolOptions,
        nodes: Sequence[str] = (),
    ) -> None:
        """Create a group without workers; `start` starts them. Arguments: see `build_trainer`."""
        self.request = request
        self.cores: list[tuple[str, int]] = []
        """(node, core) of every core to which the current run is pinned."""
        self._number, self._options, self._nodes = number, options, nodes
        self._loop = asyncio.get_running_loop()
        self._inbox: list[asyncio.Queue[Command]] = [
            asyncio.Queue() for _ in range(request.num_workers)
        ]
        """Queues of commands that were not received yet, one per rank."""
        self._turns = [0] * request.num_workers
        """Number of replies received, one entry per rank."""
        self._next_commands: dict[int, asyncio.Task[Command]] = {}
        """Tasks that wait for the next command, keyed by rank."""
        self._members: dict[int, Ready] = {}
        """First message of each worker, keyed by rank."""
        self._printed: list[bytes] = []
        """Output that the workers have sent and `take_printed` has not returned yet."""
        self._replies: dict[int, Reply] = {}
        """Replies to the current command, keyed by rank."""
        self._positions: dict[int, Position] = {}
        """Positions of the ranks in a user's own training loop, keyed by rank."""
        self._answered: asyncio.Future[list[Reply]] = self._loop.create_future()
        """Replies of all ranks to the current command, or the error of a rank that has crashed."""
        self.ended = asyncio.Event()
        """Set when the workers are gone, for any reason."""
        self._end_message = ""
        """One line that says why the group has ended; empty until then."""
        self._has_run = False
        """Whether a run was started that has not finished."""
        self._trainer: Any = None
        """Trainer that runs in the group's thread; None before `start`."""

    async def start(self) -> None:
        """Start the workers and wait until all have sent `Ready`.

        Raises:
            RunFailed: Some workers did not start in time; the caller must call `close` to end the
                others.
        """
        threading.Thread(target=self._fit, name=f"group-{self._number}", daemon=True).start()
        timeout_s = START_TIMEOUT_S if self._options.is_local else CLUSTER_START_TIMEOUT_S
        replies = await self._wait(timeout_s, "did not start", failure=Failure.WORKER_LOST)
        assert all(isinstance(reply, Ready) for reply in replies)

    async def ask(self, commands: list[Command], timeout_s: float) -> list[Reply]:
        """Send `commands[r]` to each rank r and return the replies in rank order.

        Raises:
            RunFailed: A worker has crashed, the group has ended, or not all workers have answered
                within `timeout_s` seconds.
        """
        if self.ended.is_set():
            raise self._end()
        self._replies = {}
        if isinstance(commands[0], Start):
            self._positions = {}
        self._answered = self._loop.create_future()
        self._has_run = not isinstance(commands[0], Finish | Measure)
        for inbox, command in zip(self._inbox, commands, strict=True):
            inbox.put_nowait(command)
        return await self._wait(timeout_s, "did not answer")

    async def exchange(self, rank: int, turn: int, reply: Reply | None) -> Command | None:
        """Receive a worker's reply and return its next command.

        Args:
            rank: Rank of the worker.
            turn: Number of the reply, counted from 1. If the answer to a call was lost, the worker
                repeats the call with the same `turn` and gets the same command.
            reply: The reply; None if the worker has sent it in an earlier call.

        Returns:
            The command. None if there is none within POLL_S seconds; the worker then calls again.
        """
        if turn > self._turns[rank]:
            assert reply is not None
            self._turns[rank] = turn
            self._next_commands[rank] = asyncio.ensure_future(self._inbox[rank].get())
            self._receive(rank, reply)
        next_command = self._next_commands[rank]
        await asyncio.wait({next_command}, timeout=POLL_S)
        return next_command.result() if next_command.done() else None

    def compare(self, position: Position) -> str | None:
        """Record a rank's position in the user's training loop; return a sentence if some ranks can
        never synchronize again, otherwise None."""
        self._positions[position.rank] = position
        return parting(self._positions.values())

    def _receive(self, rank: int, reply: Reply) -> None:
        """Record a worker's reply; set the result of `_answered` if the reply is the last one, or
        its error if the worker has crashed."""
        if isinstance(reply, WorkerAnswer | Crashed) and reply.printed:
            self._printed.append(prefix_rank(reply.printed, rank, self.request.num_workers))
            reply = replace(reply, printed=b"")
        self._replies[rank] = reply
        if isinstance(reply, Ready):
            self._members[rank] = reply
        if not self._answered.done():
            if isinstance(reply, Crashed):
                self._answered.set_exception(
                    RunFailed(reply.failure, reply.message, reply.traceback, reply.mistake)
                )
            elif len(self._replies) == self.request.num_workers:
                self._answered.set_result([self._replies[r] for r in sorted(self._replies)])

    async def end_run(self) -> bool:
        """End the run if it has not finished, and free its cores; return whether the group can
        start another run."""
        if self._has_run:
            try:
                replies = await self.ask([Finish()] * self.request.num_workers, END_RUN_TIMEOUT_S)
            except RunFailed:
                return False
            if not all(isinstance(reply, Finished) for reply in replies):
                return False  # the workers were still busy with the previous command
        self.cores = []
        return not self.ended.is_set()

    async def wait_for_end(self) -> None:
        """Wait until the workers are gone, at most CLOSE_TIMEOUT_S seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), CLOSE_TIMEOUT_S)

    async def close(self, *, force: bool) -> None:
        """End the workers: send the command `Close`, and kill those that hang. With `force`, kill
        all at once.

        If the workers are still not gone after CLOSE_TIMEOUT_S seconds, because their host was
        lost, the method returns, and `ended` is set later.
        """
        if not force:
            for inbox in self._inbox:
                inbox.put_nowait(Close())
            await self.wait_for_end()
        if not self.ended.is_set():
            for member in self._members.values():
                ray.kill(member.actor, no_restart=True)
            # Also end workers that have not sent `Ready` yet.
            await asyncio.to_thread(internals.end_workers, self._trainer)
            await self.wait_for_end()

    def take_printed(self, *, is_lost: bool = False) -> bytes:
        """Return what the workers have printed since the last call.

        If the workers are gone (`is_lost`), the result includes what workers on this host had
        printed and not sent.
        """
        if is_lost:
            number = self.request.num_workers
            unsent = unsent_output(self._options.scratch, self._number, number)
            self._printed += [prefix_rank(content, rank, number) for rank, content in unsent]
        printed, self._printed = b"".join(self._printed), []
        return printed

    def choose_cores(self, taken: set[tuple[str, int]]) -> list[tuple[int, ...]]:
        """Choose the CPU cores to which each rank is pinned.

        Workers with GPUs share all cores near their GPUs, because one core cannot keep a GPU busy.

        Args:
            taken: (node, core) of every core to which other groups are pinned.

        Returns:
            The cores of each rank, in rank order. If too few cores are free, every rank has an
            empty tuple, so that no rank is pinned.
        """
        self.cores, chosen = [], []
        if self.request.gpus_per_worker:
            return [member.cores for member in self.members()]
        for member in self.members():
            free = [
                core
                for core in member.cores
                if (member.node, core) not in taken and (member.node, core) not in self.cores
            ][: self.request.cpus_per_worker]
            if len(free) < self.request.cpus_per_worker:
                self.cores = []
                return [()] * self.request.num_workers
            self.cores += [(member.node, core) for core in free]
            chosen.append(tuple(free))
        return chosen

    def members(self) -> list[Ready]:
        """Return the `Ready` message of every rank, in rank order."""
        return [self._members[rank] for rank in sorted(self._members)]

    async def _wait(
        self, timeout_s: float, problem: str, *, failure: Failure = Failure.TIMEOUT
    ) -> list[Reply]:
        """Wait until all ranks have replied, and return the replies in rank order.

        Args:
            timeout_s: Seconds to wait; may be infinite.
            problem: What the workers did not do in time, for the message.
            failure: `RunFailed.failure` after the timeout.

        Raises:
            RunFailed: A worker has crashed or was lost, or not all have replied in time.
        """
        ended: asyncio.Future[Any] = asyncio.ensure_future(self.ended.wait())
        both = {self._answered, ended}
        limit_s = timeout_s if math.isfinite(timeout_s) else None
        done, _ = await asyncio.wait(both, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if self._answered in done:
            try:
                return self._answered.result()
            except RunFailed as crash:
                # If a worker is lost during a collective, the other workers raise errors before
                # Ray has noticed the loss.
                if await asyncio.to_thread(self._has_lost_a_worker):
                    raise RunFailed(Failure.WORKER_LOST, internals.LOST) from crash
                raise
        if done:
            raise self._end()
        raise RunFailed(failure, f"the workers {problem} within {timeout_s:.0f} s")

    def _end(self) -> RunFailed:
        """Return the error for a group that has ended: its workers were lost, or the user has set a
        wrong network interface."""
        if self._end_message.startswith(MISNAMED):
            return RunFailed(Failure.ERROR, self._end_message, mistake=ErrorCode.UNREACHABLE)
        return RunFailed(Failure.WORKER_LOST, self._end_message)

    def _has_lost_a_worker(self) -> bool:
        """Whether any worker's actor does not answer."""
        if self.request.num_workers == 1:
            return False  # the only worker has just answered
        actors = [member.actor for member in self._members.values()]
        return internals.has_lost_one(actors, timeout_s=LIFE_SIGN_TIMEOUT_S)

    def _fit(self) -> None:
        """Run the trainer until the group ends; runs in a separate thread."""
        self._end_message = "the worker group has ended"
        try:
            self._trainer = build_trainer(self._number, self.request, self._options, self._nodes)
            self._trainer.fit()
        except Exception as error:  # noqa: BLE001 (any failure of the group ends it; reported)
            self._end_message = end_message(error)
        self._loop.call_soon_threadsafe(self.ended.set)


def end_message(error: Exception) -> str:
    """Return one line that explains why a group has ended; `error` was raised by its trainer."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    for line in lines:
        if UNREACHED in line:
            return line[line.index(UNREACHED) :]
    last = lines[-1] if lines else ""
    known = [sentence for words, sentence in internals.MEANINGS.items() if words in last]
    return known[0] if known else f"{type(error).__name__}: {last}"
