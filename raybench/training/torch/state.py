"""State of a run besides the model: averaged weights, loss scale, frozen modules, random states;
and the whole state as bytes. Mirrors tensorflow/state.py."""

import contextlib
import io
import random
from collections.abc import Callable, Iterator
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raybench.models.base import Workload, head_error
from raybench.spec.run import RunSpec
from raybench.training.saved import check_same_model, foreign_state_error
from raybench.training.torch.internals import foreach
from raybench.training.torch.model import set_random_seed


class Freezing:
    """Freezes and unfreezes the backbone of a model, which is everything except its head.

    Frozen parameters get no gradient, no update and no weight decay. Frozen modules run in
    evaluation mode: batch normalization keeps its statistics, and dropout is off. Modules without
    parameters next to the head, such as a dropout before it, belong to the head.
    """

    def __init__(self, model: nn.Module, workload: Workload) -> None:
        head = head_names(model, workload)
        self._model = model
        self._backbone_parameters = [
            (name, parameter)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and name not in head
        ]
        """Name and parameter of every parameter of the backbone."""
        self._frozen_modules = list(_modules_outside_head(model, "", head))
        """Modules of the backbone."""
        self.is_on = False
        """Whether the backbone is frozen."""

    def set(self, is_on: bool) -> None:
        """Freeze (True) or unfreeze (False) the backbone; afterwards, a DDP module must be replaced
        by a new one (`Exchange.rewrap`)."""
        self.is_on = is_on
        for _, parameter in self._backbone_parameters:
            parameter.requires_grad_(not is_on)
            parameter.grad = None

    @contextlib.contextmanager
    def unfrozen(self) -> Iterator[None]:
        """Context manager that lets all parameters require gradients, for code that selects
        trainable parameters."""
        for _, parameter in self._backbone_parameters:
            parameter.requires_grad_(True)
        yield
        for _, parameter in self._backbone_parameters:
            parameter.requires_grad_(not self.is_on)

    def train(self) -> None:
        """Put frozen modules into evaluation mode; call when the model is in training mode."""
        if self.is_on:
            for module in self._frozen_modules:
                module.eval()


def head_names(model: nn.Module, workload: Workload) -> set[str]:
    """Return the names of the head's parameters.

    These are the names in the `head` of a `NamedModel`, or the names that start with the workload's
    `head`.

    Raises:
        UserError: None or all of the parameters belong to the head.
    """
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    prefix = workload.head
    named_head = getattr(model, "head", ()) if prefix is None else ()
    head = {name for name in names if name in named_head or (prefix and name.startswith(prefix))}
    if not head or len(head) == len(names):
        raise head_error(workload, names, "parameters")
    return head


def _modules_outside_head(module: nn.Module, prefix: str, head: set[str]) -> "list[nn.Module]":
    """Return the largest submodules that have parameters or buffers and contain no parameter of the
    head. `prefix` is what the names of the module's parameters begin with in the whole model.
    """
    names = [f"{prefix}{name}" for name, _ in module.named_parameters()]
    if not any(name in head for name in names):
        return [module] if names or any(True for _ in module.buffers()) else []
    modules: list[nn.Module] = []
    for name, child in module.named_children():
        modules += _modules_outside_head(child, f"{prefix}{name}.", head)
    return modules


class Averaging:
    """Exponential moving average of the weights. Does nothing unless the run sets `ema_decay`.

        mean <- mean + (1 - decay) / (1 - decay^t) (w - mean),  t is the number of steps

    The divisor is Adam's bias correction, so that the initial weights do not contribute. As in
    torch.optim.swa_utils.AveragedModel, only parameters are averaged, not the running statistics of
    batch normalization.
    """

    def __init__(self, spec: RunSpec, model: nn.Module) -> None:
        self._decay = spec.ema_decay
        self._params: list[Tensor] = [
            parameter for parameter in model.parameters() if parameter.requires_grad
        ]
        self._means: list[Tensor] = []
        if self._decay is not None:
            self._means = [torch.zeros_like(param) for param in self._params]
        self._num_steps: int | Tensor = 0
        """Number of steps that were taken; a tensor if only the device knows which steps were
        skipped."""

    @torch.no_grad()
    def update(self, is_taken: Tensor | None) -> None:
        """Update the average with the weights after a step, unless the step was skipped.

        Args:
            is_taken: Result of `LossScale.step`.
        """
        if self._decay is None:
            return
        if is_taken is None:
            self._num_steps += 1
            share = (1 - self._decay) / (1 - self._decay**self._num_steps)
            foreach.lerp_(self._means, self._params, share)
            return
        self._num_steps = self._num_steps + is_taken.double()
        shares = is_taken * (1 - self._decay) / (1 - self._decay ** self._num_steps.clamp(min=1))
        foreach.lerp_(self._means, self._params, [shares.to(mean.dtype) for mean in self._means])

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Context manager that uses the averages as the model's weights, if any step was taken."""
        pairs = list(zip(self._params, self._means, strict=True)) if self._means else []
        pairs = pairs if self._num_steps else []
        with torch.no_grad():
            trained = [param.clone() for param, _ in pairs]
            for param, average in pairs:
                param.copy_(average)
            yield
            for (param, _), weight in zip(pairs, trained, strict=True):
                param.copy_(weight)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, which consists of numbers and tensors."""
        return {"num_steps": int(self._num_steps), "means": self._means}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that `state_dict` has returned."""
        self._num_steps = state["num_steps"]
        for mean, saved in zip(self._means, state["means"], strict=True):
            mean.copy_(saved)

    def forget(self) -> None:
        """Restart the average; until the next step, `in_place` leaves the model's weights as they
        are."""
        self._num_steps = 0


