"""The worker groups that are alive: opened as granted, closed when another needs the room."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from raybench.cluster.admission import Admission, Grant
from raybench.cluster.protocol import Command, Reply, Start
from raybench.cluster.trainers import PoolOptions
from raybench.cluster.worker_group import CLOSE_TIMEOUT_S, WorkerGroup


class LiveGroups:
    """Groups by number; which of them there should be is the admission's to say."""

    def __init__(self, options: PoolOptions, admission: Admission) -> None:
        """`admission` knows the nodes of now."""
        self._options, self._admission = options, admission
        self._groups: dict[int, WorkerGroup] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.on_freed: Callable[[], object] = lambda: None
        """Called where a group is gone that nobody waits for."""

    def attach(self, pool: Any) -> None:
        """Take the pool's own handle, which the workers need."""
        self._options = replace(self._options, pool=pool)

    def get(self, number: int) -> WorkerGroup | None:
        """Return a group; None if it has gone."""
        return self._groups.get(number)

    def __iter__(self) -> Iterator[tuple[int, WorkerGroup]]:
        return iter(self._groups.items())

    async def open(self, grant: Grant) -> WorkerGroup:
        """Return the granted group, started if it is new; RunFailed if it does not start."""
        for number in grant.evict:
            evicted = self._groups.get(number)
            await self.close(number)
            if evicted is not None and not evicted.has_ended:  # its processes hold their GPUs
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(evicted.gone(), CLOSE_TIMEOUT_S)
        if grant.is_new:
            options = replace(self._options, nodes=tuple(self._admission.nodes))
            group = WorkerGroup(grant.group, grant.placement, options, grant.nodes)
            self._groups[grant.group] = group
            await group.start()
        return self._groups[grant.group]

    def has_ended(self, number: int) -> bool:
        """Whether a group is there no more, or none of its workers: its host may have died."""
        group = self._groups.get(number)
        return group is None or group.has_ended

    def close_soon(self, numbers: list[int]) -> None:
        """End groups and free their places, beside whatever else goes on."""

        async def close(number: int) -> None:
            await self.close_and_free(number, force=True)
            self.on_freed()

        for number in numbers:
            task = asyncio.ensure_future(close(number))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self, number: int, *, force: bool = False) -> None:
        """End a group, if it is still there."""
        group = self._groups.get(number)
        if group is not None:
            await group.close(force=force)
            self._groups.pop(number, None)

    async def close_and_free(self, number: int, *, force: bool = False) -> None:
        """End a group; the books give its place to others once its workers are gone.

        Until then Ray holds their CPUs and GPUs. Where that takes long, nobody here waits for it.
        """
        group = self._groups.get(number)
        await self.close(number, force=force)
        if group is None or group.has_ended:
            self._admission.remove(number)
            return
        task = asyncio.ensure_future(self._free_when_gone(number, group))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _free_when_gone(self, number: int, group: WorkerGroup) -> None:
        await group.gone()
        self._admission.remove(number)
        self.on_freed()

    async def free(self, number: int) -> bool:
        """End what a group runs and free its cores; return whether it can serve another run."""
        group = self._groups[number]
        can_serve = await group.settle()
        if can_serve:
            group.cores = []
        return can_serve

    async def close_all(self) -> None:
        """End every group."""
        await asyncio.gather(*(self.close(number) for number in list(self._groups)))

    async def ask(self, number: int, command: Command, timeout_s: float) -> list[Reply]:
        """Give every worker of a group a command; a new run is pinned to cores of its own."""
        group = self._groups[number]
        commands: list[Command] = [command] * group.placement.num_workers
        if isinstance(command, Start):
            taken = {c for one in self._groups.values() if one is not group for c in one.cores}
            commands = [replace(command, cores=own) for own in group.choose_cores(taken)]
        return await group.ask(commands, timeout_s)

    def nodes(self, number: int) -> list[int]:
        """Return the node of each of a group's workers; none if one is on a node not known."""
        known = [node.id for node in self._admission.nodes]
        nodes = self._groups[number].nodes()
        return [known.index(node) for node in nodes] if set(nodes) <= set(known) else []

    def accelerators(self, number: int) -> tuple[str, ...]:
        """Return the models of a group's GPUs, each once; none for a group without GPUs."""
        if not self._groups[number].placement.gpus_per_worker:
            return ()
        models = {self._admission.nodes[node].accelerator for node in self.nodes(number)}
        return tuple(sorted(models - {""}))
