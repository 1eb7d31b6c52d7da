"""Trials that wait for their group: each learns of its grant, and what it has waited for."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from raybench.cluster.admission import Admission, Grant
from raybench.cluster.layout import Node, as_nodes, num_nodes
from raybench.cluster.protocol import STOPPED, HostLeaves, RunFailed
from raybench.cluster.ray_internals import nodes as internals
from raybench.cluster.worker_group import PoolOptions, WorkerGroup
from raybench.spec.run import Placement

LOOK_S = 2.0
"""Seconds between two looks at the nodes and at what others hold; notices of a node's end come half
a minute ahead, or more."""
AGAIN_S = 30.0
"""A request is sent again after this many seconds: another job's may have taken its place."""


@dataclass(frozen=True)
class Waiting:
    """A trial that waits for its group."""

    what: str
    """Missing resource, as `what_is_missing` says it, or whose turn is before."""
    seconds: float
    """Since it has asked."""
    short_s: float
    """Seconds of all its waiting in which the machines were missing, whatever runs of ours held."""


class Scaling:
    """One request for the whole pool, updated as the waiting changes; lives in its event loop."""

    def __init__(
        self,
        *,
        is_on: bool,
        send: Callable[[Sequence[Mapping[str, float]]], None] = internals.request,
    ) -> None:
        """`is_on`: whether the cluster has an autoscaler; without one nothing is sent."""
        self._is_on, self._send = is_on, send
        self._asked: list[dict[str, float]] | None = None
        """Message that stands; None until something was sent: it may be what a killed driver has
        left."""
        self._sent = 0.0

    async def ask(self, admission: Admission) -> None:
        """Ask for what waits now and for what would be kept beside it; for nothing if none does.

        The first time in any case: a request stands until another takes its place, and the hosts
        that a killed driver has asked for would be kept, and paid for, without end.
        A request that Ray does not take is sent again at the next look.
        """
        groups = admission.needed()
        wanted = internals.bundles_of(groups, admission.taken) if groups else []
        is_old = bool(wanted) and time.monotonic() - self._sent > AGAIN_S
        if not self._is_on or (wanted == self._asked and not is_old):
            return
        try:
            await asyncio.to_thread(self._send, wanted)
        except (ray.exceptions.RayError, RuntimeError, OSError) as error:
            logging.getLogger(__name__).warning("the autoscaler was not asked: %s", error)
            return
        self._asked, self._sent = wanted, time.monotonic()


@dataclass
class _Asking:
    """A trial that has asked, and has not been answered."""

    granted: "asyncio.Future[Grant]"
    since: float
    waited_for: str | None = None


class Queue:
    """The admission, with a future for everyone who waits; lives in the pool's event loop."""

    def __init__(
        self,
        admission: Admission,
        options: PoolOptions,
        books: Callable[[], Mapping[str, Mapping[str, float]]] = internals.available,
        *,
        nodes: Callable[[], Sequence[Mapping[str, Any]]] = ray.nodes,
        leaving: Callable[[], frozenset[str]] = internals.draining_nodes,
        scaling: Scaling | None = None,
        on_lost: Callable[[list[int]], None] = lambda groups: None,
    ) -> None:
        """`books`: what every node has free by Ray's account; `nodes`: those that Ray lists,
        `leaving`: ids of those that have been given notice.

        Nobody else uses a Ray of ours, and its node stays. `on_lost` is told of idle groups that
        have gone with a node.
        """
        self._admission, self._options, self._books = admission, options, books
        self._list_nodes, self._list_leaving, self._on_lost = nodes, leaving, on_lost
        self._given_notice: frozenset[str] = frozenset()
        self._scaling = scaling or Scaling(is_on=options.scales)
        self._asking: dict[str, _Asking] = {}
        self._short_s: dict[str, float] = {}
        """Seconds that trials have waited for machines, runs that went on elsewhere included."""

    async def wait(self, trial: str, placement: Placement) -> tuple[Grant, str | None]:
        """Return the grant when it comes, and what was missing until then, if anything was.

        RunFailed if the trial is sent away first. However long it takes: that others have the
        machines is no failure of the trial.
        """
        granted: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        asking = self._asking[trial] = _Asking(granted, time.monotonic())
        self._admission.submit(trial, placement)
        try:
            await self._look_and_admit()
            while not granted.done():
                asking.waited_for = missing(self._admission).get(trial, asking.waited_for)
                is_short, began = self._admission.is_short(placement), time.monotonic()
                await asyncio.wait({granted}, timeout=LOOK_S)
                if is_short:
                    waited = time.monotonic() - began
                    self._short_s[trial] = self._short_s.get(trial, 0.0) + waited
                if not granted.done() and self._admission.waiting[0][0] == trial:
                    await self._look_and_admit()
            return granted.result(), asking.waited_for
        finally:
            self._asking.pop(trial, None)
            if not self._asking:
                await self._scaling.ask(self._admission)

    async def unless_gone(self, start: Awaitable[WorkerGroup], nodes: Sequence[int]) -> WorkerGroup:
        """Return what the start of a group returns; RunFailed at once if one of its nodes goes.

        HostLeaves where that was announced, however the start has ended.
        """
        starting = asyncio.ensure_future(start)
        while not starting.done():
            await asyncio.wait({starting}, timeout=LOOK_S)
            if starting.done():
                break
            await self.look()
            gone = [one for one in (self._admission.nodes[n] for n in nodes) if one.is_gone]
            if gone and not starting.done():
                starting.cancel()
                self._refuse_leaving(nodes)
                raise RunFailed("worker_lost", f"host {gone[0].name} has gone from the cluster")
        if isinstance(starting.exception(), RunFailed):
            await self.look()
            self._refuse_leaving(nodes)
        return starting.result()

    def _refuse_leaving(self, nodes: Sequence[int]) -> None:
        for node in (self._admission.nodes[number] for number in nodes):
            if node.id in self._given_notice:
                raise HostLeaves("worker_lost", f"host {node.name} is leaving the cluster")

    def admit(self) -> None:
        """Tell everyone whose turn it is now."""
        for grant in self._admission.admit():
            future = self._asking[grant.trial].granted
            if not future.done():
                future.set_result(grant)

    def send_away(self, trial: str) -> None:
        """End a trial's waiting, if it waits."""
        self._admission.cancel(trial)
        waiting = self._asking.pop(trial, None)
        if waiting is not None and not waiting.granted.done():
            waiting.granted.set_exception(RunFailed(STOPPED, "the run was stopped"))

    def forget(self, trial: str) -> None:
        """Drop what is known of a trial that is over."""
        self._short_s.pop(trial, None)

    def trials(self) -> list[str]:
        """Return who waits."""
        return list(self._asking)

    def waiting(self) -> dict[str, Waiting]:
        """Return what each of them waits for at this moment, and since when."""
        now = time.monotonic()
        return {
            trial: Waiting(what, now - self._asking[trial].since, self._short_s.get(trial, 0.0))
            for trial, what in missing(self._admission).items()
            if trial in self._asking
        }

    async def look(self) -> None:
        """Learn which nodes there are and what others hold, on a cluster that is not ours alone."""
        if self._options.is_local:
            return
        free, entries, leaving = await asyncio.to_thread(
            lambda: (self._books(), self._list_nodes(), self._list_leaving())
        )
        self._given_notice |= leaving
        admission = self._admission
        if entries and (lost := admission.update(as_nodes(entries, self._options.driver, leaving))):
            self._on_lost(lost)
        admission.taken = internals.taken_by_others(admission.nodes, admission.held(), free)

    async def _look_and_admit(self) -> None:
        await self.look()
        self.admit()
        await self._scaling.ask(self._admission)


