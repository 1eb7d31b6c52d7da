"""A cluster that is not ours alone: what others hold, who waits, and that waiting is no failure."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from raybench.cluster import queue as module
from raybench.cluster.admission import Admission
from raybench.cluster.layout import Node, as_nodes
from raybench.cluster.protocol import RunFailed
from raybench.cluster.queue import Queue
from raybench.cluster.ray_internals.nodes import available, taken_by_others
from raybench.cluster.worker_group import PoolOptions
from raybench.spec.run import Placement

ENTRIES = [
    {"NodeID": "id-a", "NodeManagerHostname": "a", "Resources": {"CPU": 2.0, "GPU": 1.0}},
    {"NodeID": "id-b", "NodeManagerHostname": "b", "Resources": {"CPU": 2.0}},
]
NODES = (Node(2, 1, "id-a", "a"), Node(2, 0, "id-b", "b"))
ONE, TWO = Placement("torch", 1), Placement("torch", 2)
OPTIONS = PoolOptions(scratch="", search_path="", nodes=NODES, is_local=False)


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


def test_ray_still_says_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import state

    monkeypatch.setattr(state, "available_resources_per_node", lambda: {"id": {"CPU": 1.0}})
    assert available() == {"id": {"CPU": 1.0}}
    monkeypatch.delattr(state, "available_resources_per_node")
    assert available() == {}


def test_a_trial_waits_for_others_and_says_what_it_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    books = Books(a=1, b=1)
    pool = Admission(NODES, idle_holds_cpus=True)
    waiting = Queue(pool, OPTIONS, books, nodes=lambda: ENTRIES, leaving=frozenset)

    async def story() -> None:
        first = asyncio.ensure_future(waiting.wait("first", TWO))
        behind = asyncio.ensure_future(waiting.wait("behind", ONE))
        while books.looks < 4:
            await asyncio.sleep(0.01)
        assert not first.done(), "a pack of two is not torn apart"
        assert not behind.done(), "first come, first served"
        assert waiting.waiting()["first"].what.startswith("2 CPUs: 1 free on host a, 1 on host b;")
        books.free = {"a": 1, "b": 2}  # the others have gone from b
        grant, waited_for = await asyncio.wait_for(first, 5)
        assert grant.nodes == (1, 1)
        assert str(waited_for).startswith("2 CPUs: 1 free on host a, 1 on host b;")
        books.free = {"a": 1, "b": 0}
        _, waited_for = await asyncio.wait_for(behind, 5)
        assert str(waited_for).startswith("its turn, after trial first, which waits for 2 CPUs")
        assert waiting.waiting() == {}
        assert waiting.trials() == []

    asyncio.run(story())


def test_a_trial_that_is_sent_away_waits_no_longer() -> None:
    books = Books(a=0, b=0)
    waiting = Queue(Admission(NODES), OPTIONS, books, nodes=lambda: ENTRIES, leaving=frozenset)

    async def story() -> None:
        asking = asyncio.ensure_future(waiting.wait("a", ONE))
        while not waiting.waiting():
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        waiting.send_away("a")
        with pytest.raises(RunFailed, match="was stopped"):
            await asyncio.wait_for(asking, 5)

    asyncio.run(story())
    assert waiting.waiting() == {}


def test_a_ray_of_our_own_is_not_asked() -> None:
    books = Books()
    local = PoolOptions(scratch="", search_path="", nodes=NODES[:1], is_local=True)
    grant, waited_for = asyncio.run(Queue(Admission(NODES[:1]), local, books).wait("a", ONE))
    assert (grant.nodes, waited_for, books.looks) == ((0,), None, 0)


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
