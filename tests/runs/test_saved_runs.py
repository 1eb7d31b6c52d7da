"""Checkpoints on their way between the pool and the study's folder."""

import asyncio
import errno
import inspect
import io
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raybench.cluster import session_files
from raybench.cluster.protocol import Progress
from raybench.cluster.scheduler import ResourceScheduler
from raybench.cluster.worker_group import PoolOptions
from raybench.cluster.worker_pool import WorkerPool
from raybench.results.store import Store
from raybench.runs import lifecycle as module
from raybench.runs.lifecycle import SavedRuns
from raybench.spec.errors import StudyError
from raybench.spec.run import RunSpec
from raybench.stats.checkpoint import Checkpoint, RunState, latest_checkpoint
from tests.search.made_up import evaluation, record

SPEC = RunSpec()
LEDGER = {"train": 1.0, "eval": 0.5, "input": 0.0}


def state(points: int, spec: RunSpec = SPEC) -> RunState:
    curve = [evaluation(float(i + 1), index=i, ledger=LEDGER) for i in range(points)]
    return RunState.after(spec, curve)


def weights(points: int) -> bytes:
    return bytes([points]) * 100


def is_one_of(checkpoint: Checkpoint | None, points: int) -> bool:
    assert checkpoint is not None
    return (checkpoint.state, checkpoint.weights.read_bytes()) == (state(points), weights(points))


