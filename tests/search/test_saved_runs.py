"""Checkpoints on their way between the pool and the study's folder."""

import errno
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raybench.results.store import Store
from raybench.runs import saved_runs as module
from raybench.runs.saved_runs import SavedRuns
from raybench.spec.errors import StudyError
from raybench.spec.run import RunSpec
from raybench.stats.checkpoint import Checkpoint, RunState, latest_checkpoint
from tests.search.made_up import evaluation, record

SPEC = RunSpec()
LEDGER = {"train": 1.0, "eval": 0.5, "input": 0.0}


def checkpoint(points: int, spec: RunSpec = SPEC) -> Checkpoint:
    curve = [evaluation(float(i + 1), index=i, ledger=LEDGER) for i in range(points)]
    return Checkpoint(state=RunState.after(spec, curve), weights=bytes([points]) * 100)


class FakePool:
    """Holds what a real one does, in this process."""

    def __init__(self) -> None:
        self.held: dict[str, Checkpoint] = {}
        self.checkpoint = SimpleNamespace(remote=self.held.get)
        self.restore = SimpleNamespace(remote=self.held.__setitem__)
        self.forget = SimpleNamespace(remote=lambda name: self.held.pop(name, None))


class Bench:
    """A store, a pool, and what the user is told."""

    def __init__(self, folder: Path) -> None:
        self.pool, self.store = FakePool(), Store(folder)
        self.said: list[str] = []
        self.faults: list[Exception] = []

    def saved(self) -> SavedRuns:
        return SavedRuns(self.pool, self.store, say=self.said.append, on_fault=self.faults.append)

    def write(self, name: str, points: int, spec: RunSpec = SPEC) -> None:
        self.pool.held[name] = checkpoint(points, spec)
        with self.saved() as saved:
            saved.save(name)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(module.ray, "get", lambda answer: answer)
    one = Bench(tmp_path / "study")
    with one.store:
        yield one


def test_what_one_driver_has_written_another_continues(bench: Bench) -> None:
    bench.write("0001", 3)
    bench.pool.held.clear()
    with bench.saved() as saved:
        assert saved.resume("0002", SPEC) == ()
        curve = saved.resume("0001", SPEC)
    assert [point.index for point in curve] == [0, 1, 2]
    assert bench.pool.held == {"0001": checkpoint(3)}
    assert bench.said == []


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
def test_only_what_was_cut_off_is_kept(ended: Any, is_kept: bool, bench: Bench) -> None:
    bench.write("0001", 2)
    with bench.saved() as saved:
        saved.over(ended)
    assert (bench.store.folder / "checkpoints" / "0001").exists() == is_kept
    assert bench.pool.held == {}, "its memory is given back in any case"


@pytest.mark.parametrize("is_damaged", [True, False])
def test_what_cannot_serve_is_put_aside_and_said(is_damaged: bool, bench: Bench) -> None:
    other = SPEC.model_copy(update={"learning_rate": 0.5})
    bench.write("0001", 2, SPEC if is_damaged else other)
    folder = bench.store.folder / "checkpoints" / "0001"
    if is_damaged:
        next(folder.glob("*/weights.pt")).write_bytes(b"")
    bench.pool.held.clear()
    for _ in range(2):
        with bench.saved() as saved:
            assert saved.resume("0001", SPEC) == ()
    (sentence,) = bench.said
    assert ("is damaged" in sentence) == is_damaged
    assert ("is of another run" in sentence) != is_damaged
    assert sentence.endswith(f"Run 0001 begins anew; what was there is now {folder}.refused.")
    assert folder.with_name("0001.refused").is_dir()
    bench.write("0001", 1)
    assert latest_checkpoint(folder, SPEC) == checkpoint(1)


def test_what_the_workers_refuse_is_put_aside_before_anything_new_is_written(bench: Bench) -> None:
    bench.write("0001", 3)
    folder = bench.store.folder / "checkpoints" / "0001"
    bench.pool.held["0001"] = checkpoint(1)
    with bench.saved() as saved:
        saved.refused("0001", "It holds another model.")
        saved.save("0001")
        saved.refused("0002", "It too.")
    assert bench.said[0] == (
        f"It holds another model. Run 0001 begins anew; what was there is now {folder}.refused."
    )
    assert latest_checkpoint(folder.with_name("0001.refused"), SPEC) == checkpoint(3)
    assert latest_checkpoint(folder, SPEC) == checkpoint(1)


def test_a_full_disk_ends_the_study_and_is_raised(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left")

    def write(folder: Path, checkpoint: Checkpoint) -> None:
        raise full

    monkeypatch.setattr(module, "write_checkpoint", write)
    with pytest.raises(OSError, match="No space left"):
        bench.write("0001", 2)
    assert bench.faults == [full]


def test_a_folder_that_was_deleted_is_not_made_anew(bench: Bench) -> None:
    shutil.rmtree(bench.store.folder)
    with pytest.raises(StudyError, match="was deleted"):
        bench.write("0001", 2)
    assert not bench.store.folder.exists()
