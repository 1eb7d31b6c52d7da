"""A worker group: a live TorchTrainer or TensorflowTrainer whose workers wait for commands."""

import asyncio
import contextlib
import threading
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
)
from raybench.cluster.ray_internals.actors import (
    has_lost_one,
    has_not_started,
    is_lost_process,
    is_out_of_reach,
)
from raybench.cluster.ray_internals.trainer import end_workers
from raybench.cluster.reach import UNREACHED
from raybench.cluster.trainers import PoolOptions, build_trainer
from raybench.core.placement import Placement

LOST = "a worker process has died: killed, out of memory or crashed"
OUT_OF_REACH = "a worker did not answer any more: its host, or the network to it, was lost"
NOT_STARTED = "the workers did not start in time: a host was lost, or its processors are taken"
POLL_S = 20.0
"""A worker that has no command by then is told so, and asks again."""
START_TIMEOUT_S = 180.0
SETTLE_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 20.0
LIFE_SIGN_TIMEOUT_S = 30.0


class WorkerGroup:
    """Owner's side of one group; lives in the pool's event loop.

    `trainer.fit()` blocks for as long as the group lives, so it has a thread of its own. When
    it returns or raises, the group is gone, and whoever waits for a reply learns why.
    """

    def __init__(
        self,
        number: int,
        placement: Placement,
        options: PoolOptions,
        nodes: tuple[int, ...] = (),
    ) -> None:
        """`nodes`: where the admission has put the workers; none lets Ray choose."""
        self.placement = placement
        self.cores: list[tuple[str, int]] = []
        """(node, core) of every core the present run is pinned to."""
        self._number = number
        self._options = options
        self._planned = nodes
        self._loop = asyncio.get_running_loop()
        self._inbox: list[asyncio.Queue[Command]] = [
            asyncio.Queue() for _ in range(placement.num_workers)
        ]
        self._turns = [0] * placement.num_workers
        """How many replies each rank has handed in."""
        self._following: dict[int, asyncio.Task[Command]] = {}
        """By rank, the command that follows its last reply."""
        self._members: dict[int, Ready] = {}
        self._replies: dict[int, Reply] = {}
        self._answered: asyncio.Future[list[Reply]] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._end_message = ""
        self._has_run = False
        self._trainer: Any = None
        """What its thread runs; None before."""

    @property
    def has_ended(self) -> bool:
        """Whether its workers are gone, for whatever reason."""
        return self._ended.is_set()

    async def start(self) -> None:
        """Start the workers and wait until all have introduced themselves.

        Where they do not, those that have are known all the same: `close` ends them.
        """
        threading.Thread(target=self._fit, name=f"group-{self._number}", daemon=True).start()
        replies = await self._wait(START_TIMEOUT_S, "did not start")
        assert all(isinstance(reply, Ready) for reply in replies)

    async def ask(self, commands: list[Command], timeout_s: float) -> list[Reply]:
        """Give rank r the command r and wait for all replies."""
        if self._ended.is_set():
            raise RunFailed("worker_lost", self._end_message)
        self._replies = {}
        self._answered = self._loop.create_future()
        self._has_run = not isinstance(commands[0], Finish | Measure)
        for inbox, command in zip(self._inbox, commands, strict=True):
            inbox.put_nowait(command)
        return await self._wait(timeout_s, "did not answer")

    async def exchange(self, rank: int, turn: int, reply: Reply | None) -> Command | None:
        """Worker side: take the reply of a turn, give the command that follows it.

        None where there is none yet: the worker asks again. It may ask twice for the same turn,
        and is given the same, since an answer can be lost on its way.
        """
        if turn > self._turns[rank]:
            assert reply is not None, "it is kept back only where it has been taken"
            self._turns[rank] = turn
            self._following[rank] = asyncio.ensure_future(self._inbox[rank].get())
            self._take(rank, reply)
        following = self._following[rank]
        await asyncio.wait({following}, timeout=POLL_S)
        return following.result() if following.done() else None

    def _take(self, rank: int, reply: Reply) -> None:
        self._replies[rank] = reply
        if isinstance(reply, Ready):
            self._members[rank] = reply
        if not self._answered.done():
            if isinstance(reply, Crashed):
                self._answered.set_exception(
                    RunFailed(reply.failure, reply.message, reply.traceback)
                )
            elif len(self._replies) == self.placement.num_workers:
                self._answered.set_result([self._replies[r] for r in sorted(self._replies)])

    async def settle(self) -> bool:
        """End a run that is still open; return whether the group can serve another."""
        if not self._has_run:
            return not self._ended.is_set()
        try:
            replies = await self.ask([Finish()] * self.placement.num_workers, SETTLE_TIMEOUT_S)
        except RunFailed:
            return False
        return all(isinstance(reply, Finished) for reply in replies)

    async def gone(self) -> None:
        """Wait until its workers are gone."""
        await self._ended.wait()

    async def close(self, *, force: bool) -> None:
        """End the workers: by command, or by killing them when `force` or when they hang.

        Ray may need longer than this waits (a lost host): `has_ended` says whether they are gone.
        """
        if not force:
            for inbox in self._inbox:
                inbox.put_nowait(Close())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), CLOSE_TIMEOUT_S)
        if not self._ended.is_set():
            for member in self._members.values():
                ray.kill(member.actor, no_restart=True)
            await asyncio.to_thread(end_workers, self._trainer)  # who has not been heard of, too
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), CLOSE_TIMEOUT_S)

    def choose_cores(self, taken: set[tuple[str, int]]) -> list[tuple[int, ...]]:
        """Reserve cores for each rank, apart from those `taken`; none where there are too few.

        Workers of GPUs share the cores next to theirs: one core would starve a GPU.
        """
        self.cores, chosen = [], []
        if self.placement.gpus_per_worker:
            return [member.cores for _, member in sorted(self._members.items())]
        for rank in range(self.placement.num_workers):
            member = self._members[rank]
            free = [
                core
                for core in member.cores
                if (member.node, core) not in taken and (member.node, core) not in self.cores
            ][: self.placement.cpus_per_worker]
            if len(free) < self.placement.cpus_per_worker:
                self.cores = []
                return [()] * self.placement.num_workers
            self.cores += [(member.node, core) for core in free]
            chosen.append(tuple(free))
        return chosen

    def hosts(self) -> tuple[str, ...]:
        """Host name of every rank."""
        return tuple(self._members[rank].host for rank in sorted(self._members))

    def nodes(self) -> list[str]:
        """Ray's id of the node of every rank."""
        return [self._members[rank].node for rank in sorted(self._members)]

    def devices(self) -> tuple[str, ...]:
        """Device of every rank."""
        return tuple(self._members[rank].device for rank in sorted(self._members))

    def pids(self) -> list[int]:
        """Process id of every rank."""
        return [self._members[rank].pid for rank in sorted(self._members)]

    async def _wait(self, timeout_s: float, problem: str) -> list[Reply]:
        ended = asyncio.ensure_future(self._ended.wait())
        watched: set[asyncio.Future[Any]] = {self._answered, ended}
        done, _ = await asyncio.wait(
            watched, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        ended.cancel()
        if self._answered in done:
            try:
                return self._answered.result()
            except RunFailed as failure:
                # In a collective the survivors of a lost worker raise errors of their own,
                # and say so before Ray has noticed the loss.
                if await asyncio.to_thread(self._has_lost_a_worker):
                    raise RunFailed("worker_lost", LOST) from failure
                raise
        if done:
            raise RunFailed("worker_lost", self._end_message)
        raise RunFailed("timeout", f"the workers {problem} within {timeout_s:.0f} s")

    def _has_lost_a_worker(self) -> bool:
        """Ask every worker's actor for a sign of life."""
        if self.placement.num_workers == 1:
            return False  # it has just answered
        actors = [member.actor for member in self._members.values()]
        return has_lost_one(actors, timeout_s=LIFE_SIGN_TIMEOUT_S)

    def _fit(self) -> None:
        message = "the worker group has ended"
        try:
            self._trainer = build_trainer(
                self._number, self.placement, self._options, self._planned
            )
            self._trainer.fit()
        except Exception as error:  # noqa: BLE001 (any failure of the group ends it; reported)
            message = end_message(error)
        self._loop.call_soon_threadsafe(self._end, message)

    def _end(self, message: str) -> None:
        self._end_message = message
        self._ended.set()


def end_message(error: Exception) -> str:
    """Return in one line why a group has ended, from what its trainer raised."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    for line in lines:
        if UNREACHED in line:
            return line[line.index(UNREACHED) :]
    last = lines[-1] if lines else ""
    if is_lost_process(last):
        return LOST
    if has_not_started(last):
        return NOT_STARTED
    return OUT_OF_REACH if is_out_of_reach(last) else f"{type(error).__name__}: {last}"
