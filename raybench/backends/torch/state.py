"""All that training goes on from, as bytes: model, optimizer, random states. Mirrors tensorflow's.

Written by `torch.save`, of tensors, numbers and names alone: `weights_only` loads it without
running anything that it holds.
"""

import io
from pickle import UnpicklingError

import torch
from torch import nn

from raybench.backends.saved import check_same_model, not_ours
from raybench.backends.torch.averaging import Averaging


def pack_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    averaging: Averaging,
    rows: list[list[float]],
    *,
    is_frozen: bool,
) -> bytes:
    """Return the state of a run; `rows` holds the numbers that each rank has of its own."""
    content = {
        "is_frozen": is_frozen,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "averaging": averaging.state(),
        "ranks": torch.tensor(rows, dtype=torch.float64),
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def unpack_state(
    state: bytes, model: nn.Module, optimizer: torch.optim.Optimizer, averaging: Averaging
) -> tuple[list[list[float]], bool]:
    """Give model, optimizer and averages what `pack_state` was given; return its `rows`, and
    whether the backbone was frozen.

    UserError if they are of another model, or were written by something else.
    """
    try:
        content = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError) as error:
        raise not_ours(error) from None
    check_same_model(_shapes(content["model"]), _shapes(model.state_dict()))
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    averaging.restore(content["averaging"])
    rows: list[list[float]] = content["ranks"].tolist()
    return rows, content["is_frozen"]


def seed_replicas(devices: list[torch.device], seed: int) -> None:
    """Give the CPU and the first replica's device the random numbers of `seed`, the second's those
    of `seed` + 1, and so on."""
    torch.manual_seed(seed)
    for replica, device in enumerate(devices):
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed + replica)


def random_state(devices: list[torch.device]) -> list[float]:
    """Return what this rank draws from next: the bytes of the CPU's generator, then its GPUs'."""
    gpus = [device for device in devices if device.type == "cuda"]
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in gpus)]
    return [float(byte) for byte in torch.cat(states).tolist()]


def set_random_state(numbers: list[float], devices: list[torch.device]) -> None:
    """Draw next what `random_state` was called before."""
    gpus = [device for device in devices if device.type == "cuda"]
    state = torch.tensor(numbers, dtype=torch.uint8)
    size = len(torch.get_rng_state())
    torch.set_rng_state(state[:size])
    for device, own in zip(gpus, state[size:].chunk(max(1, len(gpus))), strict=bool(gpus)):
        torch.cuda.set_rng_state(own, device)


def _shapes(state_dict: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state_dict.items()}
