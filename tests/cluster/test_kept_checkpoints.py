"""What the pool keeps of runs, what it leaves of it in replies, and when it saves out of turn."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from raybench.cluster import worker_pool
from raybench.cluster.admission import Admission
from raybench.cluster.layout import Node
from raybench.cluster.protocol import (
    Advance,
    Command,
    Crashed,
    Finish,
    Finished,
    Progress,
    Reply,
    Save,
    Saved,
    Start,
)
from raybench.cluster.ray_internals.nodes import draining_nodes
from raybench.cluster.worker_group import PoolOptions
from raybench.cluster.worker_pool import URGENT_S, KeptCheckpoints, WorkerPool
from raybench.spec.run import Placement, RunSpec
from raybench.stats.checkpoint import Checkpoint, RunState
from raybench.stats.record import Evaluation

SPEC = RunSpec()


def evaluation(index: int) -> Evaluation:
    return Evaluation(
        index=index,
        epoch=1.0,
        samples=1,
        train_s=1.0,
        train_loss=0.0,
        value=0.5,
        learning_rate=0.1,
        samples_per_s=1.0,
        ledger={"train": 1.0, "input": 0.0},
    )


def checkpoint(points: int) -> Checkpoint:
    curve = [evaluation(index) for index in range(points)]
    return Checkpoint(state=RunState.after(SPEC, curve), weights=b"weights")


def progress(index: int, **more: Any) -> Progress:
    return Progress(
        evaluation=evaluation(index),
        num_parameters=1,
        batch_statistics=False,
        num_classes=10,
        busy_s=1.0,
        **more,
    )


def test_a_reply_keeps_the_index_alone() -> None:
    kept = KeptCheckpoints()
    replies: list[Reply] = [progress(1, checkpoint=checkpoint(2)), progress(1)]
    first, other = kept.take("a", replies)
    assert first == replace(replies[0], checkpoint=None, saved=2)  # type: ignore[type-var]
    assert other == replies[1]
    assert kept.get("a") == checkpoint(2)
    assert kept.state("a") == checkpoint(2).state
    assert kept.take("a", [progress(2)]) == [progress(2)]
    assert kept.get("a") == checkpoint(2), "the newest one stays"
    kept.take("a", [Finished(ledger={})])
    assert kept.get("a") is None


@pytest.mark.parametrize(
    ("reply", "may"),
    [
        (progress(0), True),
        (progress(0, checkpoint=checkpoint(1)), False),
        (replace(progress(0), evaluation=replace(evaluation(0), stop="epochs")), False),
        (replace(progress(0), evaluation=replace(evaluation(0), failure="nan")), False),
        (Finished(ledger={}), False),
        (Crashed(failure="error", message="", traceback=""), False),
    ],
)
def test_what_is_saved_out_of_turn(
    reply: Reply, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(worker_pool.time, "monotonic", lambda: now[0])
    kept = KeptCheckpoints()
    assert kept.may_save("a", reply) == may
    kept.put("a", checkpoint(1))
    assert not kept.may_save("a", reply), "it was saved a moment ago"
    now[0] += URGENT_S
    assert kept.may_save("a", reply) == may


def test_ray_still_says_which_nodes_go(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import state

    assert hasattr(state.GlobalState, "get_draining_nodes"), "then no notice is seen"
    monkeypatch.setattr(state.state, "get_draining_nodes", lambda: {"id": 0}, raising=False)
    assert draining_nodes() == {"id"}

    class Other:
        """Ray's state without it."""

    monkeypatch.setattr(state, "state", Other())
    assert draining_nodes() == frozenset()


class AnsweringGroup:
    """Two workers on a node that is about to go; notes what they are told."""

    has_ended = False

    told: list[Command] = []

    def __init__(self, number: int, placement: Placement, *more: Any) -> None:
        self.placement, self.cores = placement, list[tuple[str, int]]()
        self._index = -1

    async def start(self) -> None:
        pass

    def choose_cores(self, taken: object) -> list[tuple[int, ...]]:
        return [()] * 2

    async def ask(self, commands: list[Command], timeout_s: float) -> list[Reply]:
        self.told.append(commands[0])
        assert commands[0] == commands[1]
        if isinstance(commands[0], Save):
            found = checkpoint(self._index + 1)
            return [Saved(checkpoint=found, busy_s=0.5), Saved(checkpoint=None, busy_s=0.5)]
        if isinstance(commands[0], Finish):
            return [Finished(ledger={})] * 2
        self._index += 1
        return [progress(self._index)] * 2

    def hosts(self) -> tuple[str, ...]:
        return ("here",) * 2

    def devices(self) -> tuple[str, ...]:
        return ("cpu",) * 2

    def nodes(self) -> list[str]:
        return ["node"] * 2

    async def settle(self) -> bool:
        return True


@pytest.mark.parametrize("goes", [True, False])
def test_a_run_is_saved_at_once_when_its_node_is_about_to_go(
    goes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raybench.cluster.worker_group.WorkerGroup", AnsweringGroup)
    monkeypatch.setattr(AnsweringGroup, "told", [])
    node = Node(2, 0, "node")
    options = PoolOptions(scratch="", search_path="", nodes=(node,), is_local=True)
    pool = worker_pool.WorkerPool(Admission([node]), options)

    async def any_leaves(nodes: list[str]) -> bool:
        assert nodes == ["node"] * 2
        return goes

    monkeypatch.setattr(pool._queue, "any_leaves", any_leaves)

    async def story() -> None:
        allocation = await pool.acquire("a", Placement("torch", 2))
        assert allocation.resume is None
        first = (await pool.command("a", Start(spec=SPEC), 1.0))[0]
        expected = progress(0)
        if goes:  # the seconds of saving are the workers' own, not the way there
            expected = replace(expected, saved=1, busy_s=1.5)
        assert first == expected
        await pool.command("a", Advance(), 1.0)
        assert pool.checkpoint("a") == (checkpoint(1) if goes else None)

    asyncio.run(story())
    told = [Start(spec=SPEC), Save(), Advance()]
    assert AnsweringGroup.told == [one for one in told if goes or not isinstance(one, Save)]


def test_a_run_is_continued_from_what_was_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raybench.cluster.worker_group.WorkerGroup", AnsweringGroup)
    monkeypatch.setattr(AnsweringGroup, "told", [])
    node = Node(2, 0, "node")
    options = PoolOptions(scratch="", search_path="", nodes=(node,), is_local=True)
    pool = WorkerPool(Admission([node]), options)

    async def story() -> None:
        pool.restore("a", checkpoint(3))
        allocation = await pool.acquire("a", Placement("torch", 2))
        assert allocation.resume == checkpoint(3).state
        await pool.command("a", Start(spec=SPEC), 1.0)
        assert AnsweringGroup.told == [Start(spec=SPEC, resume=checkpoint(3))]
        pool.forget("a")
        assert pool.checkpoint("a") is None

    asyncio.run(story())
