"""Ray Train's trainer without the parts that our worker groups do not use, which saves seconds.

Also whether an actor's process answers, and the meaning of Ray's messages for a lost one.
"""

from collections.abc import Iterable
from typing import Any

import ray


def has_lost_one(actors: Iterable[Any], *, timeout_s: float) -> bool:
    """Whether one of the actors has died, or does not answer for `timeout_s` seconds.

    Ray takes many seconds to notice that a node has gone. A busy Train worker answers at once,
    because it trains in a thread. Every actor has the method `__ray_ready__`, which Ray's
    documentation uses but does not promise; an actor without it does not count as lost.
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
"""Message for a part of Ray's error text, which is all that Ray Train passes on, often in a
paragraph of guesses. Other texts are shown as they are."""


TRAIN_SWITCHES = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # how soon a lost worker is noticed
    # A group starts only if there is room: if another job has taken it since, wait in the queue.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "20",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # a user's relative paths mean the same everywhere
    # All of these watch runs that report to Train; ours report to the pool.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_STATE_ACTOR_RECONCILIATION": "0",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
}
"""Environment of pool and workers; Ray ignores a variable that it does not know."""
UNUSED_CALLBACKS = ("DatasetsCallback", "PlacementGroupCleanerCallback")
"""Callbacks for Ray Data shards (our data is in memory), and for a placement group that outlives
its controller (ours ends with the pool)."""


def plain_trainer() -> Any:
    """Return the base class of TorchTrainer and TensorflowTrainer, which imports no framework.

    This is a developer API of Ray; the import path exists since Train V2.
    """
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    return DataParallelTrainer


def without_unused_callbacks(trainer: Any) -> Any:
    """Leave out the callbacks of Train that our worker groups do not use.

    Each starts an actor, which takes about two seconds of a core. If Ray's internals are not as
    expected, the trainer is returned unchanged.
    """
    create = getattr(trainer, "_create_default_callbacks", None)
    if create is not None:
        trainer._create_default_callbacks = lambda: [
            callback for callback in create() if type(callback).__name__ not in UNUSED_CALLBACKS
        ]
    return trainer


def controlled_here(trainer: Any) -> Any:
    """Run Train's controller in this process, in the thread that calls `fit`.

    By default the controller is a separate actor, which takes 3 s to start and to repeat the
    imports of the pool. Its autoscaling request starts another actor, which imports Ray Data (1.2
    s) and overwrites the pool's own request. If Ray's internals are not as expected, the trainer is
    returned unchanged.
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
    """End all workers that a trainer has started, whether they respond or not.

    Their processes end with their placement group, which returns their GPUs to Ray. Does nothing
    for a trainer whose controller runs elsewhere; its workers are killed by their handles.
    """
    for group in getattr(trainer, "raybench_groups", ()):
        group.end()
