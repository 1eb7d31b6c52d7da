"""The owner of worker groups, with groups that start nothing, and the checkpoints that it keeps."""

import asyncio
import io
import shutil
import time
from collections.abc import Awaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raybench.cluster import protocol, states, worker_pool
from raybench.cluster.layout import Node
from raybench.cluster.protocol import (
    STOPPED,
    Advance,
    Command,
    Finish,
    Finished,
    Progress,
    Ready,
    Reply,
    RunFailed,
    Start,
)
from raybench.cluster.resource_scheduler import ResourceScheduler
from raybench.cluster.worker_group import PoolOptions
from raybench.cluster.worker_pool import WorkerPool
from raybench.spec.run import Placement, RunSpec
from raybench.stats.checkpoint import Checkpoint, RunState
from tests.factories import evaluation

ONE, TWO = Placement("torch", 1), Placement("torch", 2)


class FakeGroup:
    """Fails to start as often as `faults` says."""

    faults: list[str] = []
    started = 0
    hangs = False
    """Whether its workers are there still when it has been closed."""
    gate: asyncio.Event | None = None
    """Where there is one, groups do not come up before it is set."""
    is_far = True
    """From its next evaluation: a command is not answered."""

    def __init__(
        self, number: int, placement: Placement, options: PoolOptions, nodes: list[str]
    ) -> None:
        self.placement = placement
        self.cores: list[tuple[str, int]] = []
        self.ended = asyncio.Event()

    async def start(self) -> None:
        type(self).started += 1
        await (self.gate.wait() if self.gate else asyncio.sleep(0.01))
        if self.faults:
            raise RunFailed(self.faults.pop(0), "the workers did not start within 180 s")

    async def close(self, *, force: bool) -> None:
        if not self.hangs:
            self.ended.set()

    async def wait_for_end(self) -> None:
        await self.ended.wait()

    async def settle(self) -> bool:
        return True

    def take_printed(self, *, is_lost: bool = False) -> bytes:
        return b""

    async def ask(self, commands: list[Command], timeout_s: float) -> list[Reply]:
        if self.is_far:
            await asyncio.Event().wait()
        for _ in range(9):
            await asyncio.sleep(0)  # it takes longer than a look at what has happened already
        return [Finished(ledger={}, busy_s=1.0, weights=None, test_value=None)]

    def choose_cores(self, taken: object) -> list[tuple[int, ...]]:
        return [()] * self.placement.num_workers

    def members(self) -> list[Ready]:
        me = Ready(host="here", node="here", pid=1, device="cpu", cores=())
        return [me] * self.placement.num_workers

    def nodes(self) -> list[str]:
        return [member.node for member in self.members()]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> WorkerPool:
    monkeypatch.setattr(worker_pool, "WorkerGroup", FakeGroup)
    FakeGroup.faults, FakeGroup.started, FakeGroup.gate = [], 0, None
    FakeGroup.hangs, FakeGroup.is_far = False, True
    options = PoolOptions(scratch=str(tmp_path), search_path="", is_local=True)
    return WorkerPool(ResourceScheduler([Node(2, 0)]), options)


def busy(pool: WorkerPool) -> list[str | None]:
    return [group.trial for group in pool._scheduler.busy]


async def until_a_group_starts() -> None:
    while not FakeGroup.started:
        await asyncio.sleep(0)


async def some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def is_stopped(work: Awaitable[Any]) -> None:
    with pytest.raises(RunFailed) as failed:
        await asyncio.wait_for(work, timeout=600)
    assert failed.value.failure == STOPPED


async def test_a_group_that_does_not_start_gives_its_place_back(pool: WorkerPool) -> None:
    """It is not started again here: how often a run asks is the run's to say."""
    FakeGroup.faults = ["worker_lost"]
    with pytest.raises(RunFailed) as failed:
        await pool.acquire("a", ONE)
    assert failed.value.failure == "worker_lost"
    await pool.acquire("b", TWO)
    assert FakeGroup.started == 2
    assert [trial for trial, *_ in pool.groups()] == ["b"]


