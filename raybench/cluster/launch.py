"""From a group's shape to the Ray trainer that runs it."""

from typing import Any

from raybench.cluster.admission import Shape
from raybench.cluster.worker import serve

NOMINAL_CPU = 0.001
"""Reserved per worker where the hub itself shares out one node's cores."""


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
    if shape.framework == "torch":
        from ray.train.torch import TorchTrainer

        return TorchTrainer(serve, **arguments)
    from ray.train.tensorflow import TensorflowTrainer

    return TensorflowTrainer(serve, **arguments)
