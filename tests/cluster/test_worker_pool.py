"""Worker pool with fake groups: their start, reuse and end, checkpoints and printed output."""

import asyncio
import io
import shutil
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from raybench.cluster import session_files, worker_pool
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
from raybench.cluster.scheduler import ResourceScheduler
from raybench.cluster.worker_group import PoolOptions, WorkerGroup
from raybench.cluster.worker_pool import WorkerPool
from raybench.spec.run import ResourceRequest, RunSpec
from raybench.stats.checkpoint import Checkpoint, RunState
from tests.factories import evaluation

ONE, TWO = ResourceRequest("torch", 1), ResourceRequest("torch", 2)


class FakeGroup(WorkerGroup):
    """Worker group without processes; its class attributes set the behavior of all groups."""

    faults: list[str] = []
    """Failures of the next starts, in order."""
    started = 0
    """Number of starts."""
    hangs = False
    """Whether workers still exist after the group was closed."""
    gate: asyncio.Event | None = None
    """Event that a start waits for, if any."""
    is_training = True
    """Whether the next evaluation is never reached: commands are not answered."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        member = Ready(host="here", node="here", pid=1, device="cpu", cores=())
        self._members = dict.fromkeys(range(self.request.num_workers), member)

    async def start(self) -> None:
        type(self).started += 1
        await (self.gate.wait() if self.gate else asyncio.sleep(0.01))
        if self.faults:
            raise RunFailed(self.faults.pop(0), "the workers did not start within 180 s")

    async def close(self, *, force: bool) -> None:
        if not self.hangs:
            self.ended.set()

    async def ask(self, commands: list[Command], timeout_s: float) -> list[Reply]:
        if self.is_training:
            await asyncio.Event().wait()
        for _ in range(9):
            await asyncio.sleep(0)  # takes longer than a check of finished commands
        return [Finished(ledger={}, busy_s=1.0, weights=None, test_value=None)]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> WorkerPool:
    monkeypatch.setattr(worker_pool, "WorkerGroup", FakeGroup)
    FakeGroup.faults, FakeGroup.started, FakeGroup.gate = [], 0, None
    FakeGroup.hangs, FakeGroup.is_training = False, True
    options = PoolOptions(scratch=str(tmp_path), search_path="", is_local=True)
    return WorkerPool(ResourceScheduler([Node(2, 0)]), options)


def busy(pool: WorkerPool) -> list[str | None]:
    return [group.trial for group in pool._scheduler.busy]


async def until_a_group_starts() -> None:
    while not FakeGroup.started:
        await asyncio.sleep(0)


async def run_event_loop() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def assert_fails(work: Awaitable[Any], failure: str = STOPPED) -> None:
    with pytest.raises(RunFailed) as failed:
        await asyncio.wait_for(work, timeout=600)
    assert failed.value.failure == failure


async def test_group_that_fails_to_start_frees_its_resources(pool):
    """The pool does not restart it; the run decides how often it requests a group."""
    FakeGroup.faults = ["worker_lost"]
    await assert_fails(pool.acquire("a", ONE), "worker_lost")
    await pool.acquire("b", TWO)
    assert FakeGroup.started == 2
    assert [trial for trial, *_ in pool.groups()] == ["b"]


async def test_resources_of_a_hanging_group_are_free_once_it_has_ended(pool):
    FakeGroup.faults, FakeGroup.hangs = ["worker_lost"], True
    pending = asyncio.ensure_future(pool.acquire("a", TWO))
    await until_a_group_starts()
    (group,) = pool._groups.values()
    await assert_fails(pending, "worker_lost")
    waiting = asyncio.ensure_future(pool.acquire("b", ONE))
    await run_event_loop()
    assert FakeGroup.started == 1, "Ray still holds the cores"
    group.ended.set()
    await waiting
    assert FakeGroup.started == 2


async def test_dead_idle_group_is_replaced(pool):
    await pool.acquire("a", ONE)
    await pool.release("a")
    (group,) = pool._groups.values()
    group.ended.set()
    await pool.acquire("b", ONE)
    assert FakeGroup.started == 2


@pytest.mark.parametrize("keep", [True, False])
async def test_released_group_is_kept_or_closed(pool, keep):
    await pool.acquire("a", ONE)
    await pool.release("a", keep=keep)
    assert len(pool.groups()) == int(keep)


async def test_finished_trial_gets_no_workers(pool):
    """The process of a trial may request workers after Tune has ended it; they would be lost."""
    await pool.release("late", for_good=True)
    await assert_fails(pool.acquire("late", ONE))
    await pool.release("repeated")  # a run that is repeated under the same name
    await pool.acquire("repeated", ONE)
    assert busy(pool) == ["repeated"]


async def test_trial_that_ends_during_the_start_holds_no_resources(pool):
    FakeGroup.gate = asyncio.Event()
    pending = asyncio.ensure_future(pool.acquire("a", ONE))
    await until_a_group_starts()
    await pool.release("a", for_good=True)
    FakeGroup.gate.set()
    await assert_fails(pending)
    await pool.acquire("b", TWO)
    assert busy(pool) == ["b"]


async def test_stop_waiting_ends_waiting_trials(pool):
    """In the queue, and during the start of a group; later trials get workers again."""
    FakeGroup.gate = asyncio.Event()
    starting = asyncio.ensure_future(pool.acquire("starting", TWO))
    waiting = asyncio.ensure_future(pool.acquire("waiting", ONE))
    await until_a_group_starts()
    pool.stop_waiting()
    await assert_fails(starting)
    await assert_fails(waiting)
    FakeGroup.gate.set()
    await pool.acquire("later", TWO)
    assert busy(pool) == ["later"]
    assert not pool._scheduler.waiting


async def test_stop_running_ends_commands_before_their_next_evaluation(pool):
    await pool.acquire("a", ONE)
    running = asyncio.ensure_future(pool.command("a", Start(spec=RunSpec()), 600.0))
    await asyncio.sleep(0)
    assert pool.stop_running(60.0) == {}, "too early to expect an evaluation"
    assert pool.stop_running().keys() == {"a"}
    assert pool.stop_running() == {}, "reported once"
    await assert_fails(running)
    await assert_fails(pool.command("a", Start(spec=RunSpec()), 600.0))
    await asyncio.wait_for(pool.acquire("b", TWO), timeout=60)  # the resources are free
    FakeGroup.is_training = False
    await pool.command("b", Start(spec=RunSpec()), 600.0)
    pool.stop_running()  # the new run is between two commands
    await pool.command("b", Finish(test=True, save=True), 600.0)
    assert [trial for trial, *_ in pool.groups()] == ["b"]


async def test_stop_running_waits_longer_for_a_test_value(pool, monkeypatch):
    await pool.acquire("a", ONE)
    pending = asyncio.ensure_future(pool.command("a", Finish(test=True), 600.0))
    await asyncio.sleep(0)
    assert pool.stop_running() == {}
    monkeypatch.setattr(worker_pool.time, "perf_counter", lambda: time.monotonic() + 1e6)
    assert pool.stop_running().keys() == {"a"}
    await assert_fails(pending)


async def test_run_released_during_a_command_leaves_no_group(pool):
    """Otherwise the next run would wait for the command."""
    await pool.acquire("a", ONE)
    running = asyncio.ensure_future(pool.command("a", Start(spec=RunSpec()), 600.0))
    for _ in range(3):
        await asyncio.sleep(0)
    await pool.release("a")
    assert pool.groups() == []
    await pool.acquire("b", ONE)
    pool.stop_running()
    await assert_fails(running)
    assert [trial for trial, *_ in pool.groups()] == ["b"]


async def test_evicted_group_has_ended_before_the_next_starts(pool):
    pool._scheduler.on_cluster = True
    await pool.acquire("a", ONE)
    await pool.release("a")
    (idle,) = pool._groups.values()
    FakeGroup.hangs = True
    pending = asyncio.ensure_future(pool.acquire("b", TWO))
    await run_event_loop()
    assert FakeGroup.started == 1, "its processes still hold their GPU"
    idle.ended.set()
    await pending
    assert FakeGroup.started == 2


SPEC = RunSpec()
LEDGER = {"train": 1.0, "input": 0.0}


def state_after(num_evaluations: int) -> RunState:
    evaluations = [evaluation(index=index, ledger=LEDGER) for index in range(num_evaluations)]
    return RunState.after(SPEC, evaluations)


def kept_checkpoint(pool: WorkerPool) -> tuple[RunState, bytes] | None:
    checkpoint = pool.checkpoint("a")
    return checkpoint and (checkpoint.state, checkpoint.weights.read_bytes())


def progress_at(index: int, **changes: Any) -> Progress:
    return Progress(
        evaluation=evaluation(index=index, ledger=LEDGER),
        num_parameters=1,
        batch_statistics=False,
        num_classes=10,
        busy_s=1.0,
        **changes,
    )


class AnsweringGroup(FakeGroup):
    """Group of two workers that trains, saves after its second evaluation and records commands."""

    commands: list[Command] = []
    pool: WorkerPool

    async def ask(self, commands: list[Command], timeout_s: float) -> list[Reply]:
        self.commands.append(commands[0])
        assert commands[0] == commands[1]
        index = len(self.commands) - 1
        saves = index == 1 or (isinstance(commands[0], Finish) and commands[0].save)
        sent = {"sent_bytes": 7} if saves else {}
        if sent:
            await self.pool.write_chunk(0, 4, b"hts")
            await self.pool.write_chunk(0, 0, b"weig")
            await self.pool.write_chunk(0, 0, b"weig")  # sent again because the answer was lost
        if isinstance(commands[0], Finish):
            return [Finished(ledger={}, **sent), Finished(ledger={})]
        saved = {"state": state_after(index + 1)} if sent else {}
        return [progress_at(index, **sent, **saved), progress_at(index)]

    def take_printed(self, *, is_lost: bool = False) -> bytes:
        return b"lost\n" if is_lost else f"after {len(self.commands)} commands\n".encode()


@pytest.fixture
def answering(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> WorkerPool:
    """Worker pool whose groups are `AnsweringGroup`."""
    monkeypatch.setattr(worker_pool, "WorkerGroup", AnsweringGroup)
    AnsweringGroup.commands, AnsweringGroup.pool = [], pool
    return pool


async def test_newest_checkpoint_is_kept_until_the_run_ends(answering):
    assert (await answering.acquire("a", TWO)).resume is None
    assert await answering.command("a", Start(spec=SPEC), 1.0) == [progress_at(0)] * 2
    assert kept_checkpoint(answering) is None
    rank_0, rank_1 = await answering.command("a", Advance(), 1.0)
    assert rank_0 == progress_at(1, saved=2), "replies contain only its index"
    assert rank_1 == progress_at(1)
    assert kept_checkpoint(answering) == (state_after(2), b"weights")
    await answering.command("a", Advance(), 1.0)
    checkpoint = answering.checkpoint("a")
    rank_0, _ = await answering.command("a", Finish(save=True), 1.0)
    assert rank_0.weights.read_bytes() == b"weights"
    assert kept_checkpoint(answering) is None
    assert not checkpoint.weights.exists()


async def test_run_resumes_from_the_restored_checkpoint(answering, tmp_path):
    file = tmp_path / "weights.pt"
    earlier = Checkpoint(state=state_after(3), weights=file)
    file.write_bytes(b"weights")
    answering.restore("a", earlier)
    file.unlink()  # the folder of the study keeps only the last two
    assert (await answering.acquire("a", TWO)).resume == state_after(3)
    await answering.command("a", Start(spec=SPEC), 1.0)
    (start,) = AnsweringGroup.commands
    assert start.resume == answering.checkpoint("a")
    assert kept_checkpoint(answering) == (state_after(3), b"weights")
    answering.forget("a")
    assert kept_checkpoint(answering) is None


def test_worker_on_another_host_transfers_states_in_chunks(pool, monkeypatch):
    remote_pool = Mock()
    remote_pool.incoming_file.remote.return_value = Path("/elsewhere/there")
    remote_pool.write_chunk.remote = lambda *arguments: asyncio.run(pool.write_chunk(*arguments))
    remote_pool.read_chunk.remote = lambda *arguments: asyncio.run(pool.read_chunk(*arguments))
    monkeypatch.setattr(session_files, "CHUNK_BYTES", 3)
    monkeypatch.setattr(session_files.ray, "get", lambda answer, timeout: answer)
    assert session_files.send_state(remote_pool, 0, io.BytesIO(b"weights")) == 7
    file = pool._states.keep(0, "a-1", 7)
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    assert session_files.fetch_state(remote_pool, file) == b"weights"
    with pytest.raises(FileNotFoundError):
        session_files.fetch_state(remote_pool, file.with_name("gone"))


async def test_full_disk_fails_the_run(answering, monkeypatch):
    full = OSError(28, "No space left")
    monkeypatch.setattr(session_files.os, "fdopen", Mock(side_effect=full))
    await answering.acquire("a", TWO)
    with pytest.raises(RunFailed) as failed:
        await answering.command("a", Finish(save=True), 1.0)
    assert "No space left" in failed.value.message


async def test_weights_are_kept_after_the_study_folder_is_gone(answering, tmp_path):
    study = tmp_path / "study"
    study.mkdir()
    answering.hold_states_in(study)
    await answering.acquire("a", TWO)
    await answering.command("a", Start(spec=SPEC), 1.0)
    assert (study / session_files.STATES_FOLDER).is_dir()
    shutil.rmtree(study)
    finished = (await answering.command("a", Finish(save=True), 1.0))[0]
    assert finished.weights.is_file()


async def test_output_is_kept_by_run_until_it_is_over(answering):
    await answering.acquire("a", TWO)
    await answering.command("a", Start(spec=SPEC), 1.0)
    assert answering.printed("a") == b"after 1 commands\n"
    await answering.command("a", Finish(), 1.0)
    assert answering.printed("b") == b""
    assert answering.printed("a", is_over=True) == b"after 1 commands\nafter 2 commands\n"
    assert answering.printed("a") == b""


async def test_output_of_lost_workers_is_kept(answering, monkeypatch):
    lost = RunFailed("worker_lost", "a worker process has died")
    monkeypatch.setattr(AnsweringGroup, "ask", AsyncMock(side_effect=lost))
    await answering.acquire("a", TWO)
    await assert_fails(answering.command("a", Start(spec=SPEC), 1.0), "worker_lost")
    assert answering.printed("a") == b"lost\n"
