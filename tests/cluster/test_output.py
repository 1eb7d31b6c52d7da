"""Captured output of workers: also from C code and child processes, bounded, with the rank."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from raybench.cluster import output
from raybench.cluster.output import CUT, Capture, keep_end, output_path, prefix_rank, unsent_output
from raybench.cluster.protocol import Advance, Finished
from raybench.cluster.worker_group import PoolOptions, WorkerGroup
from raybench.spec.run import ResourceRequest


def test_end_of_long_output_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "KEPT_BYTES", 10)
    capture = Capture(output_path(tmp_path, 0, 0))
    capture.begin()
    os.write(1, b"all of it.")
    assert capture.take() == b"all of it."
    os.write(1, 1000 * b"." + b"last words")
    taken = capture.take()
    capture.end()
    assert taken == CUT + b"last words"
    assert keep_end(taken + b"!") == CUT + b"ast words!"


def test_output_of_python_c_code_and_children_is_captured(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert capture.take() == b"", "the next run starts without output"
    capture.end()


def test_output_written_during_take_is_complete(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capture = Capture(output_path(tmp_path, 1, 0))
    capture.begin()
    code = "for number in range(30_000): print(number, flush=True)"
    child, output_bytes = subprocess.Popen([sys.executable, "-c", code]), b""
    while child.poll() is None:
        output_bytes += capture.take()
    output_bytes += capture.take()
    capture.end()
    assert output_bytes.split() == [b"%d" % number for number in range(30_000)]


def test_stdout_replaced_by_none_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = Capture(output_path(tmp_path, 2, 0))
    capture.begin()
    monkeypatch.setattr(sys, "stdout", None)
    assert capture.take() == b""
    capture.end()


def test_lines_of_several_workers_start_with_their_rank() -> None:
    assert prefix_rank(b"one\ntwo\n", 0, 1) == b"one\ntwo\n"
    assert prefix_rank(b"one\ntwo", 1, 2) == b"[rank 1] one\n[rank 1] two\n"
    assert prefix_rank(b"", 1, 2) == b""


async def test_group_moves_output_out_of_replies(tmp_path: Path) -> None:
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
