"""A cluster that is not ours alone and whose hosts come and go: who waits, for what, and what an
autoscaler is asked for."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from raybench.cluster import queue as module
from raybench.cluster.layout import Node, as_nodes
from raybench.cluster.protocol import HostLeaves, RunFailed
from raybench.cluster.queue import RequestQueue, missing
from raybench.cluster.ray_internals.nodes import resource_bundles, taken_by_others
from raybench.cluster.resource_scheduler import ResourceScheduler
from raybench.cluster.worker_group import PoolOptions
from raybench.spec.run import Placement
from tests.refusals import shortage_in

ENTRIES = [
    {"NodeID": "id-a", "NodeManagerHostname": "a", "Resources": {"CPU": 2.0, "GPU": 1.0}},
    {"NodeID": "id-b", "NodeManagerHostname": "b", "Resources": {"CPU": 2.0}},
]
NODES = (Node(2, 1, "id-a", "a"), Node(2, 0, "id-b", "b"))
ONE, TWO = Placement("torch", 1), Placement("torch", 2)
OPTIONS = PoolOptions(scratch="", search_path="", is_local=False, scales=True)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)


class Books:
    """Ray's account of what is free."""

    def __init__(self, **free: float) -> None:
        self.free = free
        self.looks = 0

    def __call__(self) -> Mapping[str, Mapping[str, float]]:
        self.looks += 1
        return {f"id-{name}": {"CPU": cpus} for name, cpus in self.free.items()}


@pytest.mark.parametrize(
    ("held", "free", "taken"),
    [
        ([(0, 0), (0, 0)], {"id-a": {"CPU": 2, "GPU": 1}, "id-b": {"CPU": 2}}, [(0, 0), (0, 0)]),
        ([(1, 0), (0, 0)], {"id-a": {"GPU": 1}, "id-b": {"CPU": 1.999}}, [(1, 0), (0, 0)]),
        ([(2, 1), (0, 0)], {"id-a": {"CPU": 2, "GPU": 1}, "id-b": {"CPU": 2}}, [(0, 0), (0, 0)]),
        ([(0, 0), (0, 0)], {"id-a": {"CPU": 2, "GPU": 1}}, [(0, 0), (2, 0)]),  # b has gone
        ([(0, 0), (0, 0)], {}, [(0, 0), (0, 0)]),  # a Ray that does not say
    ],
)
def test_what_is_neither_free_nor_ours_is_others(held: Any, free: Any, taken: Any) -> None:
    assert taken_by_others(NODES, held, free) == taken


async def test_a_trial_waits_for_others_and_says_what_it_waited_for() -> None:
    books = Books(a=1, b=1)
    pool = ResourceScheduler(NODES, on_cluster=True)
    waiting = queue(pool, ENTRIES, [], available=books)
    first = asyncio.ensure_future(waiting.wait("first", TWO))
    behind = asyncio.ensure_future(waiting.wait("behind", ONE))
    while books.looks < 4:
        await asyncio.sleep(0.01)
    assert not first.done(), "a pack of two is not torn apart"
    assert not behind.done(), "first come, first served"
    said = waiting.waiting()["first"].what
    assert shortage_in(said)[:5] == ["2 CPUs", "1", "host a", "1", "host b"]
    books.free = {"a": 1, "b": 2}  # the others have gone from b
    grant, waited_for = await asyncio.wait_for(first, 60)
    assert grant.nodes == (1, 1)
    assert waited_for == said
    books.free = {"a": 1, "b": 0}
    _, waited_for = await asyncio.wait_for(behind, 60)
    assert all(value in str(waited_for) for value in ("trial first", "2 CPUs"))
    assert waiting.waiting() == {}
    assert waiting.trials() == []


def test_nodes_of_one_name_are_told_apart_and_their_gpus_named() -> None:
    def entry(name: str, address: str, **resources: float) -> dict[str, Any]:
        return {
            "NodeID": f"id-{address}",
            "NodeManagerHostname": name,
            "NodeManagerAddress": address,
            "Resources": resources,
        }

    nodes = as_nodes(
        [
            entry("pod", "10.0.0.1", CPU=4.0, GPU=1.0, **{"accelerator_type:H100": 1.0}),
            entry("pod", "10.0.0.2", CPU=2.0),
            entry("head", "10.0.0.3", memory=1e9),  # runs nothing
            entry("big", "10.0.0.4", CPU=8.0),
        ]
    )
    assert [node.name for node in nodes] == ["10.0.0.1", "10.0.0.2", "big"]
    assert (nodes[0].cpus, nodes[0].gpus, nodes[0].accelerator) == (4, 1, "H100")


