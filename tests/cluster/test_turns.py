"""Workers and pool talk over a network that may lose an answer: nothing is lost or done twice."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from raybench.cluster import worker, worker_group
from raybench.cluster.protocol import (
    REFUSED,
    Advance,
    Close,
    Command,
    Finished,
    Ready,
    Reply,
    RunFailed,
)
from raybench.cluster.worker_group import PoolOptions, WorkerGroup
from raybench.spec.errors import UserError
from raybench.spec.run import Placement
from raybench.training.saved import check_same_model

OPTIONS = PoolOptions(scratch="", search_path="", nodes=(), is_local=True)
FIRST, SECOND = Finished(ledger={"train": 1.0}), Finished(ledger={"train": 2.0})


def test_a_turn_that_is_asked_twice_gets_the_same_and_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_group, "POLL_S", 0.01)

    async def story() -> None:
        group = WorkerGroup(0, Placement("torch", 1, 1, 0), OPTIONS)
        assert await group.exchange(0, 1, FIRST) is None, "there is no command yet"
        asking = asyncio.ensure_future(group.ask([Advance()], 5))
        await asyncio.sleep(0)
        assert await group.exchange(0, 1, None) == Advance()
        assert await group.exchange(0, 1, FIRST) == Advance(), "the answer was lost on its way"
        assert not asking.done(), "an old reply is not the answer to a new command"
        assert await group.exchange(0, 2, SECOND) is None
        assert await asking == [SECOND]

    asyncio.run(story())


def test_a_group_that_misses_its_start_is_killed_whoever_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two ranks one introduces itself, the other hangs: both are ended."""
    killed: list[object] = []
    is_gone = threading.Event()
    groups = [SimpleNamespace(end=is_gone.set)]
    trainer = SimpleNamespace(fit=is_gone.wait, raybench_groups=groups)
    monkeypatch.setattr(worker_group, "build_trainer", lambda *of: trainer)
    monkeypatch.setattr(worker_group, "START_TIMEOUT_S", 0.05)
    monkeypatch.setattr(worker_group, "POLL_S", 0.01)
    monkeypatch.setattr(ray, "kill", lambda actor, no_restart: killed.append(actor))
    ready = Ready(host="a", node="n", pid=1, device="cuda:0", cores=(), actor="rank 0")

    async def story() -> None:
        group = WorkerGroup(0, Placement("torch", 2, 1, 1), OPTIONS)
        starting = asyncio.ensure_future(group.start())
        await asyncio.sleep(0)
        await group.exchange(0, 1, ready)
        with pytest.raises(RunFailed, match="did not start within"):
            await starting
        assert not group.has_ended
        await group.close(force=True)
        assert group.has_ended

    asyncio.run(story())
    assert killed == ["rank 0"]


class Pool:
    """Answers as it is told to: by what is raised, or returned."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.heard = list(answers), list[tuple[int, Reply | None]]()
        self.exchange = self

    def remote(self, group: int, rank: int, turn: int, reply: Reply | None) -> Any:
        self.heard.append((turn, reply))
        return self.answers.pop(0)


def test_a_worker_asks_again_and_hands_in_what_may_be_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def get(answer: Any, *, timeout: float) -> Command | None:
        if isinstance(answer, type):
            raise answer("lost")
        return answer  # type: ignore[no-any-return]

    monkeypatch.setattr(worker.ray, "get", get)  # type: ignore[attr-defined]
    monkeypatch.setattr(worker, "ASK_AGAIN_S", 0.0)
    pool = Pool(ray.exceptions.GetTimeoutError, None, None, Close())
    assert worker.next_command(pool, 0, 0, 7, FIRST) == Close()
    assert pool.heard == [(7, FIRST), (7, FIRST), (7, None), (7, None)]


def test_a_refused_checkpoint_is_no_error_of_the_run() -> None:
    with pytest.raises(UserError) as refused:
        check_same_model({"0.weight": (2, 3)}, {"0.weight": (2, 4)})
    told = worker._report(refused.value)
    assert (told.failure, told.message) == (REFUSED, str(refused.value))
    assert told.message.startswith("the checkpoint holds another model (0.weight: (2, 3) there")
    assert worker._report(UserError("a mistake of another kind")).failure == "error"
