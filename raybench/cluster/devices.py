"""A worker's place in its group, from Ray Train's context to a backend's World."""

import os
import sys

from raybench.backends.base import World
from raybench.backends.find import find_backend


def join_group(framework: str, cpus_per_worker: int, search_path: str) -> World:
    """Return this worker's World; called inside a Ray Train worker."""
    import ray.train

    if search_path not in sys.path:
        sys.path.insert(0, search_path)  # where a user's own `module:Class` lies
    context = ray.train.get_context()
    rank, num_workers = context.get_world_rank(), context.get_world_size()
    device = "cpu"
    if framework == "torch":
        import ray.train.torch

        device = str(ray.train.torch.get_device())
    os.environ["OMP_NUM_THREADS"] = str(cpus_per_worker)
    return find_backend(framework).join(
        rank=rank, num_workers=num_workers, device=device, num_threads=cpus_per_worker
    )
