"""The train function of a worker group: executes commands of the pool and trains run after run."""

import gc
import io
import itertools
import math
import os
import queue
import re
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray

from raybench.cluster import protocol
from raybench.cluster.protocol import Command, Crashed, Finish, Reply, Start
from raybench.cluster.ray_internals.rendezvous import UNREACHED
from raybench.cluster.session_files import (
    DATA,
    Capture,
    ask_pool,
    fetch_state,
    output_path,
    scratch_on_this_host,
    send_state,
)
from raybench.models.base import OwnLoop
from raybench.models.find import load_workload_dataset
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import ResourceRequest
from raybench.spec.text import redact_text
from raybench.stats.clock import AWAY, Ledger
from raybench.stats.record import Evaluation, Failure
from raybench.training.adapter import signal_handlers_ignored
from raybench.training.base import BaseTrainer, DistributedContext, find_backend
from raybench.training.command import run_command
from raybench.training.machine import cores_near, give_back
from raybench.training.model_check import check_start
from raybench.training.own import OwnTrainer, PlainWorld
from raybench.training.ranks import Position
from raybench.training.run import evaluate_test_split, run
from raybench.training.saved import Checkpoints

EXCHANGE_VALUES, EXCHANGE_TIMEOUT_S = 512, 60.0
"""Number of 8-byte values that the workers of a new group exchange as a test, and the timeout of
this exchange in seconds."""
COMPARE_TIMEOUT_S = 5.0
"""Seconds that `_compare` waits for the pool's answer."""
OUT_OF_MEMORY = re.compile(
    # Exceptions of torch, Python and TensorFlow.
    "OutOfMemoryError|MemoryError|ResourceExhaustedError"
    # Messages of torch and TensorFlow.
    "|can't allocate memory|OOM when allocating"
    # Messages of CUDA, in torch's AcceleratorError, in TensorFlow's InternalError, or quoted by
    # NCCL.
    "|[Oo]ut of memory|OUT_OF_MEMORY"
    # Messages of cuBLAS, of cuDNN up to version 8, and of cuDNN since version 9. A handle of cuBLAS
    # cannot be created if everything else has already taken the memory.
    "|STATUS_ALLOC_FAILED|ALLOCATION_FAILED|CUBLAS_STATUS_NOT_INITIALIZED when calling"
)
"""Pattern that matches the types and messages of out-of-memory errors."""


def serve(config: dict[str, Any]) -> None:
    """Execute commands from the pool until the command `Close`; runs on every rank of the group.

    `config` is made by `worker_group.build_trainer`.
    """
    with signal_handlers_ignored():
        _serve(config)


def _serve(config: dict[str, Any]) -> None:
    """Execute commands as described in `serve`, with the signal handlers of user code ignored."""
    pool, group = config["pool"], config["group"]
    # TensorFlow writes a temporary file per traced function and removes it when the process exits
    # normally. This process is killed at the end of the session, so the file must be in the
    # session's folder, which is removed.
    scratch = scratch_on_this_host(config["scratch"])
    tempfile.tempdir = str(scratch)
    try:
        world = join_group(config["request"], config["search_path"])
        try_exchange(world)
    except UserError as error:  # new workers would fail in the same way
        rank = ray.train.get_context().get_world_rank()
        next_command(pool, group, rank, 1, _report(error))
        return
    reply: Reply = _ready_reply(world)
    output = Capture(output_path(scratch, group, world.rank))
    running: _Run | None = None
    has_frozen = False
    for turn in itertools.count(1):
        command = next_command(pool, group, world.rank, turn, reply)
        if isinstance(command, protocol.Close):
            return
        received_at = time.perf_counter()
        try:
            if isinstance(command, protocol.Measure):
                reply = _measure(command, world)
                continue
            if isinstance(command, Start):
                output.begin()
                running = _Run(command, world, scratch / DATA, pool, group)
            assert running is not None
            answer = running.execute(command)
            busy_s = time.perf_counter() - received_at
            reply = replace(answer, busy_s=busy_s, printed=output.take())
            if isinstance(command, Finish):
                output.end()
            if isinstance(command, Finish) and not has_frozen:
                # Exclude the imported modules from garbage collection, which then takes
                # milliseconds after each run instead of a tenth of a second. This is done after the
                # first run, because much of a framework is imported only when it is used.
                gc.freeze()
                has_frozen = True
        except Exception as error:  # noqa: BLE001 (user code may raise anything; it is reported)
            reply = replace(_report(error), printed=output.take())
            output.end()
            running = None
            gc.collect()
            give_back()