async def test_the_place_of_what_hangs_is_given_away_once_it_is_gone(pool: WorkerPool) -> None:
    FakeGroup.faults, FakeGroup.hangs = ["worker_lost"], True
    starting = asyncio.ensure_future(pool.acquire("a", TWO))
    await until_a_group_starts()
    (made,) = pool._groups.values()
    with pytest.raises(RunFailed) as failed:
        await starting
    assert failed.value.failure == "worker_lost"
    other = asyncio.ensure_future(pool.acquire("b", ONE))
    await some_turns()
    assert FakeGroup.started == 1, "Ray holds the cores still"
    made.ended.set()
    await other
    assert FakeGroup.started == 2


async def test_an_idle_group_that_has_died_is_replaced(pool: WorkerPool) -> None:
    await pool.acquire("a", ONE)
    await pool.release("a")
    (group,) = pool._groups.values()
    group.ended.set()
    await pool.acquire("b", ONE)
    assert FakeGroup.started == 2


@pytest.mark.parametrize("keep", [True, False])
async def test_a_released_group_is_kept_or_closed(pool: WorkerPool, keep: bool) -> None:
    await pool.acquire("a", ONE)
    await pool.release("a", keep=keep)
    assert len(pool.groups()) == int(keep)


async def test_a_trial_that_is_over_gets_no_workers_any_more(pool: WorkerPool) -> None:
    """Its own process may ask after Tune has ended it: nobody would give them back."""
    await pool.release("late", for_good=True)
    await is_stopped(pool.acquire("late", ONE))
    await pool.release("again")  # a run that is repeated under its name
    await pool.acquire("again", ONE)
    assert busy(pool) == ["again"]


async def test_a_trial_that_ends_while_its_group_starts_holds_nothing(pool: WorkerPool) -> None:
    FakeGroup.gate = asyncio.Event()
    asking = asyncio.ensure_future(pool.acquire("a", ONE))
    await until_a_group_starts()
    await pool.release("a", for_good=True)
    FakeGroup.gate.set()
    await is_stopped(asking)
    await pool.acquire("b", TWO)
    assert busy(pool) == ["b"]


async def test_who_waits_is_sent_away_and_holds_nothing(pool: WorkerPool) -> None:
    """In the queue, and while a group starts; later phases may ask again."""
    FakeGroup.gate = asyncio.Event()
    starting = asyncio.ensure_future(pool.acquire("starting", TWO))
    waiting = asyncio.ensure_future(pool.acquire("waiting", ONE))
    await until_a_group_starts()
    pool.stop_waiting()
    await is_stopped(starting)
    await is_stopped(waiting)
    FakeGroup.gate.set()
    await pool.acquire("later", TWO)
    assert busy(pool) == ["later"]
    assert not pool._scheduler.waiting


async def test_what_runs_when_the_time_is_up_does_not_reach_its_next_evaluation(
    pool: WorkerPool,
) -> None:
    await pool.acquire("a", ONE)
    running = asyncio.ensure_future(pool.command("a", Start(spec=RunSpec()), 600.0))
    await asyncio.sleep(0)
    assert pool.stop_running(60.0) == {}, "it has had no time to come to its evaluation"
    assert pool.stop_running().keys() == {"a"}
    assert pool.stop_running() == {}, "said once"
    await is_stopped(running)
    await is_stopped(pool.command("a", Start(spec=RunSpec()), 600.0))
    await asyncio.wait_for(pool.acquire("b", TWO), timeout=60)  # the place is given back
    FakeGroup.is_far = False
    await pool.command("b", Start(spec=RunSpec()), 600.0)
    assert [trial for trial, *_ in pool.groups()] == ["b"]


