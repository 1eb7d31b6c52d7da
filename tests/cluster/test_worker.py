"""A worker: its folders, cores, GPUs and errors, and how it talks to the pool."""

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from raybench.cluster import states, worker, worker_group
from raybench.cluster import worker as module
from raybench.cluster.protocol import (
    Advance,
    Close,
    Command,
    Finished,
    Ready,
    Reply,
    RunFailed,
)
from raybench.cluster.states import (
    remove_stale_folders,
    scratch_folder,
    scratch_on_this_host,
)
from raybench.cluster.worker_group import PoolOptions, WorkerGroup
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import Placement
from tests.refusals import refused
from tests.training.fake_gpus import FakeNvml

OPTIONS = PoolOptions(scratch="", search_path="", is_local=True)
HOLDER = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from raybench.cluster.states import scratch_folder
with scratch_folder() as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(states, "_locks", {})


def test_what_a_killed_session_left_goes_when_the_next_one_starts(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    left = Path(holder.stdout.readline().strip())
    (left / "data").mkdir()
    with scratch_folder() as own:
        assert left.is_dir(), "its session lives"
        holder.kill()
        holder.wait()
        deadline = time.monotonic() + 120
        while left.exists():
            assert time.monotonic() < deadline
            remove_stale_folders()
        assert own.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "raybench-mine").mkdir()  # no file that says whether somebody uses it
    (tmp_path / "other").mkdir()
    with scratch_folder():
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"raybench-mine", "other"}


def test_a_worker_of_another_host_has_a_folder_of_its_own(tmp_path: Path) -> None:
    with scratch_folder() as own:
        assert scratch_on_this_host(str(own)) == own
    elsewhere = scratch_on_this_host("/not/on/this/host/raybench-abc")
    assert elsewhere == tmp_path / "raybench-abc"
    remove_stale_folders()
    assert elsewhere.is_dir(), "it is in use"
    assert scratch_on_this_host("/not/on/this/host/raybench-abc") == elsewhere
    states._locks.pop(elsewhere).close()
    remove_stale_folders()
    assert not elsewhere.exists()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_a_run_without_cores_of_its_own_is_free_of_the_last_one_s() -> None:
    every = os.sched_getaffinity(0)
    try:
        worker.pin((min(every),))
        assert os.sched_getaffinity(0) == {min(every)}
        worker.pin(())
        assert os.sched_getaffinity(0) == worker.ALL_CORES
    finally:
        os.sched_setaffinity(0, every)


@pytest.mark.parametrize(
    ("gpus", "cores"), [((), {0, 1, 2, 3}), ((1,), {2, 3}), ((9,), {0, 1, 2, 3})]
)
def test_a_worker_of_a_gpu_has_the_cores_next_to_it(
    gpus: tuple[int, ...], cores: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())  # type: ignore[arg-type]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(worker, "ALL_CORES", {0, 1, 2, 3})
    assert worker._own_cores(SimpleNamespace(gpus=gpus)) == cores  # type: ignore[arg-type]


@pytest.mark.parametrize(("gpus", "cores"), [(0, [(0,), (1,)]), (1, [(0, 1, 2, 3), (2, 3)])])
async def test_workers_of_gpus_share_cores_and_others_have_their_own(
    gpus: int, cores: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each used to be pinned to one core, however many there were."""
    monkeypatch.setattr(worker_group, "POLL_S", 0.0)
    group = WorkerGroup(0, Placement("torch", 2, gpus_per_worker=gpus), OPTIONS)
    for rank, own in enumerate([(0, 1, 2, 3), (2, 3) if gpus else (0, 1, 2, 3)]):
        await group.exchange(rank, 1, Ready(host="a", node="a", pid=1, device="", cores=own))
    assert group.choose_cores(set()) == cores


class AcceleratorError(RuntimeError):
    """torch's."""


class DistBackendError(RuntimeError):
    """torch's."""


LACKS = [
    MemoryError(),
    AcceleratorError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    DistBackendError("NCCL error\nLast error:\nCuda failure 2 'out of memory'"),
    RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
]
OTHERS = [
    AcceleratorError("CUDA error: device-side assert triggered"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
    ValueError("shapes do not fit"),
    UserError("a mistake", ErrorCode.CONFLICT),
]


@pytest.mark.parametrize("error", [*LACKS, *OTHERS])
def test_a_lack_of_memory_is_known_by_whoever_says_it(error: Exception) -> None:
    assert worker._report(error).failure == ("oom" if error in LACKS else "error")


FIRST, SECOND = Finished(ledger={"train": 1.0}), Finished(ledger={"train": 2.0})


async def test_a_turn_that_is_asked_twice_gets_the_same_and_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_group, "POLL_S", 0.01)
    group = WorkerGroup(0, Placement("torch", 1, 1, 0), OPTIONS)
    assert await group.exchange(0, 1, FIRST) is None, "there is no command yet"
    asking = asyncio.ensure_future(group.ask([Advance()], 5))
    await asyncio.sleep(0)
    assert await group.exchange(0, 1, None) == Advance()
    assert await group.exchange(0, 1, FIRST) == Advance(), "the answer was lost on its way"
    assert not asking.done(), "an old reply is not the answer to a new command"
    assert await group.exchange(0, 2, SECOND) is None
    assert await asking == [SECOND]


async def test_a_group_that_misses_its_start_is_killed_whoever_has_answered(
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
    group = WorkerGroup(0, Placement("torch", 2, 1, 1), OPTIONS)
    starting = asyncio.ensure_future(group.start())
    await asyncio.sleep(0)
    await group.exchange(0, 1, ready)
    with pytest.raises(RunFailed) as failed:
        await starting
    assert failed.value.failure == "worker_lost"
    assert not group.ended.is_set()
    await group.close(force=True)
    assert group.ended.is_set()
    assert killed == ["rank 0"]


def gathering(work: Callable[[list[float]], Any]) -> Any:
    """The place of a worker whose exchange does this."""
    return SimpleNamespace(num_workers=2, rank=1, device="cuda:0", through="nccl", gather=work)


def test_workers_whose_first_exchange_hangs_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXCHANGE_TIMEOUT_S", 0.05)
    with refused(ErrorCode.UNREACHABLE, "2 workers", "nccl", "rank 1"):
        module.try_exchange(gathering(lambda values: threading.Event().wait(60)))
    monkeypatch.setattr(module, "EXCHANGE_TIMEOUT_S", 60.0)
    sizes: list[int] = []
    module.try_exchange(gathering(lambda values: sizes.append(8 * len(values))))
    assert sizes == [4096]

    fault = RuntimeError("NCCL error: unhandled system error")

    def broken(values: list[float]) -> None:
        raise fault

    with pytest.raises(RuntimeError) as failure:
        module.try_exchange(gathering(broken))
    assert failure.value is fault
    module.try_exchange(SimpleNamespace(num_workers=1))  # type: ignore[arg-type]


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

    monkeypatch.setattr(states.ray, "get", get)  # type: ignore[attr-defined]
    monkeypatch.setattr(states, "ASK_AGAIN_S", 0.0)
    pool = Pool(ray.exceptions.GetTimeoutError, None, None, Close())
    assert worker.next_command(pool, 0, 0, 7, FIRST) == Close()
    assert pool.heard == [(7, FIRST), (7, FIRST), (7, None), (7, None)]
