"""What a user's training loop needs from PyTorch. Mirrors tensorflow/own.py."""

import io
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from raybench.spec.errors import ErrorCode, UserError
from raybench.training.adapter import (
    PLAIN,
    LoopAdapter,
    Setting,
    Strategy,
    attribute,
    unsavable_error,
)
from raybench.training.memory import Memory
from raybench.training.saved import foreign_state_error
from raybench.training.torch.loop import GpuMemory
from raybench.training.torch.world import World, set_arithmetic

_CUDA, _CUDNN = torch.backends.cuda, torch.backends.cudnn
SETTINGS: tuple[Setting, ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    (torch.get_num_threads, torch.set_num_threads),
    (_CUDA.flash_sdp_enabled, _CUDA.enable_flash_sdp),
    (_CUDA.mem_efficient_sdp_enabled, _CUDA.enable_mem_efficient_sdp),
    (_CUDA.math_sdp_enabled, _CUDA.enable_math_sdp),
    (_CUDA.cudnn_sdp_enabled, _CUDA.enable_cudnn_sdp),
    *(attribute(dist, name) for name in ("init_process_group", "destroy_process_group")),
    attribute(_CUDNN, "enabled"),
    attribute(_CUDNN, "deterministic"),
)
"""Global settings of PyTorch that one run could leave changed for the next, as getters and setters.

Thread-local settings (grad mode, autocast, default device) are not included, because each loop runs
in a new thread, nor is the float32 arithmetic, which `Adapter.begin` sets."""


class Adapter(LoopAdapter):
    """Functions of torch that a user's loop needs; see `LoopAdapter`."""

    _world: World

    def begin(self, seed: int) -> None:
        """Prepare torch for a loop; called in the loop's thread.

        Seeds torch, sets its float32 arithmetic to the defaults, and sets the GPU of the thread. It
        also keeps the loop from initializing or destroying the default process group, which all
        runs of the worker group use.
        """
        set_arithmetic(None)
        if self._world.torch_device.type == "cuda":
            torch.cuda.set_device(self._world.torch_device)
        torch.manual_seed(seed)
        if self._world.num_workers > 1:
            library: Any = dist
            destroy = library.destroy_process_group
            library.init_process_group = lambda *_, **__: None
            library.destroy_process_group = lambda group=None: (
                None if group in (None, dist.group.WORLD) else destroy(group)
            )

    def synchronize(self) -> None:
        """Wait until the device has finished its work."""
        if self._world.torch_device.type == "cuda":
            torch.cuda.synchronize(self._world.torch_device)

    def gather(self, values: list[float]) -> list[list[float]]:
        """Return the values of every rank, by rank, exchanged in a separate process group.

        In the process group that the loop uses, this collective on one rank could meet a collective
        of the loop on another rank, which would crash the process.
        """
        world = self._world
        if world.num_workers == 1:
            return [values]
        mine = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(mine) for _ in range(world.num_workers)]
        dist.all_gather(rows, mine, group=world.second_group())
        return [row.tolist() for row in rows]

    def num_exchanges(self) -> int | None:
        """Return how many collectives this rank has begun in the process group that the loop uses;
        None if unknown."""
        if not dist.is_initialized():
            return None
        group = dist.group.WORLD
        number = getattr(group, "_get_sequence_number_for_group", None)
        return None if number is None else int(number())

    def memory(self) -> Memory:
        """Return a `Memory` that measures this worker's peak memory from now on."""
        return GpuMemory([self._world.torch_device]) if self._world.gpus else Memory()

    def prepare(self, model: nn.Module, strategy: Strategy) -> nn.Module:
        """Move a model to the run's device; with several workers, wrap it in
        DistributedDataParallel or shard it. See `Run.prepare`."""
        device = self._world.torch_device
        model = model.to(device)
        if self._world.num_workers == 1:
            return model
        if strategy == "ddp":
            return DistributedDataParallel(model)
        return sharded(model, init_device_mesh(device.type, (self._world.num_workers,)))

    def end(self) -> None:
        """Release the GPU memory that torch caches."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def pack(self, state: Any) -> tuple[str, bytes]:
        """Convert a state that the user saves to bytes; see `LoopAdapter.pack`. It may contain
        plain data, tensors and models."""
        buffer = io.BytesIO()
        torch.save(_savable(state), buffer)
        return "torch", buffer.getvalue()

    def unpack(self, content: bytes) -> Any:
        """Return the state that was passed to `pack`, with its tensors on the CPU."""
        try:
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except (UnpicklingError, RuntimeError, EOFError) as error:
            raise foreign_state_error(error) from None


def sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard a model over the workers of a mesh (FSDP2), one block of layers at a time; return it.

    Blocks are the items of ModuleList and Sequential modules that contain layers, such as the
    blocks of a transformer. Each block is gathered from the workers when it is needed. All workers
    start with the values of rank 0, as with DistributedDataParallel.
    """
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    for module in reversed([*model.modules()]):  # inner blocks first
        if isinstance(module, nn.ModuleList | nn.Sequential):
            for block in module:
                if any(block.children()) and any(True for _ in block.parameters()):
                    fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _savable(value: Any) -> Any:
    """Return a state that the user saves, with models replaced by their state dicts and arrays by
    tensors; raise UserError for objects that cannot be saved."""
    if isinstance(value, nn.Module):
        model = value.module if isinstance(value, DistributedDataParallel) else value
        value = model.state_dict()
    if isinstance(value, DTensor):
        raise UserError(
            "run.save: the model is sharded; on all workers, save what get_state_dict(model, "
            "optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)) of "
            "torch.distributed.checkpoint.state_dict returns.",
            ErrorCode.USER_CODE,
        )
    if isinstance(value, dict):
        return {key: _savable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_savable(item) for item in value)
    if isinstance(value, np.ndarray | np.generic):
        return torch.as_tensor(value) if isinstance(value, np.ndarray) else value.item()
    if not isinstance(value, (*PLAIN, bytes, torch.Tensor)):
        raise unsavable_error(value)
    return value