A, B, C = (Node(2, 0, f"id-{name}", name) for name in "abc")
WIDE = Placement("torch", 5)


def scheduler(*nodes: Node) -> ResourceScheduler:
    return ResourceScheduler(nodes, on_cluster=True)


def granted(pool: ResourceScheduler, trial: str, placement: Placement) -> tuple[int, ...]:
    pool.submit(trial, placement)
    (grant,) = pool.admit()
    return grant.nodes


class TestNodes:
    def test_a_host_that_goes_takes_no_group_and_keeps_its_place(self) -> None:
        pool = scheduler(A, B)
        assert granted(pool, "idle", TWO) == (0, 0)
        pool.release("idle")
        assert pool.update([B]) == [0], "its processes are gone, nobody may be given them"
        assert granted(pool, "0", TWO) == (1, 1)
        pool.submit("1", ONE)
        assert pool.admit() == []
        (said,) = missing(pool).items()
        assert (said[0], shortage_in(said[1])) == ("1", ["1 CPU", "0", "host b", "1"])
        pool.update([C, A, B])
        assert [grant.nodes for grant in pool.admit()] == [(0,)], "it has come back"
        assert [node.name for node in pool.nodes] == ["a", "b", "c"]
        assert granted(pool, "2", TWO) == (2, 2)

    def test_a_group_at_work_on_a_lost_host_holds_the_others(self) -> None:
        pool = scheduler(A, B)
        assert granted(pool, "wide", Placement("torch", 4)) == (0, 0, 1, 1)
        assert pool.update([B]) == []
        assert pool.held() == [(2, 0), (2, 0)]
        pool.submit("next", ONE)
        assert pool.admit() == []
        pool.remove(0)
        assert [grant.nodes for grant in pool.admit()] == [(1,)]

    def test_a_group_whose_host_left_meanwhile_is_not_lent_again(self) -> None:
        pool = scheduler(A, B)
        assert granted(pool, "0", TWO) == (0, 0)
        pool.update([B])
        pool.release("0")
        assert granted(pool, "1", TWO) == (1, 1)

    def test_who_fits_no_host_of_now_keeps_nobody_waiting(self) -> None:
        pool = scheduler(A, B)
        for trial, placement in (("wide", WIDE), ("0", TWO), ("1", TWO), ("2", ONE)):
            pool.submit(trial, placement)
        assert [grant.trial for grant in pool.admit()] == ["0", "1"]
        said = missing(pool)
        assert shortage_in(said["wide"])[:5] == ["5 CPUs", "2", "host a", "2", "host b"]
        assert shortage_in(said["2"]) == ["1 CPU", "0", "host a", "0", "host b", "1"]
        assert pool.is_short(WIDE)
        assert not pool.is_short(ONE), "runs of ours have what it waits for"
        pool.update([A, B, C])
        assert pool.admit() == [], "now it can have its turn, and is not overtaken"
        pool.release("0")
        pool.release("1")
        assert [grant.trial for grant in pool.admit()] == ["wide", "2"]


def listed(*nodes: Node) -> list[dict[str, Any]]:
    return [
        {"NodeID": node.id, "NodeManagerHostname": node.name, "Resources": {"CPU": node.cpus}}
        for node in nodes
    ]


Requests = list[Sequence[Mapping[str, float]]]


def queue(
    pool: ResourceScheduler, hosts: list[dict[str, Any]], asked: Requests, **more: Any
) -> RequestQueue:
    def books() -> Mapping[str, Mapping[str, float]]:
        held = dict(zip([node.id for node in pool.nodes], pool.held(), strict=True))
        return {
            one["NodeID"]: {"CPU": one["Resources"]["CPU"] - held.get(one["NodeID"], (0, 0))[0]}
            for one in hosts
        }

    usual = {"available": books, "leaving": frozenset, "autoscale": asked.append}
    return RequestQueue(pool, nodes=lambda: hosts, **{"options": OPTIONS} | usual | more)


