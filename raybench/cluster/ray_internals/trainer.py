"""Ray Train's trainer without parts that raybench does not use, which saves seconds per start.

This module also checks whether actors respond, and shortens Ray's messages about lost processes.
"""

from collections.abc import Iterable
from typing import Any

import ray


def has_lost_one(actors: Iterable[Any], *, timeout_s: float) -> bool:
    """Whether any of the actors has died or does not answer within `timeout_s` seconds.

    Ray itself takes many seconds to notice that a node is gone. A busy worker of Ray Train answers
    at once, because it trains in a separate thread. Every actor has the method `__ray_ready__`,
    which Ray's documentation uses but does not guarantee; an actor without it does not count as
    lost.
    """
    methods = [getattr(actor, "__ray_ready__", None) for actor in actors]
    try:
        ray.get([method.remote() for method in methods if method is not None], timeout=timeout_s)
    except ray.exceptions.RayError:
        return True
    return False


LOST = "a worker process has died: killed, out of memory or crashed"
OUT_OF_REACH = "a worker no longer answers: its host or the network to it was lost"
NOT_STARTED = "the workers did not start in time: a host was lost, or its CPUs are in use"
MEANINGS = {
    "worker process has died": LOST,
    "worker group startup timed out": NOT_STARTED,
    "ActorUnavailableError": OUT_OF_REACH,
    "actor is temporarily unavailable": OUT_OF_REACH,
    "NodeDiedError": OUT_OF_REACH,
    "node was terminated unexpectedly": OUT_OF_REACH,
}
"""Messages that replace Ray's, by a substring of Ray's message. Ray Train passes on nothing but a
message, which often contains a paragraph of guesses. Messages without such a substring are shown
unchanged."""


TRAIN_SWITCHES = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # how soon a lost worker is noticed
    # A group is started only if resources are free for it. If another job has taken them in the
    # meantime, give up soon, and wait in raybench's queue.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "20",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # keep the working directory, for the user's relative paths
    # The following parts of Ray Train observe runs that report to Ray Train. Runs of raybench
    # report to the pool.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_STATE_ACTOR_RECONCILIATION": "0",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
}
"""Environment variables of the pool and the workers; Ray ignores variables that it does not know.
"""
UNUSED_CALLBACKS = ("DatasetsCallback", "PlacementGroupCleanerCallback")
"""Callbacks of Ray Train that are not needed: for shards of Ray Data, which raybench does not use,
and for placement groups that outlive their controller, whereas raybench's end with the pool."""


def without_unused_callbacks(trainer: Any) -> Any:
    """Remove callbacks that raybench does not use from a trainer, and return the trainer.

    Each callback would start an actor, which takes about two seconds of CPU time. If Ray's
    internals are not as expected, the trainer is returned unchanged.
    """
    create = getattr(trainer, "_create_default_callbacks", None)
    if create is not None:
        trainer._create_default_callbacks = lambda: [
            callback for callback in create() if type(callback).__name__ not in UNUSED_CALLBACKS
        ]
    return trainer


def with_controller_in_process(trainer: Any) -> Any:
    """Make a trainer run Ray Train's controller in the thread that calls `fit`; return the trainer.

    By default, the controller is a separate actor, which takes 3 s to start and to repeat the
    pool's imports. Its request to the autoscaler starts another actor, which imports Ray Data
    (1.2 s) and overwrites the pool's request. If Ray's internals are not as expected, the trainer
    is returned unchanged.
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

    Removing the placement group of the workers ends their processes and releases their GPUs in Ray.
    Does nothing if the controller runs in a separate actor; the caller must then kill the workers'
    actors.
    """
    for group in getattr(trainer, "raybench_groups", ()):
        group.end()