def next_command(pool: Any, group: int, rank: int, turn: int, reply: Reply) -> Command:
    """Send a reply to the pool and return the next command.

    Args:
        pool: Handle of the `WorkerPool`.
        group: Number of the worker group.
        rank: Rank of this worker.
        turn: Number of the reply, counted from 1.
        reply: The reply to the previous command.
    """
    command: Command | None = ask_pool(lambda: pool.exchange.remote(group, rank, turn, reply))
    while command is None:  # the pool already has the reply, but no new command yet
        command = ask_pool(lambda: pool.exchange.remote(group, rank, turn, None))
    return command


def _compare(pool: Any, group: int, position: Position) -> str | None:
    """Send this rank's position in the user's training loop to the pool.

    Returns:
        A sentence if some ranks can never synchronize again. None otherwise, or if the pool does
        not answer in time; the caller asks again later.
    """
    try:
        reference = pool.compare.remote(group, position)
        sentence: str | None = ray.get(reference, timeout=COMPARE_TIMEOUT_S)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError):
        return None
    return sentence


_noted: set[str] = set()
"""Remarks for the user that this process has already sent to the driver."""


class _Run:
    """One run on this worker, from the command `Start` to `Finish`."""

    def __init__(
        self, command: Start, world: DistributedContext, data: Path, pool: Any, group: int
    ) -> None:
        resume = command.resume.state if command.resume else None
        self._ledger = Ledger("setup", earlier=resume.ledger if resume else None)
        pin(command.cores)
        self._world, self._pool, self._group = world, pool, group
        spec = command.spec
        workload, self._dataset = load_workload_dataset(
            spec.workload, spec.dataset, spec.model, spec.data, shared=data
        )
        self._warnings = check_start(spec, workload, self._dataset, world)
        self._trainer: BaseTrainer | OwnTrainer
        if isinstance(workload, OwnLoop):
            loop = workload.function or run_command
            self._trainer = OwnTrainer(
                spec,
                loop,
                world,
                self._ledger,
                resume=resume,
                compare=partial(_compare, pool, group),
            )
        else:
            build = find_backend(spec.framework).Trainer
            self._trainer = build(spec, workload, self._dataset, world)
        if command.resume:
            self._trainer.restore(fetch_state(pool, command.resume.weights))
        self._checkpoints = Checkpoints(spec, world, resume=resume)
        self._evaluations: Iterator[Evaluation] = (
            self._trainer.evaluations()
            if isinstance(self._trainer, OwnTrainer)
            else run(spec, self._dataset, self._trainer, world, self._ledger, resume=resume)
        )

    def execute(self, command: Command) -> protocol.WorkerAnswer:
        """Train to the next evaluation, or end the run if the command is `Finish`."""
        if not isinstance(command, Start):
            self._ledger.enter("report")
        if isinstance(command, Finish):
            return self._finish(command)
        evaluation = next(self._evaluations)
        taken = self._checkpoints.after(evaluation, self._trainer.state, self._ledger)
        sent_bytes = None if taken is None else self._send(taken.weights)
        self._ledger.enter(AWAY)
        return protocol.Progress(
            evaluation=evaluation,
            num_parameters=self._trainer.num_parameters,
            batch_statistics=self._trainer.batch_statistics,
            num_classes=self._dataset.num_classes,
            sent_bytes=sent_bytes,
            state=None if taken is None else taken.state,
        )

    def _send(self, state: bytes) -> int:
        """Send a run state to the pool and return its size in bytes."""
        return send_state(self._pool, self._group, io.BytesIO(state))

    def _finish(self, command: Finish) -> protocol.Finished:
        """End the run: test and save as the command asks, then release the run's memory."""
        test_value = sent_bytes = None
        if isinstance(self._trainer, OwnTrainer):
            test_value = self._trainer.finish()
        elif command.test and len(self._dataset.test):
            self._ledger.enter("eval")
            test_value = evaluate_test_split(self._dataset, self._trainer, self._world)
        if command.save:
            self._ledger.enter("checkpoint")
            if self._world.rank == 0:
                sent_bytes = self._send(self._trainer.save())
            self._world.gather([0.0])
        self._ledger.enter("setup")
        input_s = self._trainer.input_seconds()
        notes = [note for note in (*self._warnings, *self._trainer.notes) if note not in _noted]
        _noted.update(notes)
        self._trainer.close()
        del self._trainer, self._evaluations
        gc.collect()
        give_back()
        self._ledger.enter(AWAY)
        ledger = self._ledger.snapshot() | {"input": input_s}
        return protocol.Finished(
            ledger=ledger,
            sent_bytes=sent_bytes,
            test_value=test_value,
            notes=tuple(notes),
        )


