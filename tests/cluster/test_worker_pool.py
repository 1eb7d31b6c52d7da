"""The owner of worker groups, with groups that start nothing."""

import asyncio
from typing import Any

import pytest

from raybench.cluster import hub as hub_module
from raybench.cluster.admission import Admission, Shape
from raybench.cluster.protocol import RunFailed
from raybench.cluster.worker_pool import START_ATTEMPTS, WorkerPool

ONE = Shape("torch", 1)


class FakeGroup:
    """Fails to start as often as `faults` says."""

    faults: list[str] = []
    started = 0

    def __init__(self, number: int, shape: Shape, options: dict[str, Any]) -> None:
        self.shape = shape
        self.cores: list[tuple[str, int]] = []
        self.closed = False

    async def start(self) -> None:
        type(self).started += 1
        await asyncio.sleep(0.01)
        if self.faults:
            raise RunFailed(self.faults.pop(0), "the workers did not start within 180 s")

    async def close(self, *, force: bool) -> None:
        self.closed = True

    async def settle(self) -> bool:
        return True

    def hosts(self) -> list[str]:
        return ["here"]

    devices = nodes = hosts


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> WorkerPool:
    monkeypatch.setattr(hub_module, "Group", FakeGroup)
    FakeGroup.faults, FakeGroup.started = [], 0
    return WorkerPool(Admission([(2, 0)]), {})


@pytest.mark.parametrize("fault", ["timeout", "worker_lost"])
def test_a_group_that_does_not_start_is_started_again(hub: WorkerPool, fault: str) -> None:
    FakeGroup.faults = [fault] * (START_ATTEMPTS - 1)
    lent = asyncio.run(hub.acquire("a", ONE))
    assert FakeGroup.started == START_ATTEMPTS
    assert lent.start_s >= 0.03, "failed starts are start-up, not queueing"
    assert len(hub._groups) == 1


def test_the_number_of_starts_is_bounded_and_the_place_is_given_back(hub: WorkerPool) -> None:
    FakeGroup.faults = ["timeout"] * START_ATTEMPTS

    async def story() -> None:
        with pytest.raises(RunFailed, match="did not start"):
            await hub.acquire("a", ONE)
        await hub.acquire("b", Shape("torch", 2))

    asyncio.run(story())
    assert FakeGroup.started == START_ATTEMPTS + 1


def test_what_is_the_run_s_own_fault_is_not_tried_again(hub: WorkerPool) -> None:
    FakeGroup.faults = ["error"]
    with pytest.raises(RunFailed):
        asyncio.run(hub.acquire("a", ONE))
    assert FakeGroup.started == 1


@pytest.mark.parametrize("keep", [True, False])
def test_a_released_group_is_kept_or_closed(hub: WorkerPool, keep: bool) -> None:
    async def story() -> None:
        await hub.acquire("a", ONE)
        await hub.release("a", keep=keep)

    asyncio.run(story())
    assert len(hub._groups) == int(keep)


def test_a_trial_that_is_over_gets_no_workers_any_more(hub: WorkerPool) -> None:
    """Its own process may ask after Tune has ended it: nobody would give them back."""

    async def story() -> None:
        await hub.release("late", for_good=True)
        with pytest.raises(RunFailed, match="was stopped"):
            await hub.acquire("late", ONE)
        await hub.release("again")  # a run that is repeated under its name
        await hub.acquire("again", ONE)

    asyncio.run(story())
    assert hub._admission.busy() == ["again"]


def test_a_trial_that_ends_while_its_group_starts_holds_nothing(hub: WorkerPool) -> None:
    async def story() -> None:
        asking = asyncio.ensure_future(hub.acquire("a", ONE))
        await asyncio.sleep(0.005)
        await hub.release("a", for_good=True)
        with pytest.raises(RunFailed, match="was stopped"):
            await asking
        await hub.acquire("b", Shape("torch", 2))

    asyncio.run(story())
    assert hub._admission.busy() == ["b"]


def test_who_waits_is_sent_away_and_holds_nothing(hub: WorkerPool) -> None:
    """In the queue, and while a group starts; later phases may ask again."""

    async def story() -> None:
        starting = asyncio.ensure_future(hub.acquire("starting", Shape("torch", 2)))
        waiting = asyncio.ensure_future(hub.acquire("waiting", ONE))
        await asyncio.sleep(0.005)
        hub.stop_waiting()
        for one in (starting, waiting):
            with pytest.raises(RunFailed, match="was stopped"):
                await one
        await hub.acquire("later", Shape("torch", 2))

    asyncio.run(story())
    assert hub._admission.busy() == ["later"]
    assert hub._admission.waiting == []
