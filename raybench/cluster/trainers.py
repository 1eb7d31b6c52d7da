"""From a group's placement to the Ray trainer that runs it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybench.cluster.layout import Node, Reservation
from raybench.cluster.ray_internals.trainer import (
    controlled_here,
    meeting_in_a_file,
    meeting_over_network,
    without_unused_callbacks,
)
from raybench.cluster.worker import serve
from raybench.core.placement import Placement

NODE_ID = "ray.io/node-id"
"""The label by which Ray knows every node, and puts a worker there."""
STRATEGIES = {"pack": "PACK", "spread": "SPREAD"}
"""Ours, and Ray's."""
NOMINAL_CPU = 0.001
"""Reserved per worker where the pool itself shares out one node's cores."""


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """What all worker groups of a session have in common."""

    scratch: str
    """The session's folder on the driver's host."""
    search_path: str
    """Folder in which a user's own `module:Class` lies."""
    nodes: tuple[Node, ...]
    """What there is, in the order of the admission's, gone ones too."""
    is_local: bool
    """Whether it is a Ray of our own, which has one node and does not grow."""
    scales: bool = False
    """Whether the cluster has an autoscaler."""
    driver: Reservation | None = None
    """What the driver holds of a node."""
    interface: str | None = None
    """The network interface that the user named, for all hosts; none derives each one's."""
    pool: Any = None
    """The pool's own handle, which the workers need; known once it runs."""

    @property
    def reserves_cpus(self) -> bool:
        """Whether Ray has to keep a worker's cores: others, and nodes that join, take them else."""
        return not self.is_local


def build_trainer(
    number: int, placement: Placement, options: PoolOptions, nodes: Sequence[int] = ()
) -> Any:
    """Return a TorchTrainer or TensorflowTrainer whose workers serve the pool.

    `nodes`: the node of every worker, by its position in `options.nodes`; none lets Ray choose.
    """
    import ray.train

    resources: dict[str, float] = {
        "CPU": placement.cpus_per_worker if options.reserves_cpus else NOMINAL_CPU
    }
    if placement.gpus_per_worker:
        resources["GPU"] = placement.gpus_per_worker
    config = {
        "pool": options.pool,
        "group": number,
        "framework": placement.framework,
        "cpus_per_worker": placement.cpus_per_worker,
        "gpus_per_worker": placement.gpus_per_worker,
        "num_replicas": placement.replicas_per_process,
        "search_path": options.search_path,
        "scratch": options.scratch,
    }
    arguments = {
        "train_loop_config": config,
        "scaling_config": ray.train.ScalingConfig(
            num_workers=placement.num_workers,
            use_gpu=placement.gpus_per_worker > 0,
            resources_per_worker=resources,
            placement_strategy=STRATEGIES[placement.strategy],
            accelerator_type=placement.accelerator_type,
            label_selector=selectors(options, nodes),
        ),
        "run_config": ray.train.RunConfig(
            name=f"group-{number}",
            storage_path=options.scratch,
            # The pool starts a group again by itself, and says why: Ray would without end.
            failure_config=ray.train.FailureConfig(max_failures=0, controller_failure_limit=0),
        ),
    }
    if options.is_local and placement.framework == "torch":
        arguments |= meeting_in_a_file(str(Path(options.scratch) / f"group-{number}.store"))
    if not options.is_local:
        arguments |= meeting_over_network(placement.framework, options.interface)
    trainer = trainer_class(placement.framework)(serve, **arguments)
    return controlled_here(without_unused_callbacks(trainer))


def selectors(options: PoolOptions, nodes: Sequence[int]) -> list[dict[str, str]] | None:
    """Return what binds each worker to the node that the admission chose for it; None on a Ray
    of our own, or where a node has no id."""
    ids = [options.nodes[node].id for node in nodes]
    if options.is_local or not ids or not all(ids):
        return None
    return [{NODE_ID: one} for one in ids]


def trainer_class(framework: str) -> Any:
    """Import TorchTrainer or TensorflowTrainer; takes seconds the first time."""
    if framework == "torch":
        from ray.train.torch import TorchTrainer

        return TorchTrainer
    from ray.train.tensorflow import TensorflowTrainer

    return TensorflowTrainer