def join_group(request: ResourceRequest, search_path: str) -> DistributedContext:
    """Join the worker group from inside a Ray Train worker.

    Args:
        request: Framework, number and resources of the workers.
        search_path: Folder of the user's modules; added to `sys.path`.

    Returns:
        The group as seen by this worker: rank, device, and collectives with the other workers.
    """
    import ray.train

    framework, gpus = request.framework, request.gpus_per_worker
    if not gpus:  # Ray does not set this variable, so a CPU worker would see all GPUs of its node
        os.environ["CUDA_VISIBLE_DEVICES"] = ""

    if search_path not in sys.path:
        sys.path.insert(0, search_path)
    context = ray.train.get_context()
    device = "cpu"
    if framework == "torch":
        import ray.train.torch

        device = str(ray.train.torch.get_device())
    os.environ["OMP_NUM_THREADS"] = str(request.cpus_per_worker)
    if framework == "python":
        return PlainWorld("gpu" if gpus else "cpu")
    return find_backend(framework).join(
        rank=context.get_world_rank(),
        num_workers=context.get_world_size(),
        device=device,
        num_threads=request.cpus_per_worker,
        num_replicas=request.replicas_per_process,
        num_gpus=math.ceil(gpus),
    )


def try_exchange(world: DistributedContext) -> None:
    """Exchange 4 KB with the other workers; raise UserError after EXCHANGE_TIMEOUT_S.

    The first exchange sets up the connections (NCCL, Gloo). If it hangs, every run would hang too,
    and the framework's own timeout is half an hour or more.
    """
    if world.num_workers == 1:
        return
    done: queue.Queue[Exception | None] = queue.Queue()

    def exchange() -> None:
        error = None
        try:
            world.gather([0.0] * EXCHANGE_VALUES)
        except Exception as raised:  # noqa: BLE001 (raised below, whatever it is)
            error = raised
        done.put(error)

    # A daemon thread, because the call cannot be interrupted.
    threading.Thread(target=exchange, name="first-exchange", daemon=True).start()
    try:
        error = done.get(timeout=EXCHANGE_TIMEOUT_S)
    except queue.Empty:
        raise UserError(
            f"{UNREACHED}the first exchange between {world.num_workers} workers (4 KB through "
            f"{world.through}) did not finish within {EXCHANGE_TIMEOUT_S:.0f} s on rank "
            f"{world.rank} ({socket.gethostname()}, {world.device}); run raybench doctor and check "
            "the network, the links between GPUs and /dev/shm of the hosts (NCCL_DEBUG=INFO prints "
            "details).",
            ErrorCode.UNREACHABLE,
        ) from None
    if error is not None:
        raise error


ALL_CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
"""Cores that this process may use before any run is pinned."""


def pin(cores: tuple[int, ...]) -> None:
    """Pin every thread of this process to `cores`; if `cores` is empty, allow all cores."""
    if not hasattr(os, "sched_setaffinity"):
        return
    for task in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(task.name), cores or ALL_CORES)
        except ProcessLookupError:
            continue  # the thread ended between the listing and the call


def _measure(command: protocol.Measure, world: DistributedContext) -> protocol.MeasuredSums:
    """Measure all-reduces for `raybench doctor`."""
    seconds = {size: world.time_all_reduce(size, command.rounds) for size in command.sizes}
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    return protocol.MeasuredSums(seconds=seconds, through=world.through, interface=interface)


def _own_cores(world: DistributedContext) -> set[int]:
    """Return the CPU cores that this worker may use: those near its GPUs if known, otherwise all
    cores of the process."""
    near = {core for index in world.gpus for core in cores_near(index)}
    return ALL_CORES & near or ALL_CORES


def _ready_reply(world: DistributedContext) -> protocol.Ready:
    """Return the first message of this worker to the pool."""
    context = ray.get_runtime_context()
    return protocol.Ready(
        host=socket.gethostname(),
        node=context.get_node_id(),
        pid=os.getpid(),
        device=world.device,
        cores=tuple(sorted(_own_cores(world))),
        actor=context.current_actor,
    )


def _report(error: Exception) -> Crashed:
    """Return the message to the pool about an error in a run or in the start of the group."""
    name = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    is_memory = OUT_OF_MEMORY.search(f"{name}{error}") is not None
    code = error.code if isinstance(error, UserError) and not is_memory else None
    lines = str(error).strip().splitlines()
    return Crashed(
        failure=Failure.OOM if is_memory else Failure.ERROR,
        mistake=code if code in protocol.START_MISTAKES else None,
        # Redacted here, because only this process knows the secrets of its environment.
        message=redact_text(f"{name}{lines[0] if lines else ''}".rstrip(": "), os.environ),
        traceback=redact_text(traceback.format_exc(), os.environ),
    )