class LossScale:
    """Loss scale of `precision: fp16` (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2); it
    is 1 with other precisions.

    The scale is doubled after 2,000 steps without overflow. If a gradient is not finite, the step
    is skipped and the scale is halved. The scale and the counts of steps stay on the device, so
    that no step waits for it.
    """

    def __init__(self, device: torch.device, precision: str) -> None:
        self._scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self._one = torch.ones((), device=device)
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def num_skipped(self) -> int:
        """Number of skipped steps; reading it waits for the device."""
        return int(self._skipped)

    def now(self) -> Tensor:
        """Return the current loss scale, as a tensor on the device."""
        return self.scaled(self._one).clone()

    def scaled(self, loss: Tensor) -> Tensor:
        """Return a loss, or the weights of losses, multiplied by the loss scale."""
        scaled: Tensor = self._scaler.scale(loss)
        return scaled

    def step(self, optimizer: torch.optim.Optimizer, clip: Callable[[], None]) -> Tensor | None:
        """Divide the gradients by the loss scale, call `clip`, and take a step unless a gradient is
        not finite.

        The fused Adam of torch skips a step on the device. For other optimizers, the host waits for
        the device to know whether it has to skip the step.

        Returns:
            Whether the step was taken, as a tensor on the device; None without a loss scale.
        """
        if not self._scaler.is_enabled():
            clip()
            optimizer.step()
            return None
        if isinstance(optimizer, torch.optim.SGD):
            # A first step skipped by fused SGD would leave its momentum uninitialized.
            optimizer._step_supports_amp_scaling = False  # noqa: SLF001 (torch reads it)
        before = self.now()
        self._scaler.unscale_(optimizer)
        clip()
        self._scaler.step(optimizer)
        self._scaler.update()
        is_taken = self.now() >= before
        self._skipped += ~is_taken
        return is_taken

    def state_dict(self) -> dict[str, Any]:
        """Return the state, which consists of numbers."""
        return {"scaler": self._scaler.state_dict(), "num_skipped": self.num_skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that `state_dict` has returned."""
        self._scaler.load_state_dict(state["scaler"])
        self._skipped.fill_(state["num_skipped"])


Parts = dict[str, Any]
"""Objects with a `state_dict`, by name, such as `model` and `optimizer`."""


def pack_state(parts: Parts, ranks: list[Any], *, is_frozen: bool) -> bytes:
    """Return the state of a run as bytes.

    Args:
        parts: Objects whose `state_dict`s are saved.
        ranks: Further state of every rank, which consists of numbers and tensors.
        is_frozen: Whether the backbone is frozen.
    """
    content = {name: part.state_dict() for name, part in parts.items()}
    buffer = io.BytesIO()
    torch.save(content | {"is_frozen": is_frozen, "ranks": ranks}, buffer)
    return buffer.getvalue()


def unpack_state(state: bytes, parts: Parts) -> tuple[list[Any], bool]:
    """Load a state that `pack_state` has returned.

    Args:
        state: The state.
        parts: Objects into which the `state_dict`s are loaded.

    Returns:
        `ranks` and `is_frozen`, as passed to `pack_state`.

    Raises:
        UserError: The state belongs to a different model, or raybench did not write it.
    """
    try:
        content = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError) as error:
        raise foreign_state_error(error) from None
    check_same_model(_shapes(content["model"]), _shapes(parts["model"].state_dict()))
    for name, part in parts.items():
        part.load_state_dict(content[name])
    return content["ranks"], content["is_frozen"]


def seed_replicas(devices: list[torch.device], seed: int) -> None:
    """Seed all random numbers of this process.

    Python, numpy, torch on the CPU and the GPU of the first replica are seeded with `seed`, the GPU
    of the second replica with `seed` + 1, and so on. `devices` has the device of each replica.
    """
    set_random_seed(seed)
    for replica, device in enumerate(devices):
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed + replica)


def random_state(devices: list[torch.device]) -> dict[str, Any]:
    """Return the random states of this rank: of Python, numpy, and torch on the CPU and on the
    GPUs among `devices`."""
    numpy_state: Any = np.random.get_state()  # noqa: NPY002 (what a user's model may draw from)
    name, keys, *rest = numpy_state
    return {
        "python": random.getstate(),
        "numpy": (name, torch.tensor(keys.astype(np.int64)), *rest),
        "cpu": torch.get_rng_state(),
        "gpus": [torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"],
    }


def set_random_state(state: dict[str, Any], devices: list[torch.device]) -> None:
    """Restore random states that `random_state` has returned."""
    name, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(state["cpu"])
    for device, gpu_state in zip(devices, state["gpus"], strict=False):
        torch.cuda.set_rng_state(gpu_state, device)


def _shapes(state_dict: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a state dict, by name."""
    return {name: tuple(value.shape) for name, value in state_dict.items()}