async def test_a_host_that_joins_is_used_and_the_request_withdrawn() -> None:
    asked: Requests = []
    hosts, pool = listed(A, B), scheduler(A, B)
    waiting = queue(pool, hosts, asked)
    await waiting.wait("busy", ONE)
    assert asked == [[]], "who has room needs no other host, nor one of a dead driver"
    wide = asyncio.ensure_future(waiting.wait("wide", WIDE))
    while not asked[1:]:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert asked[1:] == [[{"CPU": 1}] * 6], "once, what is at work included"
    assert waiting.waiting()["wide"].short_s > 0
    hosts.extend(listed(C))
    grant, waited_for = await asyncio.wait_for(wide, 60)
    assert sorted(grant.nodes) == [0, 1, 1, 2, 2]
    assert "hosts" in str(waited_for)
    assert asked[2:] == [[]]


async def test_a_host_that_has_been_given_notice_takes_no_new_group() -> None:
    hosts, pool = listed(A, B), scheduler(A, B)
    notice: set[str] = set()
    lost: list[int] = []
    waiting = queue(pool, hosts, [], leaving=lambda: frozenset(notice), on_lost=lost.extend)
    grant, _ = await waiting.wait("busy", TWO)
    assert grant.nodes == (0, 0)
    grant, _ = await waiting.wait("0", ONE)
    notice.add("id-a")
    pool.release("busy")
    asking = asyncio.ensure_future(waiting.wait("1", TWO))
    await asyncio.sleep(0.05)
    assert not asking.done(), "neither a new group there nor the idle one"
    assert lost == [0]
    pool.release("0")
    grant, _ = await asyncio.wait_for(asking, 60)
    assert grant.nodes == (1, 1)


async def test_a_start_on_a_host_with_notice_ends_in_words_of_its_own() -> None:
    pool, notice = scheduler(A, B), {"id-c"}
    waiting = queue(pool, listed(A, B), [], leaving=lambda: frozenset(notice))

    async def start() -> Any:
        raise RunFailed("worker_lost", "the workers did not start in time")

    grant, _ = await waiting.wait("0", TWO)
    notice.add("id-a")
    with pytest.raises(HostLeaves) as leaves:
        await waiting.started(start(), grant.nodes)
    assert "host a" in leaves.value.message
    with pytest.raises(RunFailed) as failed:
        await waiting.started(start(), (1, 1))
    assert not isinstance(failed.value, HostLeaves)


@pytest.mark.parametrize(("scales", "requests"), [(True, [[]]), (False, [])])
async def test_what_a_killed_driver_has_asked_for_is_taken_back_once(
    scales: bool, requests: list[Any]
) -> None:
    """Without an autoscaler nothing is asked."""
    asked: Requests = []
    waiting = queue(scheduler(A, B), listed(A, B), asked, options=replace(OPTIONS, scales=scales))
    for trial in "abc":
        await waiting.wait(trial, ONE)
    assert asked == requests


async def test_a_request_that_is_not_taken_is_sent_again() -> None:
    requests: list[object] = []

    def send(bundles: Sequence[Mapping[str, float]]) -> None:
        requests.append(bundles)
        if len(requests) == 1:
            raise RuntimeError("the store does not answer")

    waiting = queue(scheduler(A), listed(A), [], autoscale=send)
    wide = asyncio.ensure_future(waiting.wait("wide", WIDE))
    while len(requests) < 2:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    wide.cancel()
    assert len(requests) == 2


async def test_a_request_is_sent_again_as_another_job_may_have_replaced_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RESEND_S", 0.0)
    requests: list[object] = []
    waiting = queue(scheduler(A), listed(A), [], autoscale=requests.append)
    wide = asyncio.ensure_future(waiting.wait("wide", WIDE))
    while len(requests) < 3:
        await asyncio.sleep(0.01)
    wide.cancel()
    assert requests[1:] == requests[:-1]


def test_a_request_names_every_worker_and_what_others_hold() -> None:
    gpus = Placement("torch", 2, gpus_per_worker=1, cpus_per_worker=3, accelerator_type="H100")
    worker = {"CPU": 3, "GPU": 1, "accelerator_type:H100": 0.001}
    assert resource_bundles([gpus, ONE], [(0, 0), (2, 0), (1, 1)]) == [
        worker,
        worker,
        {"CPU": 1},
        {"CPU": 2},
        {"CPU": 1, "GPU": 1},
    ]
