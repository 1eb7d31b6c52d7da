"""How the gradients of a worker meet those of the others. Mirrors tensorflow's."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from raybench.core.spec import RunSpec

WIRE = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}
"""Type of the gradients on their way; None as they are."""


class Squares:
    """The squared norms of what a worker gives and gets, bucket by bucket of one step."""

    def __init__(self) -> None:
        self._part: list[Tensor] = []
        self._whole: list[Tensor] = []

    def gave(self, part: Tensor) -> None:
        """Take in a bucket before its exchange."""
        self._part.append(part.dot(part))

    def got(self, whole: Tensor) -> None:
        """Take in a bucket after it; may be called by the thread of the exchange."""
        self._whole.append(whole.dot(whole))

    def take(self) -> tuple[Tensor, Tensor]:
        """Return both of the step that has ended, and begin another."""
        sums = torch.stack(self._part).sum(), torch.stack(self._whole).sum()
        self._part, self._whole = [], []
        return sums


Precision = Callable[[], AbstractContextManager[object]]
"""Returns the arithmetic of forward."""


class Replica(nn.Module):
    """A model that computes in the run's precision in any thread.

    DataParallel calls each replica in a thread of its own, which knows whether autocast is on but
    not its type: there it would be fp16.
    """

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.model = model
        self._precision = precision

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the model's outputs."""
        with self._precision():
            outputs: Tensor = self.model(inputs)
            return outputs


class Exchange:
    """The model as it trains among the workers, and when these exchange gradients.

    Replicas in one process need no exchange: DataParallel sums their gradients on the way back.
    """

    def __init__(self, spec: RunSpec, model: nn.Module, precision: Precision) -> None:
        self.model = model
        """To be called forward."""
        self.squares: Squares | None = None
        """Where gradients are exchanged and `record_steps` asks for their norms."""
        self._spec, self._bare, self._is_on = spec, model, spec.exchange_gradients
        self._parallel: DistributedDataParallel | None = None
        if spec.replicas_per_process > 1:
            devices = list(range(spec.replicas_per_process))
            self.model = nn.DataParallel(Replica(model, precision), device_ids=devices)
        elif spec.num_workers > 1:
            if spec.record_steps and self._is_on:
                self.squares = Squares()
            self._wrap()

    def renew(self) -> nn.Module:
        """Return the model to be called from now on, after parameters were frozen or let go; on all
        ranks at once, and nobody holds the one before.

        DDP exchanges the gradients of those parameters that had any when it was made.
        """
        if self._parallel is not None:
            self.model, self._parallel = self._bare, None  # takes its hooks off the parameters
            self._wrap()
        return self.model

    def _wrap(self) -> None:
        # Buffers are not sent at every step: see average_statistics.
        self.model = self._parallel = DistributedDataParallel(
            self._bare,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            bucket_cap_mb=_bucket_mb(self._spec),
        )
        wire = WIRE[self._spec.gradient_compression]
        if wire or self.squares:
            self._register(1 / self._spec.num_workers, wire)

    def when(self, wanted: bool) -> AbstractContextManager[object]:
        """Exchange gradients in this backward pass, or only accumulate them."""
        if self._parallel is None or (wanted and self._is_on):
            return contextlib.nullcontext()
        return self._parallel.no_sync()

    def _register(self, share: float, wire: torch.dtype | None) -> None:
        """Let DDP exchange by a function of ours: without one it does the same, uncompressed."""
        assert self._parallel is not None
        squares = self.squares

        def exchange(
            state: None,
            bucket: dist.GradBucket,  # type: ignore[name-defined]
        ) -> Future[Tensor]:
            # Scaled first, so that what is compressed is the same in both frameworks.
            part = bucket.buffer().mul_(share)
            if squares:
                squares.gave(part)
            sent = part if wire is None else part.to(wire)
            work = dist.all_reduce(sent, async_op=True)
            assert work is not None

            def receive(done: Future[list[Tensor]]) -> Tensor:
                (received,) = done.value()
                whole = received if wire is None else part.copy_(received)
                if squares:
                    squares.got(whole)
                return whole

            return work.get_future().then(receive)

        self._parallel.register_comm_hook(None, exchange)


def _bucket_mb(spec: RunSpec) -> float | None:
    """Return the size for DDP; None leaves it DDP's own, whose first bucket is a smaller one."""
    return None if spec.bucket_mb == RunSpec.model_fields["bucket_mb"].default else spec.bucket_mb