async def test_the_test_value_of_a_run_is_waited_for_longer_than_an_evaluation(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pool.acquire("a", ONE)
    ending = asyncio.ensure_future(pool.command("a", Finish(test=True), 600.0))
    await asyncio.sleep(0)
    assert pool.stop_running() == {}
    monkeypatch.setattr(worker_pool.time, "perf_counter", lambda: time.monotonic() + 1e6)
    assert pool.stop_running().keys() == {"a"}
    await is_stopped(ending)


async def test_a_run_that_has_ended_by_then_is_tested_and_saved(
    pool: WorkerPool,
) -> None:
    FakeGroup.is_far = False
    await pool.acquire("a", ONE)
    pool.stop_running()
    (reply,) = await pool.command("a", Finish(test=True, save=True), 600.0)
    assert isinstance(reply, Finished)


async def test_a_run_that_is_released_while_its_loop_is_at_work_leaves_no_group(
    pool: WorkerPool,
) -> None:
    """The next run would wait behind it."""
    await pool.acquire("a", ONE)
    running = asyncio.ensure_future(pool.command("a", Start(spec=RunSpec()), 600.0))
    for _ in range(3):
        await asyncio.sleep(0)
    await pool.release("a")
    assert pool.groups() == []
    await pool.acquire("b", ONE)
    pool.stop_running()
    await is_stopped(running)
    assert [trial for trial, *_ in pool.groups()] == ["b"]


async def test_what_must_close_for_another_is_gone_before_that_starts(pool: WorkerPool) -> None:
    pool._scheduler.on_cluster = True
    await pool.acquire("a", ONE)
    await pool.release("a")
    (idle,) = pool._groups.values()
    FakeGroup.hangs = True
    asking = asyncio.ensure_future(pool.acquire("b", TWO))
    await some_turns()
    assert FakeGroup.started == 1, "its processes hold their GPU still"
    idle.ended.set()
    await asking
    assert FakeGroup.started == 2


SPEC = RunSpec()


LEDGER = {"train": 1.0, "input": 0.0}


def state(points: int) -> RunState:
    return RunState.after(SPEC, [evaluation(index=index, ledger=LEDGER) for index in range(points)])


def held(pool: WorkerPool) -> tuple[RunState, bytes] | None:
    found = pool.checkpoint("a")
    return found and (found.state, found.weights.read_bytes())


def progress(index: int, **more: Any) -> Progress:
    return Progress(
        evaluation=evaluation(index=index, ledger=LEDGER),
        num_parameters=1,
        batch_statistics=False,
        num_classes=10,
        busy_s=1.0,
        **more,
    )


class AnsweringGroup(FakeGroup):
    """Trains, saves after its second evaluation, and notes what its two workers are told."""

    told: list[Command] = []
    pool: WorkerPool

    async def ask(self, commands: list[Command], timeout_s: float) -> list[Reply]:
        self.told.append(commands[0])
        assert commands[0] == commands[1]
        index = len(self.told) - 1
        saves = index == 1 or (isinstance(commands[0], Finish) and commands[0].save)
        sent = {"sent_bytes": 7} if saves else {}
        if sent:
            await self.pool.take_part(0, 4, b"hts")
            await self.pool.take_part(0, 0, b"weig")
            await self.pool.take_part(0, 0, b"weig")  # its answer was lost
        if isinstance(commands[0], Finish):
            return [Finished(ledger={}, **sent), Finished(ledger={})]
        saved = {"state": state(index + 1)} if sent else {}
        return [progress(index, **sent, **saved), progress(index)]

    def take_printed(self, *, is_lost: bool = False) -> bytes:
        return b"lost\n" if is_lost else f"after {len(self.told)} commands\n".encode()


@pytest.fixture
def answering(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> WorkerPool:
    """The pool, with such groups."""
    monkeypatch.setattr(worker_pool, "WorkerGroup", AnsweringGroup)
    AnsweringGroup.told, AnsweringGroup.pool = [], pool
    return pool


async def test_the_newest_checkpoint_stays_in_the_pool_until_the_end(answering: WorkerPool) -> None:
    assert (await answering.acquire("a", TWO)).resume is None
    assert await answering.command("a", Start(spec=SPEC), 1.0) == [progress(0)] * 2
    assert held(answering) is None
    first, other = await answering.command("a", Advance(), 1.0)
    assert (first, other) == (progress(1, saved=2), progress(1)), "replies have its index alone"
    assert held(answering) == (state(2), b"weights")
    await answering.command("a", Advance(), 1.0)
    kept = answering.checkpoint("a")
    assert kept is not None
    first, _ = await answering.command("a", Finish(save=True), 1.0)
    assert isinstance(first, Finished)
    assert first.weights is not None
    assert first.weights.read_bytes() == b"weights"
    assert held(answering) is None
    assert not kept.weights.exists()


async def test_a_run_is_continued_from_what_was_restored(
    answering: WorkerPool, tmp_path: Path
) -> None:
    file = tmp_path / "weights.pt"
    earlier = Checkpoint(state=state(3), weights=file)
    file.write_bytes(b"weights")
    answering.restore("a", earlier)
    file.unlink()  # the study's folder keeps the last two
    assert (await answering.acquire("a", TWO)).resume == state(3)
    await answering.command("a", Start(spec=SPEC), 1.0)
    (start,) = AnsweringGroup.told
    assert isinstance(start, Start)
    assert start.resume == answering.checkpoint("a")
    assert held(answering) == (state(3), b"weights")
    answering.forget("a")
    assert held(answering) is None


def test_a_worker_of_another_host_sends_and_fetches_a_state_in_parts(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(name: str) -> Any:
        def remote(*given: Any) -> Any:
            answer = getattr(pool, name)(*given)
            return asyncio.run(answer) if asyncio.iscoroutine(answer) else answer

        return SimpleNamespace(remote=remote)

    monkeypatch.setattr(states, "PART_BYTES", 3)
    monkeypatch.setattr(states.ray, "get", lambda answer, timeout: answer)  # type: ignore[attr-defined]
    far = SimpleNamespace(take_part=call("take_part"), give_part=call("give_part"))
    far.incoming_file = SimpleNamespace(remote=lambda group: Path("/elsewhere/there"))
    assert states.send(far, 0, io.BytesIO(b"weights")) == 7
    file = pool._states.keep(0, "a-1", 7)
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    assert states.fetch(far, file) == b"weights"
    with pytest.raises(FileNotFoundError):
        states.fetch(far, file.with_name("gone"))


async def test_weights_that_no_disk_takes_fail_the_run(
    answering: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left")

    monkeypatch.setattr(states.os, "fdopen", full)  # type: ignore[attr-defined]
    await answering.acquire("a", TWO)
    with pytest.raises(RunFailed) as failed:
        await answering.command("a", Finish(save=True), 1.0)
    assert "No space left" in failed.value.message


async def test_a_run_after_the_study_has_ended_has_its_weights_kept(
    answering: WorkerPool, tmp_path: Path
) -> None:
    study = tmp_path / "study"
    study.mkdir()
    answering.hold_states_in(study)
    await answering.acquire("a", TWO)
    await answering.command("a", Start(spec=SPEC), 1.0)
    assert (study / states.FOLDER).is_dir()
    shutil.rmtree(study)
    finished = (await answering.command("a", Finish(save=True), 1.0))[0]
    assert isinstance(finished, protocol.Finished)
    assert finished.weights is not None
    assert finished.weights.is_file()


async def test_what_a_run_prints_is_kept_by_its_name_until_it_is_over(
    answering: WorkerPool,
) -> None:
    await answering.acquire("a", TWO)
    await answering.command("a", Start(spec=SPEC), 1.0)
    assert answering.printed("a") == b"after 1 commands\n"
    await answering.command("a", Finish(), 1.0)
    assert answering.printed("b") == b""
    assert answering.printed("a", is_over=True) == b"after 1 commands\nafter 2 commands\n"
    assert answering.printed("a") == b""


async def test_what_lost_workers_have_printed_is_kept(
    answering: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(self: Any, commands: list[Command], timeout_s: float) -> list[Reply]:
        raise RunFailed("worker_lost", "a worker process has died")

    monkeypatch.setattr(AnsweringGroup, "ask", ask)
    await answering.acquire("a", TWO)
    with pytest.raises(RunFailed):
        await answering.command("a", Start(spec=SPEC), 1.0)
    assert answering.printed("a") == b"lost\n"
