"""Worker: its cores, GPUs, errors, and its exchange of commands with the pool."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import ray.train

from raybench.cluster import session_files, worker, worker_group
from raybench.cluster.protocol import Advance, Close, Finished, Ready, RunFailed
from raybench.cluster.worker_group import PoolOptions, WorkerGroup
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import ResourceRequest
from tests.refusals import refused
from tests.training.fake_gpus import FakeNvml

OPTIONS = PoolOptions(scratch="", search_path="", is_local=True)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_pinning_to_no_cores_restores_all_cores():
    all_cores = os.sched_getaffinity(0)
    try:
        worker.pin((min(all_cores),))
        assert os.sched_getaffinity(0) == {min(all_cores)}
        worker.pin(())
        assert os.sched_getaffinity(0) == worker.ALL_CORES
    finally:
        os.sched_setaffinity(0, all_cores)


@pytest.mark.parametrize(
    ("gpus", "cores"), [((), {0, 1, 2, 3}), ((1,), {2, 3}), ((9,), {0, 1, 2, 3})]
)
def test_worker_with_gpu_uses_the_cores_near_it(gpus, cores, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(worker, "ALL_CORES", {0, 1, 2, 3})
    assert worker._own_cores(SimpleNamespace(gpus=gpus)) == cores


@pytest.mark.parametrize(("gpus", "visible"), [(0, ""), (1, "0,1")])
def test_worker_without_gpus_sees_none_of_its_node(gpus, visible, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")  # unset by Ray, a worker would see all
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(ray.train, "get_context", lambda: None)
    worker.join_group(ResourceRequest("python", 1, gpus_per_worker=gpus), sys.path[0])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


@pytest.mark.parametrize(("gpus", "cores"), [(0, [(0,), (1,)]), (1, [(0, 1, 2, 3), (2, 3)])])
async def test_workers_with_gpus_share_cores_and_others_are_pinned(gpus, cores, monkeypatch):
    """Regression test: workers with GPUs were pinned to a single core."""
    monkeypatch.setattr(worker_group, "POLL_S", 0.0)
    group = WorkerGroup(0, ResourceRequest("torch", 2, gpus_per_worker=gpus), OPTIONS)
    for rank, available in enumerate([(0, 1, 2, 3), (2, 3) if gpus else (0, 1, 2, 3)]):
        await group.exchange(rank, 1, Ready(host="a", node="a", pid=1, device="", cores=available))
    assert group.choose_cores(set()) == cores


OUT_OF_MEMORY = [
    MemoryError(),
    RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("NCCL error\nLast error:\nCuda failure 2 'out of memory'"),
    RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
]
OTHER_ERRORS = [
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
    ValueError("shapes do not fit"),
    UserError("a mistake", ErrorCode.CONFLICT),
]


@pytest.mark.parametrize("error", [*OUT_OF_MEMORY, *OTHER_ERRORS])
def test_out_of_memory_errors_of_all_libraries_are_recognized(error):
    assert worker._report(error).failure == ("oom" if error in OUT_OF_MEMORY else "error")


FIRST, SECOND = Finished(ledger={"train": 1.0}), Finished(ledger={"train": 2.0})


async def test_repeated_turn_gets_the_same_command_and_counts_once(monkeypatch):
    monkeypatch.setattr(worker_group, "POLL_S", 0.01)
    group = WorkerGroup(0, ResourceRequest("torch", 1, 0), OPTIONS)
    assert await group.exchange(0, 1, FIRST) is None, "there is no command yet"
    pending = asyncio.ensure_future(group.ask([Advance()], 5))
    await asyncio.sleep(0)
    assert await group.exchange(0, 1, None) == Advance()
    assert await group.exchange(0, 1, FIRST) == Advance(), "repeated because the answer was lost"
    assert not pending.done(), "an old reply is not the answer to a new command"
    assert await group.exchange(0, 2, SECOND) is None
    assert await pending == [SECOND]


async def test_group_that_misses_its_start_is_killed_entirely(monkeypatch):
    """One of two ranks is ready, the other hangs: both are killed."""
    killed: list[object] = []
    is_ended = threading.Event()
    groups = [SimpleNamespace(end=is_ended.set)]
    trainer = SimpleNamespace(fit=is_ended.wait, raybench_groups=groups)
    monkeypatch.setattr(worker_group, "build_trainer", lambda *arguments: trainer)
    monkeypatch.setattr(worker_group, "START_TIMEOUT_S", 0.05)
    monkeypatch.setattr(worker_group, "POLL_S", 0.01)
    monkeypatch.setattr(ray, "kill", lambda actor, no_restart: killed.append(actor))
    ready = Ready(host="a", node="n", pid=1, device="cuda:0", cores=(), actor="rank 0")
    group = WorkerGroup(0, ResourceRequest("torch", 2, 1), OPTIONS)
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


def context_with_gather(work: Callable[[list[float]], Any]) -> Any:
    """Return the context of rank 1 of 2 whose `gather` is `work`."""
    return SimpleNamespace(num_workers=2, rank=1, device="cuda:0", through="nccl", gather=work)


def test_hanging_first_exchange_is_refused(monkeypatch):
    monkeypatch.setattr(worker, "EXCHANGE_TIMEOUT_S", 0.05)
    with refused(ErrorCode.UNREACHABLE, "2 workers", "nccl", "rank 1"):
        worker.try_exchange(context_with_gather(lambda values: threading.Event().wait(60)))
    monkeypatch.setattr(worker, "EXCHANGE_TIMEOUT_S", 60.0)
    gather = Mock()
    worker.try_exchange(context_with_gather(gather))
    gather.assert_called_once_with([0.0] * (4096 // 8))
    fault = RuntimeError("NCCL error: unhandled system error")
    with pytest.raises(RuntimeError) as failure:
        worker.try_exchange(context_with_gather(Mock(side_effect=fault)))
    assert failure.value is fault
    worker.try_exchange(SimpleNamespace(num_workers=1))


def test_worker_repeats_its_reply_until_it_has_an_answer(monkeypatch):
    answers = [ray.exceptions.GetTimeoutError("lost"), None, None, Close()]
    monkeypatch.setattr(session_files.ray, "get", Mock(side_effect=answers))
    monkeypatch.setattr(session_files, "ASK_AGAIN_S", 0.0)
    pool = Mock()
    assert worker.next_command(pool, 0, 0, 7, FIRST) == Close()
    sent = [each.args[2:] for each in pool.exchange.remote.call_args_list]
    assert sent == [(7, FIRST), (7, FIRST), (7, None), (7, None)]
