"""From a group's shape to the Ray trainer that runs it."""

import asyncio
from pathlib import Path
from typing import Any

from raybench.cluster.admission import Shape
from raybench.cluster.worker import serve

NOMINAL_CPU = 0.001
"""Reserved per worker where the hub itself shares out one node's cores."""
UNUSED_CALLBACKS = ("DatasetsCallback", "PlacementGroupCleanerCallback")
"""Ray Data shards (our data is in memory), and a watchdog over the controller's placement group
(which ends with the hub, its owner's owner)."""


def build_trainer(number: int, shape: Shape, options: dict[str, Any]) -> Any:
    """Return a TorchTrainer or TensorflowTrainer whose workers serve the hub in `options`."""
    import ray.train

    resources: dict[str, float] = {
        "CPU": shape.cpus_per_worker if options["reserve_cpus"] else NOMINAL_CPU
    }
    if shape.gpus_per_worker:
        resources["GPU"] = shape.gpus_per_worker
    config = {
        "hub": options["hub"],
        "group": number,
        "framework": shape.framework,
        "cpus_per_worker": shape.cpus_per_worker,
        "search_path": options["search_path"],
        "scratch": options["scratch"],
    }
    arguments = {
        "train_loop_config": config,
        "scaling_config": ray.train.ScalingConfig(
            num_workers=shape.num_workers,
            use_gpu=shape.gpus_per_worker > 0,
            resources_per_worker=resources,
        ),
        "run_config": ray.train.RunConfig(
            name=f"group-{number}",
            storage_path=options["scratch"],
            failure_config=ray.train.FailureConfig(max_failures=0),
        ),
    }
    if options["is_local"] and shape.framework == "torch":
        arguments |= _meeting_in_a_file(number, options["scratch"])
    trainer = lean(trainer_class(shape.framework)(serve, **arguments))
    return controlled_here(trainer, autoscales=not options["is_local"])


def _meeting_in_a_file(number: int, folder: str) -> dict[str, Any]:
    """Return the argument that keeps torch's store off the network; nothing for another Ray."""
    try:
        from raybench.cluster.local_torch import LocalTorchConfig
    except ImportError:
        return {}
    config = LocalTorchConfig()
    config.meeting_file = str(Path(folder) / f"group-{number}.store")
    return {"torch_config": config}


def trainer_class(framework: str) -> Any:
    """Import TorchTrainer or TensorflowTrainer; takes seconds the first time."""
    if framework == "torch":
        from ray.train.torch import TorchTrainer

        return TorchTrainer
    from ray.train.tensorflow import TensorflowTrainer

    return TensorflowTrainer


def lean(trainer: Any) -> Any:
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


def controlled_here(trainer: Any, *, autoscales: bool) -> Any:
    """Run Train's controller in this process, in the thread that calls `fit`.

    An actor of its own takes three seconds to start and import what the hub has imported
    already, and lives no longer than the hub. On a local Ray (`autoscales` false) it need not
    tell an autoscaler of the workers either, which starts an actor that imports Ray Data, 1.2 s
    before any worker starts. A Ray that starts its controller otherwise does as before.
    """
    try:
        from ray.train.v2._internal.execution.controller import TrainController

        from raybench.cluster.fixed_place import FixedPlace
    except ImportError:
        return trainer
    if not hasattr(trainer, "_initialize_and_run_controller"):
        return trainer

    def run(**arguments: Any) -> Any:
        if not autoscales:
            arguments["scaling_policy"] = FixedPlace(trainer.scaling_config)
        controller = TrainController(**arguments)
        asyncio.run(controller.run())
        return controller.get_result()

    trainer._initialize_and_run_controller = run
    return trainer
