"""Request queue on a shared cluster whose hosts come and go: who waits, for which resources, and
what is requested from an autoscaler."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from raybench.cluster import scheduler as module
from raybench.cluster.layout import Node, as_nodes
from raybench.cluster.protocol import HostLeaves, RunFailed
from raybench.cluster.ray_internals.nodes import resource_bundles, taken_by_others
from raybench.cluster.scheduler import RequestQueue, ResourceScheduler, missing
from raybench.cluster.worker_group import PoolOptions
from raybench.spec.run import ResourceRequest
from tests.refusals import shortage_in

NODES = (Node(2, 1, "id-a", "a"), Node(2, 0, "id-b", "b"))
ONE, TWO = ResourceRequest("torch", 1), ResourceRequest("torch", 2)
OPTIONS = PoolOptions(scratch="", search_path="", is_local=False, grows=True)


@pytest.fixture(autouse=True)
def _short_poll_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)


@pytest.mark.parametrize(
    ("held", "free", "taken"),
    [
        ([(0, 0), (0, 0)], {"id-a": {"CPU": 2, "GPU": 1}, "id-b": {"CPU": 2}}, [(0, 0), (0, 0)]),
        ([(1, 0), (0, 0)], {"id-a": {"GPU": 1}, "id-b": {"CPU": 1.999}}, [(1, 0), (0, 0)]),
        ([(2, 1), (0, 0)], {"id-a": {"CPU": 2, "GPU": 1}, "id-b": {"CPU": 2}}, [(0, 0), (0, 0)]),
        ([(0, 0), (0, 0)], {"id-a": {"CPU": 2, "GPU": 1}}, [(0, 0), (2, 0)]),  # host b is missing
        ([(0, 0), (0, 0)], {}, [(0, 0), (0, 0)]),  # Ray reports nothing
    ],
)
def test_resources_neither_free_nor_held_are_taken_by_others(held, free, taken):
    assert taken_by_others(NODES, held, free) == taken


def test_nodes_of_equal_name_are_named_by_address():
    def entry(name: str, address: str, **resources: float) -> dict[str, Any]:
        names = {"NodeManagerHostname": name, "NodeManagerAddress": address}
        return {"NodeID": f"id-{address}", "Resources": resources} | names

    nodes = as_nodes(
        [
            entry("pod", "10.0.0.1", CPU=4.0, GPU=1.0, **{"accelerator_type:H100": 1.0}),
            entry("pod", "10.0.0.2", CPU=2.0),
            entry("head", "10.0.0.3", memory=1e9),  # without CPUs: runs no worker
            entry("big", "10.0.0.4", CPU=8.0),
        ]
    )
    assert [node.name for node in nodes] == ["10.0.0.1", "10.0.0.2", "big"]
    assert (nodes[0].cpus, nodes[0].gpus, nodes[0].accelerator) == (4, 1, "H100")


A, B, C = (Node(2, 0, f"id-{name}", name) for name in "abc")
WIDE = ResourceRequest("torch", 5)


def scheduler(*nodes: Node) -> ResourceScheduler:
    return ResourceScheduler(nodes, on_cluster=True)


def granted(pool: ResourceScheduler, trial: str, request: ResourceRequest) -> tuple[int, ...]:
    pool.submit(trial, request)
    (grant,) = pool.admit()
    return grant.nodes


class TestNodes:
    def test_lost_host_gets_no_group_and_keeps_its_index(self):
        pool = scheduler(A, B)
        assert granted(pool, "idle", TWO) == (0, 0)
        pool.release("idle")
        assert pool.update([B]) == [0], "the group on the lost host cannot be reused"
        assert granted(pool, "0", TWO) == (1, 1)
        pool.submit("1", ONE)
        assert pool.admit() == []
        ((trial, shortage),) = missing(pool).items()
        assert (trial, shortage_in(shortage)) == ("1", ["1 CPU", "0", "host b", "1"])
        pool.update([C, A, B])
        assert [grant.nodes for grant in pool.admit()] == [(0,)], "host a is back"
        assert [node.name for node in pool.nodes] == ["a", "b", "c"]
        assert granted(pool, "2", TWO) == (2, 2)

    def test_busy_group_on_a_lost_host_keeps_its_other_resources(self):
        pool = scheduler(A, B)
        assert granted(pool, "wide", ResourceRequest("torch", 4)) == (0, 0, 1, 1)
        assert pool.update([B]) == []
        assert pool.held() == [(2, 0), (2, 0)]
        pool.submit("next", ONE)
        assert pool.admit() == []
        pool.remove(0)
        assert [grant.nodes for grant in pool.admit()] == [(1,)]

    def test_group_released_on_a_lost_host_is_not_reused(self):
        pool = scheduler(A, B)
        assert granted(pool, "0", TWO) == (0, 0)
        pool.update([B])
        pool.release("0")
        assert granted(pool, "1", TWO) == (1, 1)

    def test_trial_too_large_for_the_cluster_does_not_block_others(self):
        pool = scheduler(A, B)
        for trial, request in (("wide", WIDE), ("0", TWO), ("1", TWO), ("2", ONE)):
            pool.submit(trial, request)
        assert [grant.trial for grant in pool.admit()] == ["0", "1"]
        shortages = missing(pool)
        assert shortage_in(shortages["wide"])[:5] == ["5 CPUs", "2", "host a", "2", "host b"]
        assert shortage_in(shortages["2"]) == ["1 CPU", "0", "host a", "0", "host b", "1"]
        assert pool.is_short(WIDE)
        assert not pool.is_short(ONE), "our own runs hold the resources"
        pool.update([A, B, C])
        assert pool.admit() == [], "the large trial fits now and is not overtaken"
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
    pool: ResourceScheduler, hosts: list[dict[str, Any]], bundles: Requests, **options: Any
) -> RequestQueue:
    """Return a queue over the hosts; `bundles` receives what is requested of the autoscaler."""

    def available() -> Mapping[str, Mapping[str, float]]:
        held = dict(zip([node.id for node in pool.nodes], pool.held(), strict=True))
        return {
            host["NodeID"]: {"CPU": host["Resources"]["CPU"] - held.get(host["NodeID"], (0, 0))[0]}
            for host in hosts
        }

    defaults = {"available": available, "leaving": frozenset, "autoscale": bundles.append}
    return RequestQueue(pool, nodes=lambda: hosts, **{"options": OPTIONS} | defaults | options)


async def test_joining_host_is_used_and_the_request_is_withdrawn():
    bundles: Requests = []
    hosts, pool = listed(A, B), scheduler(A, B)
    requests = queue(pool, hosts, bundles)
    await requests.wait("busy", ONE)
    assert bundles == [[]], "enough room: the request of an earlier driver is withdrawn"
    wide = asyncio.ensure_future(requests.wait("wide", WIDE))
    while not bundles[1:]:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert bundles[1:] == [[{"CPU": 1}] * 6], "requested once, with the running worker"
    assert requests.waiting()["wide"].short_s > 0
    hosts.extend(listed(C))
    grant, waited_for = await asyncio.wait_for(wide, 60)
    assert sorted(grant.nodes) == [0, 1, 1, 2, 2]
    assert "hosts" in str(waited_for)
    assert bundles[2:] == [[]]


async def test_draining_host_gets_no_new_group():
    hosts, pool = listed(A, B), scheduler(A, B)
    draining: set[str] = set()
    lost: list[int] = []
    requests = queue(pool, hosts, [], leaving=lambda: frozenset(draining), on_lost=lost.extend)
    grant, _ = await requests.wait("busy", TWO)
    assert grant.nodes == (0, 0)
    grant, _ = await requests.wait("0", ONE)
    draining.add("id-a")
    pool.release("busy")
    pending = asyncio.ensure_future(requests.wait("1", TWO))
    await asyncio.sleep(0.05)
    assert not pending.done(), "host a offers neither a new group nor its idle one"
    assert lost == [0]
    pool.release("0")
    grant, _ = await asyncio.wait_for(pending, 60)
    assert grant.nodes == (1, 1)


async def test_failed_start_on_a_draining_host_raises_host_leaves():
    pool, draining = scheduler(A, B), {"id-c"}
    requests = queue(pool, listed(A, B), [], leaving=lambda: frozenset(draining))

    async def start() -> Any:
        raise RunFailed("worker_lost", "the workers did not start in time")

    grant, _ = await requests.wait("0", TWO)
    draining.add("id-a")
    with pytest.raises(HostLeaves) as leaves:
        await requests.started(start(), grant.nodes)
    assert "host a" in leaves.value.message
    with pytest.raises(RunFailed) as failed:
        await requests.started(start(), (1, 1))
    assert not isinstance(failed.value, HostLeaves)


async def test_trial_waits_for_resources_of_others_and_reports_them():
    free, looks = {"a": 1, "b": 1}, []

    def available():
        looks.append(1)
        return {f"id-{name}": {"CPU": n} for name, n in free.items()}

    requests = queue(scheduler(A, B), listed(A, B), [], available=available)
    first = asyncio.ensure_future(requests.wait("first", TWO))
    second = asyncio.ensure_future(requests.wait("second", ONE))
    while len(looks) < 4:
        await asyncio.sleep(0.01)
    assert not first.done(), "strategy pack: two workers are not split over two hosts"
    assert not second.done(), "first come, first served"
    shortage = requests.waiting()["first"].what
    assert shortage_in(shortage)[:5] == ["2 CPUs", "1", "host a", "1", "host b"]
    free["b"] = 2  # others have released host b
    grant, waited_for = await asyncio.wait_for(first, 60)
    assert grant.nodes == (1, 1)
    assert waited_for == shortage
    free["b"] = 0
    _, waited_for = await asyncio.wait_for(second, 60)
    assert all(value in str(waited_for) for value in ("trial first", "2 CPUs"))
    assert requests.waiting() == {}
    assert requests.trials() == []


async def test_without_an_autoscaler_nothing_is_requested():
    bundles: Requests = []
    requests = queue(scheduler(A), listed(A), bundles, options=replace(OPTIONS, grows=False))
    await requests.wait("a", ONE)
    assert bundles == []


async def test_failed_request_is_sent_again():
    sent: list[object] = []

    def send(bundles: Sequence[Mapping[str, float]]) -> None:
        sent.append(bundles)
        if len(sent) == 1:
            raise RuntimeError("the store does not answer")

    requests = queue(scheduler(A), listed(A), [], autoscale=send)
    wide = asyncio.ensure_future(requests.wait("wide", WIDE))
    while len(sent) < 2:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    wide.cancel()
    assert len(sent) == 2


async def test_request_is_repeated_because_another_job_may_replace_it(monkeypatch):
    monkeypatch.setattr(module, "RESEND_S", 0.0)
    sent: list[object] = []
    requests = queue(scheduler(A), listed(A), [], autoscale=sent.append)
    wide = asyncio.ensure_future(requests.wait("wide", WIDE))
    while len(sent) < 3:
        await asyncio.sleep(0.01)
    wide.cancel()
    assert sent[1:] == sent[:-1]


def test_request_lists_every_worker_and_the_resources_of_others():
    each = {"gpus_per_worker": 1, "cpus_per_worker": 3, "accelerator_type": "H100"}
    worker = {"CPU": 3, "GPU": 1, "accelerator_type:H100": 0.001}
    requested = resource_bundles(
        [ResourceRequest("torch", 2, **each), ONE], [(0, 0), (2, 0), (1, 1)]
    )
    assert requested == [worker, worker, {"CPU": 1}, {"CPU": 2}, {"CPU": 1, "GPU": 1}]