class PoolOfThisProcess:
    """A pool whose methods are called as those of an actor are."""

    def __init__(self, scratch: Path) -> None:
        options = PoolOptions(scratch=str(scratch), search_path="", is_local=True)
        self.pool = WorkerPool(ResourceScheduler([]), options)

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(
            remote=lambda *arguments, **options: self._call(name, arguments, options)
        )

    def _call(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        answer = getattr(self.pool, name)(*arguments, **options)
        return asyncio.run(answer) if inspect.iscoroutine(answer) else answer

    def hold(self, name: str, points: int, spec: RunSpec = SPEC) -> None:
        """Hold a checkpoint as if a worker had sent it."""
        content = weights(points)
        assert session_files.send_state(self, 0, io.BytesIO(content)) == len(content)
        sent = {"sent_bytes": len(content), "state": state(points, spec)}
        counted = dict.fromkeys(("num_parameters", "num_classes"), 1)
        last = state(points, spec).evaluations[-1]
        reply = Progress(evaluation=last, batch_statistics=False, **counted, **sent)
        self.pool._without_state(name, 0, reply)

    @property
    def held(self) -> dict[str, Checkpoint]:
        runs = self.pool._runs.items()
        return {name: run.checkpoint for name, run in runs if run.checkpoint is not None}


class Bench:
    """A store, a pool, and messages to the user."""

    def __init__(self, folder: Path) -> None:
        scratch = folder.with_name("raybench-scratch")
        scratch.mkdir()
        self.store = Store(folder)
        self.pool = PoolOfThisProcess(scratch)
        self.said = []
        self.faults = []

    def saved(self) -> SavedRuns:
        return SavedRuns(self.pool, self.store, say=self.said.append, on_fault=self.faults.append)

    def write(self, name: str, points: int, spec: RunSpec = SPEC) -> None:
        with self.saved() as saved:
            self.pool.hold(name, points, spec)
            saved.save(name)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(module.ray, "get", lambda answer, timeout=None: answer)
    made_up = Bench(tmp_path / "study")
    with made_up.store:
        yield made_up
    assert not (made_up.store.folder / session_files.STATES_FOLDER).exists()


def test_another_driver_resumes_from_a_checkpoint(bench):
    bench.write("0001", 3)
    bench.pool.pool._runs.clear()
    with bench.saved() as saved:
        assert saved.resume("0002", SPEC) == ()
        curve = saved.resume("0001", SPEC)
        assert is_one_of(bench.pool.held["0001"], 3)
        assert bench.pool.held["0001"].weights.is_relative_to(bench.store.folder), "on its disk"
    assert [point.index for point in curve] == [0, 1, 2]
    assert list(bench.pool.held) == ["0001"]
    assert bench.said == []


def test_printed_output_is_written_during_and_after_runs(bench, monkeypatch):
    run = bench.pool.pool._runs["0001"]
    log = bench.store.folder / "logs" / "0001.txt"
    with bench.saved() as saved:
        saved.write_output("0001")
        assert saved.log("0001") is None, "it has printed nothing"
        run.printed += b"first\n"
        assert saved.log("0001") == log
        run.printed += b"second\n"
        monkeypatch.setattr(module, "OUTPUT_S", 0.0)
        saved.write_output("0001")
    assert log.read_text() == "first\nsecond\n"
    with bench.saved() as saved:  # another session
        run.printed += b"third\n"
        saved.finish(record("0001"))
    assert log.read_text() == "first\nsecond\nthird\n"
    assert not run.printed


@pytest.mark.parametrize(
    ("ended", "is_kept"),
    [
        (record("0001"), False),
        (record("0001", failure="nan"), False),
        (record("0001", stop=None, stopped_by="scheduler"), True),
        (record("0001", stop=None, stopped_by="interrupted"), True),
        (replace(record("0001"), stop="interrupted"), True),  # its record was not written
        (record("0001", failure="worker_lost"), True),
    ],
)
def test_only_checkpoints_of_unfinished_runs_are_kept(ended, is_kept, bench):
    bench.write("0001", 2)
    with bench.saved() as saved:
        saved.finish(ended)
    assert (bench.store.folder / "checkpoints" / "0001").exists() == is_kept
    assert bench.pool.held == {}, "its memory is given back in any case"


@pytest.mark.parametrize("is_damaged", [True, False])
def test_unusable_checkpoints_are_moved_aside_and_reported(is_damaged, bench):
    other = SPEC.model_copy(update={"learning_rate": 0.5})
    bench.write("0001", 2, SPEC if is_damaged else other)
    folder = bench.store.folder / "checkpoints" / "0001"
    if is_damaged:
        next(folder.glob("*/weights.pt")).write_bytes(b"")
    bench.pool.pool._runs.clear()
    for _ in range(2):
        with bench.saved() as saved:
            assert saved.resume("0001", SPEC) == ()
    (sentence,) = bench.said
    assert "0001" in sentence
    assert f"{folder}.refused" in sentence
    assert folder.with_name("0001.refused").is_dir()
    bench.write("0001", 1)
    assert is_one_of(latest_checkpoint(folder, SPEC), 1)


@pytest.mark.parametrize("of", ["pool", "driver"])
def test_a_full_disk_ends_the_study_and_is_raised(of, bench, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left")

    if of == "pool":
        monkeypatch.setattr(session_files.os, "fdopen", full)
        monkeypatch.setattr(session_files.shutil, "copyfileobj", full)
    else:
        monkeypatch.setattr(module, "write_checkpoint", full)
    with pytest.raises(OSError, match="No space left"):
        bench.write("0001", 2)
    assert [getattr(fault, "errno", None) for fault in bench.faults] == [errno.ENOSPC]


def test_a_checkpoint_replaced_while_it_is_copied_is_no_fault(bench, monkeypatch):
    place, newer = session_files.link_or_copy, [2]

    def overtaken(*arguments: Any) -> None:
        if newer:
            bench.pool.hold("0001", newer.pop())
        place(*arguments)

    monkeypatch.setattr(module, "link_or_copy", overtaken)
    with bench.saved() as saved:
        bench.pool.hold("0001", 1)
        saved.save("0001")
        saved.save("0001")
    assert bench.faults == []
    assert is_one_of(latest_checkpoint(bench.store.folder / "checkpoints" / "0001", SPEC), 2)


def test_a_deleted_folder_is_not_created_again(bench):
    shutil.rmtree(bench.store.folder)
    with pytest.raises(StudyError):
        bench.write("0001", 2)
    assert not bench.store.folder.exists()
