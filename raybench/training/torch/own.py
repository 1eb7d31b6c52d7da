"""What a training loop of the user's own needs of PyTorch. Mirrors tensorflow's."""

import io
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from raybench.training import own
from raybench.training.own import PLAIN, not_savable
from raybench.training.saved import not_ours
from raybench.training.torch.world import World


class Part(own.Part):
    """That of torch."""

    def begin(self, world: World, seed: int) -> None:
        """Seed a run, in the thread of the loop: each thread has a current GPU of its own."""
        if world.torch_device.type == "cuda":
            torch.cuda.set_device(world.torch_device)
        torch.manual_seed(seed)

    def synchronise(self, world: World) -> None:
        """Wait for the device."""
        if world.torch_device.type == "cuda":
            torch.cuda.synchronize(world.torch_device)

    def gather(self, world: World, values: list[float]) -> list[list[float]]:
        """Return every rank's values, over a group of its own: in the loop's group a collective of
        the loop on one rank would meet this one on another, and end the process."""
        if world.num_workers == 1:
            return [values]
        mine = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(mine) for _ in range(world.num_workers)]
        dist.all_gather(rows, mine, group=world.apart())
        return [row.tolist() for row in rows]

    def num_exchanges(self) -> int | None:
        """Return the number of collectives that this rank has begun in the loop's group."""
        if not dist.is_initialized():
            return None
        group = dist.group.WORLD
        number = getattr(group, "_get_sequence_number_for_group", None)
        return None if number is None else int(number())

    def prepare(self, model: nn.Module, world: World) -> nn.Module:
        """Return a model on the run's device, that exchanges gradients where there are others."""
        model = model.to(world.torch_device)
        return DistributedDataParallel(model) if world.num_workers > 1 else model

    def end(self) -> None:
        """Give memory back to a GPU."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def pack(self, state: Any) -> tuple[str, bytes]:
        """Return a kind and the bytes of plain data and tensors; UserError for anything else."""
        buffer = io.BytesIO()
        torch.save(_plain(state), buffer)
        return "torch", buffer.getvalue()

    def unpack(self, content: bytes) -> Any:
        """Return what `pack` was given, its tensors on the CPU."""
        try:
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except (UnpicklingError, RuntimeError, EOFError) as error:
            raise not_ours(error) from None


def _plain(value: Any) -> Any:
    if isinstance(value, nn.Module):
        model = value.module if isinstance(value, DistributedDataParallel) else value
        value = model.state_dict()
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(one) for one in value)
    if isinstance(value, np.ndarray | np.generic):
        return torch.as_tensor(value) if isinstance(value, np.ndarray) else value.item()
    if not isinstance(value, (*PLAIN, bytes, torch.Tensor)):
        raise not_savable(value)
    return value
