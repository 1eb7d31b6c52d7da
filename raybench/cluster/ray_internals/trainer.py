"""Ray Train's trainer without what a worker group of ours does not use: seconds of its start;
and what Ray says of an actor's process: a sign of life, and its words for a lost one.
"""

from collections.abc import Iterable
from typing import Any

import ray


def has_lost_one(actors: Iterable[Any], *, timeout_s: float) -> bool:
    """Whether one of the actors has died, or gives no sign of life for `timeout_s`.

    Ray learns of a node that has gone after many seconds only; an actor that is at work answers
    at once, since a Train worker trains in a thread beside.

    Every actor answers `__ray_ready__`, which Ray uses in its own documentation but does not
    promise. Where an actor has no such method none is taken for lost.
    """
    answers = [getattr(actor, "__ray_ready__", None) for actor in actors]
    try:
        ray.get([answer.remote() for answer in answers if answer is not None], timeout=timeout_s)
    except ray.exceptions.RayError:
        return True
    return False


LOST = "a worker process has died: killed, out of memory or crashed"
OUT_OF_REACH = "a worker did not answer any more: its host, or the network to it, was lost"
NOT_STARTED = "the workers did not start in time: a host was lost, or its processors are taken"
MEANINGS = {
    "worker process has died": LOST,
    "worker group startup timed out": NOT_STARTED,
    "ActorUnavailableError": OUT_OF_REACH,
    "actor is temporarily unavailable": OUT_OF_REACH,
    "NodeDiedError": OUT_OF_REACH,
    "node was terminated unexpectedly": OUT_OF_REACH,
}
"""Meaning of a part of Ray's words for an error, of which Ray Train hands on the words alone, often
in a paragraph of guesses. Words that change are shown as they are."""


TRAIN_SWITCHES = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # how soon a lost worker is noticed
    # Admitted only where there is room: who has taken it since has to be waited for, not tried.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "20",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # a user's relative paths mean the same everywhere
    # What each of these starts looks at runs that report to Train; ours report to the pool.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_STATE_ACTOR_RECONCILIATION": "0",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
}
"""Environment of pool and workers; a Ray that does not know one of them does as by itself."""
UNUSED_CALLBACKS = ("DatasetsCallback", "PlacementGroupCleanerCallback")
"""Ray Data shards (our data is in memory), and a watchdog over the controller's placement group
(which ends with the pool)."""


def plain_trainer() -> Any:
    """Return the trainer below TorchTrainer and TensorflowTrainer, which imports no framework.

    Ray has it for developers, at this place since Train V2; elsewhere is the one before.
    """
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    return DataParallelTrainer


def without_unused_callbacks(trainer: Any) -> Any:
    """Leave out what Train starts and a worker group of ours does not use.

    Each of these callbacks starts an actor, about two seconds of a core. A Ray that builds
    its callbacks otherwise starts them as before.
    """
    create = getattr(trainer, "_create_default_callbacks", None)
    if create is not None:
        trainer._create_default_callbacks = lambda: [
            callback for callback in create() if type(callback).__name__ not in UNUSED_CALLBACKS
        ]
    return trainer


def controlled_here(trainer: Any) -> Any:
    """Run Train's controller in this process, in the thread that calls `fit`.

    An actor of its own takes three seconds to start and import what the pool has imported
    already, and lives no longer than the pool. It need not tell an autoscaler of the workers
    either, which starts an actor that imports Ray Data, 1.2 s before any worker starts, and sends
    requests that take the place of the pool's own (`cluster.scaling`). A Ray that starts its
    controller otherwise does as before.
    """
    try:
        from raybench.cluster.ray_internals.controller import is_as_expected, run_controller
    except ImportError:
        return trainer
    if hasattr(trainer, "_initialize_and_run_controller") and is_as_expected():
        trainer.raybench_groups = []
        trainer._initialize_and_run_controller = lambda **arguments: run_controller(
            arguments, trainer.raybench_groups
        )
    return trainer


def end_workers(trainer: Any) -> None:
    """End all workers that a trainer has started, whether they answer or not.

    Their processes end with their placement group, which gives their GPUs back to Ray. Nothing for
    a trainer whose controller runs elsewhere: those that answered are killed by their handles.
    """
    for group in getattr(trainer, "raybench_groups", ()):
        group.end()