def missing(admission: Admission) -> dict[str, str]:
    """Return for every waiting trial what it waits for, in one sentence."""
    first = next((one for one in admission.waiting if admission.fits(one[1])), None)
    head, reason = (None, "") if first is None else (first[0], _reason(admission, first[1]))
    said: dict[str, str] = {}
    for trial, placement in admission.waiting:
        if not admission.fits(placement):
            said[trial] = _what_hosts_lack(placement, admission.nodes)
        else:
            behind = f"its turn, after trial {head}, which waits for {reason}"
            said[trial] = reason if trial == head else behind
    return said


def _reason(admission: Admission, placement: Placement) -> str:
    idle = [n for n, group in admission.groups.items() if group.trial is None]
    free = admission.free(without=idle)
    if admission.lay_out(placement, without=idle) is None:
        return _what_is_missing(placement, free, admission.nodes)
    alive = sum(group.placement.num_workers for group in admission.at_work())
    return (
        f"memory for {placement.num_workers} more worker processes: {alive} of at most "
        f"{admission.max_workers} are at work"
    )


def _what_is_missing(placement: Placement, free: Sequence[Node], empty: Sequence[Node]) -> str:
    """Return what a group waits for: `2 GPUs: 1 free on host a, 1 on host b`.

    Said of GPUs where it needs them and they are what is short, of CPUs otherwise. What follows
    the semicolon is why workers that are free in sum do not do.
    """
    left = [now for now, ever in zip(free, empty, strict=True) if ever.room(placement)]
    sentence = _amounts(placement, left, " free")
    if sum(one.room(placement) for one in left) < placement.num_workers:
        return sentence
    count = num_nodes(placement, empty)
    hosts = f"{count} host{'' if count == 1 else 's'}"
    return f"{sentence}; placement_strategy {placement.strategy} wants them on {hosts}"


def _what_hosts_lack(placement: Placement, nodes: Sequence[Node]) -> str:
    """Return what hosts would have to bring for a group that does not fit those of now."""
    there = [node for node in nodes if not node.is_gone]
    if not there:
        return f"{_need(placement, is_gpu=placement.gpus > 0)}: the cluster has no host for workers"
    return f"{_amounts(placement, there, '')} in all; hosts must join"


def _amounts(placement: Placement, left: Sequence[Node], word: str) -> str:
    each, model = placement.gpus_per_worker, placement.accelerator_type
    usable = [one.usable_gpus(each) if model in (None, one.accelerator) else 0 for one in left]
    by_gpus = sum(placement.num_fitting(placement.cpus, gpus) for gpus in usable)
    by_cpus = sum(placement.num_fitting(one.cpus, placement.gpus) for one in left)
    is_gpu = placement.gpus > 0 and by_gpus <= by_cpus
    amounts = [
        f"{max(gpus if is_gpu else one.cpus, 0):g}{{}} on host {one.name or one.id[:8]}"
        for one, gpus in zip(left, usable, strict=True)
    ]
    said = ", ".join(amounts).replace("{}", word, 1).replace("{}", "")
    return f"{_need(placement, is_gpu=is_gpu)}: {said}"


def _need(placement: Placement, *, is_gpu: bool) -> str:
    need, unit = (placement.gpus, "GPU") if is_gpu else (placement.cpus, "CPU")
    if placement.accelerator_type and is_gpu:
        unit = f"{placement.accelerator_type} {unit}"
    return f"{need:g} {unit}{'' if need == 1 else 's'}"
