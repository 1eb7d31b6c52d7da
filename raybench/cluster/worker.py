"""The train function of a worker group: serves one run after another until told to close."""

import gc
import os
import socket
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from raybench.backends.base import Trainer, World
from raybench.backends.find import find_backend
from raybench.backends.run import evaluate_split, run
from raybench.cluster.messages import (
    Advance,
    Close,
    Command,
    Crashed,
    Finish,
    Finished,
    Progress,
    Ready,
    Reply,
    Start,
)
from raybench.core.clock import Ledger
from raybench.core.documents import validate
from raybench.core.record import Evaluation
from raybench.core.spec import RunSpec
from raybench.workloads.find import load_workload_dataset

OUT_OF_MEMORY = ("OutOfMemoryError", "ResourceExhaustedError", "MemoryError")


def serve(config: dict[str, Any]) -> None:
    """Ask the hub for commands and carry them out; runs on every rank of the group."""
    from raybench.cluster.devices import join_group

    hub, group = config["hub"], config["group"]
    if Path(config["scratch"]).is_dir():  # not on the other hosts of a cluster
        # TensorFlow writes a file per traced function and removes it when its process exits,
        # which this one does not: it is ended with the session, and so is this folder.
        tempfile.tempdir = config["scratch"]
    world = join_group(config["framework"], config["cpus_per_worker"], config["search_path"])
    reply: Reply = _introduce(world)
    session: _Run | None = None
    is_settled = False
    while True:
        command: Command = ray.get(hub.exchange.remote(group, world.rank, reply))
        if isinstance(command, Close):
            return
        try:
            if isinstance(command, Start):
                session = _Run(command, config["framework"], world)
            assert session is not None
            reply = session.obey(command)
            if isinstance(command, Finish) and not is_settled:
                # What is imported by now stays. Kept out of every later collection, the one
                # after each run takes milliseconds instead of a tenth of a second. Not before
                # the first run: much of a framework is imported when it is first used.
                gc.freeze()
                is_settled = True
        except Exception as error:  # noqa: BLE001 (user code may raise anything; it is reported)
            reply = _report(error)
            session = None
            gc.collect()


class _Run:
    """One run on this worker, from its first command to its last."""

    def __init__(self, command: Start, framework: str, world: World) -> None:
        self._ledger = Ledger("setup")
        pin(command.cores)
        self._world = world
        self._spec = validate(RunSpec, command.spec, "run spec")
        workload, self._dataset = load_workload_dataset(self._spec.workload, self._spec.dataset)
        build = find_backend(framework).Trainer
        self._trainer: Trainer = build(self._spec, workload, self._dataset, world)
        self._evaluations: Iterator[Evaluation] = run(
            self._spec, self._dataset, self._trainer, world, self._ledger
        )

    def obey(self, command: Command) -> Reply:
        if isinstance(command, Start | Advance):
            evaluation = next(self._evaluations)
            return Progress(
                evaluation=evaluation,
                num_parameters=self._trainer.num_parameters,
                batch_statistics=self._trainer.batch_statistics,
                num_classes=self._dataset.num_classes,
            )
        assert isinstance(command, Finish)
        return self._finish(command)

    def _finish(self, command: Finish) -> Finished:
        accuracy, weights = None, None
        if command.test:
            self._ledger.enter("eval")
            accuracy = evaluate_split(self._dataset, self._trainer, self._world, "test")
        if command.save:
            self._ledger.enter("checkpoint")
            weights = self._trainer.save() if self._world.rank == 0 else None
            self._world.gather([0.0])
        self._ledger.enter("report")
        ledger = self._ledger.snapshot() | {"input": self._trainer.input_seconds()}
        self._trainer.close()
        del self._trainer, self._evaluations
        gc.collect()
        return Finished(ledger=ledger, weights=weights, test_accuracy=accuracy)


def pin(cores: tuple[int, ...]) -> None:
    """Bind every thread of this process to `cores`; none given leaves it as it is."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        return
    for task in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(task.name), cores)
        except ProcessLookupError:
            continue  # the thread ended between the listing and the call


def _introduce(world: World) -> Ready:
    context = ray.get_runtime_context()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    return Ready(
        host=socket.gethostname(),
        node=context.get_node_id(),
        pid=os.getpid(),
        device=world.device,
        cores=tuple(sorted(cores)),
        actor=context.current_actor,
    )


def _report(error: Exception) -> Crashed:
    name = type(error).__name__
    is_memory = name in OUT_OF_MEMORY or "can't allocate memory" in str(error)
    lines = str(error).strip().splitlines()
    return Crashed(
        failure="oom" if is_memory else "error",
        message=f"{name}: {lines[0] if lines else ''}".rstrip(": "),
        traceback=traceback.format_exc(),
    )
