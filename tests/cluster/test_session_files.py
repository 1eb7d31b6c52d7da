"""Temporary folders of sessions; captured output of workers, also of C code and child processes."""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from raybench.cluster import session_files
from raybench.cluster.protocol import Advance, Finished
from raybench.cluster.session_files import (
    OUTPUT_CUT,
    Capture,
    keep_end,
    output_path,
    prefix_rank,
    remove_stale_folders,
    scratch_folder,
    scratch_on_this_host,
    unsent_output,
)
from raybench.cluster.worker_group import PoolOptions, WorkerGroup
from raybench.spec.run import ResourceRequest
from tests.factories import wait_for

HOLDER = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from raybench.cluster.session_files import scratch_folder
with scratch_folder() as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(session_files, "_locks", {})


@pytest.mark.usefixtures("own_folder")
def test_folder_of_a_killed_session_is_removed_by_the_next(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    stale = Path(holder.stdout.readline().strip())
    (stale / "data").mkdir()
    (tmp_path / "raybench-mine").mkdir()  # without a lock file
    with scratch_folder() as own_folder:
        assert stale.is_dir(), "its session is alive"
        holder.kill()
        holder.wait()
        wait_for(lambda: remove_stale_folders() or not stale.exists())
        assert own_folder.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["raybench-mine"]


@pytest.mark.usefixtures("own_folder")
def test_worker_on_another_host_has_its_own_folder(tmp_path):
    with scratch_folder() as own_folder:
        assert scratch_on_this_host(str(own_folder)) == own_folder
    remote_folder = scratch_on_this_host("/not/on/this/host/raybench-abc")
    assert remote_folder == tmp_path / "raybench-abc"
    remove_stale_folders()
    assert remote_folder.is_dir(), "in use"
    assert scratch_on_this_host("/not/on/this/host/raybench-abc") == remote_folder
    session_files._locks.pop(remote_folder).close()
    remove_stale_folders()
    assert not remote_folder.exists()


def test_end_of_long_output_is_kept(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(session_files, "KEPT_OUTPUT_BYTES", 10)
    capture = Capture(output_path(tmp_path, 0, 0))
    capture.begin()
    os.write(1, b"all of it.")
    assert capture.take() == b"all of it."
    os.write(1, 1000 * b"." + b"last words")
    taken = capture.take()
    capture.end()
    assert taken == OUTPUT_CUT + b"last words"
    assert keep_end(taken + b"!") == OUTPUT_CUT + b"ast words!"


def test_output_of_python_c_code_and_children_is_captured(tmp_path, capfd, monkeypatch):
    for descriptor, name in ((1, "stdout"), (2, "stderr")):  # pytest's own are files in memory
        monkeypatch.setattr(sys, name, open(descriptor, "w", closefd=False))  # noqa: SIM115
    capture = Capture(output_path(tmp_path, 3, 0))
    print("before")
    capture.begin()
    print("from Python", flush=True)
    os.write(2, b"from C\n")
    subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    assert capture.take() == b"from Python\nfrom C\nfrom a child\n"
    print("more", file=sys.stderr)
    assert capture.take() == b"more\n"
    print("not taken")
    sys.stdout.flush()
    unsent = list(unsent_output(tmp_path, 3, 2))
    assert unsent == [(0, b"not taken\n")], "readable after the process has died"
    capture.end()
    assert capture.take() == b""
    print("after", flush=True)
    assert capfd.readouterr() == ("before\nafter\n", "")
    capture.begin()
    monkeypatch.setattr(sys, "stdout", None)  # user code may do so
    assert capture.take() == b"", "the next run starts without output"
    capture.end()


def test_output_written_during_take_is_complete(tmp_path, capfd):
    capture = Capture(output_path(tmp_path, 1, 0))
    capture.begin()
    code = "for number in range(30_000): print(number, flush=True)"
    child, output_bytes = subprocess.Popen([sys.executable, "-c", code]), b""
    while child.poll() is None:
        output_bytes += capture.take()
    output_bytes += capture.take()
    capture.end()
    assert output_bytes.split() == [b"%d" % number for number in range(30_000)]


def test_lines_of_several_workers_start_with_their_rank():
    assert prefix_rank(b"one\ntwo\n", 0, 1) == b"one\ntwo\n"
    assert prefix_rank(b"one\ntwo", 1, 2) == b"[rank 1] one\n[rank 1] two\n"


async def test_group_moves_output_out_of_replies(tmp_path):
    options = PoolOptions(scratch=str(tmp_path), search_path="", is_local=True)
    group = WorkerGroup(5, ResourceRequest("torch", 2), options)
    pending = asyncio.ensure_future(group.ask([Advance()] * 2, 5))
    await asyncio.sleep(0)
    for rank in (1, 0):
        await group.exchange(rank, 1, Finished(ledger={}, printed=b"ab"[rank : rank + 1]))
    assert await pending == [Finished(ledger={})] * 2
    assert group.take_printed() == b"[rank 1] b\n[rank 0] a\n"
    output_path(tmp_path, 5, 0).write_bytes(b"last words")
    assert group.take_printed() == b""
    assert group.take_printed(is_lost=True) == b"[rank 0] last words\n"
