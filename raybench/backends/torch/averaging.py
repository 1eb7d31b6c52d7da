"""Averages of the weights, evaluated and saved in their place. Mirrors tensorflow's."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from raybench.backends.torch.optim import ScheduleFreeAdamW
from raybench.backends.torch.optim.kernels import lerp_all
from raybench.core.spec import RunSpec


class Averaging:
    """The moving average of `ema_decay`, or that which Schedule-Free AdamW keeps, or neither.

        mean <- mean + (1 - decay) / (1 - decay^t) (w - mean),  t the steps so far

    The divisor is Adam's correction: the average is over the steps taken, and the weights of the
    beginning have no part in it. Of parameters alone: running averages of batch normalisation are
    the model's own, as in torch.optim.swa_utils.AveragedModel.
    """

    def __init__(self, spec: RunSpec, model: nn.Module) -> None:
        self._decay = spec.ema_decay
        self._params: list[Tensor] = [one for one in model.parameters() if one.requires_grad]
        self._means: list[Tensor] = []
        if self._decay is not None:
            self._means = [torch.zeros_like(one) for one in self._params]
        self._num_steps = 0

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step."""
        if self._decay is None:
            return
        self._num_steps += 1
        share = (1 - self._decay) / (1 - self._decay**self._num_steps)
        lerp_all(self._means, self._params, share)

    @contextlib.contextmanager
    def in_place(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Put the averages in the place of the weights inside."""
        pairs = self._averages(optimizer)
        with torch.no_grad():
            trained = [param.clone() for param, _ in pairs]
            for param, average in pairs:
                param.copy_(average)
            yield
            for (param, _), weight in zip(pairs, trained, strict=True):
                param.copy_(weight)

    def state(self) -> dict[str, Any]:
        """Return what `restore` takes: numbers and tensors."""
        return {"num_steps": self._num_steps, "means": self._means}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._num_steps = state["num_steps"]
        for mean, saved in zip(self._means, state["means"], strict=True):
            mean.copy_(saved)

    @torch.no_grad()
    def forget(self, optimizer: torch.optim.Optimizer) -> None:
        """Begin anew, with weights that were not trained here: they are their own average."""
        self._num_steps = 0
        if isinstance(optimizer, ScheduleFreeAdamW):
            for state in optimizer.state.values():
                state["ahead"].zero_()

    def _averages(self, optimizer: torch.optim.Optimizer) -> list[tuple[Tensor, Tensor]]:
        """Return parameters with what takes their place: none before the first step."""
        if isinstance(optimizer, ScheduleFreeAdamW):
            return optimizer.evaluation_weights()
        return list(zip(self._params, self._means, strict=True)) if self._num_steps else []
