"""The process group of a torch worker, and the exchange of gradients with the other workers.

Mirrors tensorflow/world.py.
"""

import contextlib
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from raybench.spec.run import RunSpec
from raybench.training.base import DistributedContext
from raybench.training.machine import GpusSeen, require_gpus, require_replicas


class World(DistributedContext):
    """The group of workers as seen by this process; see `DistributedContext`.

    If there are several workers, the default process group of torch connects them.
    """

    def __init__(
        self, *, rank: int = 0, num_workers: int = 1, device: str = "cpu", num_replicas: int = 1
    ) -> None:
        self.rank, self.num_workers = rank, num_workers
        self.torch_device = torch.device(device)
        """Device of the model and the data, which is the device of the first replica."""
        self.replica_devices = [self.torch_device]
        """Device of each replica in this process. If there are several, they use the GPUs 0, 1, and
        so on."""
        if num_replicas > 1:
            self.replica_devices = [torch.device("cuda", i) for i in range(num_replicas)]
            self.torch_device = self.replica_devices[0]
        is_cuda = self.torch_device.type == "cuda"
        self.gpus = tuple(device.index or 0 for device in self.replica_devices) if is_cuda else ()
        self.device = torch.cuda.get_device_name(self.torch_device) if is_cuda else "cpu"
        self._second_group: Any = None

    def gather(self, values: list[float]) -> list[list[float]]:
        """Return the values of every rank (float64), by rank. Collective, so also a barrier."""
        if self.num_workers == 1:
            return [values]
        mine = torch.tensor(values, dtype=torch.float64, device=self.torch_device)
        rows = [torch.empty_like(mine) for _ in range(self.num_workers)]
        dist.all_gather(rows, mine)
        return [row.tolist() for row in rows]

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the object of every rank, by rank. Collective, so also a barrier."""
        values = [value] * self.num_workers
        if self.num_workers > 1:
            dist.all_gather_object(values, value, group=self.second_group())
        return values

    def second_group(self) -> Any:
        """Return a second process group of all workers, which uses Gloo and takes CPU tensors.

        Collective at its first call. The timeout of its collectives is long, because
        `training.ranks` detects and explains a rank that is stuck sooner.
        """
        if self._second_group is None:
            self._second_group = dist.new_group(backend="gloo", timeout=timedelta(days=7))
        return self._second_group

    def _adder(self, num_values: int) -> Callable[[], float]:
        values = torch.zeros(num_values, device=self.torch_device)

        def add_up() -> float:
            dist.all_reduce(values)
            return float(values[0])

        return add_up

    @property
    def through(self) -> str:
        """Library that runs the all-reduces: `gloo` or `nccl`."""
        return str(dist.get_backend())


def join(
    *,
    rank: int,
    num_workers: int,
    device: str,
    num_threads: int,
    num_replicas: int = 1,
    num_gpus: int = 0,
) -> World:
    """Set up torch in this process. Ray Train has already created the process group.

    Args:
        rank: Rank of this process.
        num_workers: Number of processes.
        device: Device of this process.
        num_threads: Number of threads of torch.
        num_replicas: Number of replicas in this process, each on a different device.
        num_gpus: Number of GPUs that were assigned to this process.

    Raises:
        UserError: torch sees fewer GPUs than were assigned, or fewer than there are replicas.
    """
    torch.set_num_threads(num_threads)
    require_gpus("torch", num_gpus, torch.cuda.device_count() if num_gpus else 0)
    if num_replicas > 1:  # only then, because counting the GPUs initializes the CUDA driver
        require_replicas(num_replicas, torch.cuda.device_count())
    return World(rank=rank, num_workers=num_workers, device=device, num_replicas=num_replicas)


def set_arithmetic(precision: str | None) -> None:
    """Set the float32 arithmetic of this process, overriding earlier runs and user code.

    Also lets cuDNN benchmark its convolutions, which happens in the warm-up. Since version 2.9,
    torch has an old and a new set of switches for the arithmetic, and reading a switch raises an
    error if the two sets disagree. Here both are set, the old set first, because it also changes
    the new one.

    Args:
        precision: Precision of the run; None to set torch's defaults.
    """
    backends: Any = torch.backends
    torch.set_float32_matmul_precision("highest")  # also applies to CPUs
    backends.cuda.matmul.allow_tf32 = precision == "tf32"
    backends.cudnn.allow_tf32 = precision in ("tf32", None)
    if hasattr(backends, "fp32_precision"):
        cpu, gpu = backends.mkldnn, backends.cudnn
        matmul = {"tf32": "tf32", None: "none"}.get(precision, "ieee")
        conv = "tf32" if precision is None else matmul
        for backend in (backends, cpu, cpu.matmul, cpu.conv, cpu.rnn):
            backend.fp32_precision = "none" if precision is None else "ieee"
        # `gpu.fp32_precision` is the default for all operations of cuDNN.
        gpu.fp32_precision = backends.cuda.matmul.fp32_precision = matmul
        gpu.conv.fp32_precision = gpu.rnn.fp32_precision = conv
    backends.cudnn.benchmark = precision is not None


def gpus_seen() -> GpusSeen:
    """Return the GPUs that torch sees; call in a separate process, because it initializes them."""
    properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    versions = {"torch": str(torch.__version__), "cuda": torch.version.cuda}
    if properties:
        versions["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        versions["nccl"] = ".".join(map(str, nccl))
    return GpusSeen(
        names=tuple(gpu.name for gpu in properties),
        memory_bytes=tuple(gpu.total_memory for gpu in properties),
        versions={name: version for name, version in versions.items() if version},
    )


def meet_in_file(*, backend: str, member: int, size: int, file: str, timeout_s: int) -> None:
    """Create and join torch's default process group, whose members find each other through a file.

    Collective: all ranks must call it.

    Args:
        backend: `gloo` or `nccl`.
        member: Rank of this process.
        size: Number of processes.
        file: Path of the file, the same on all ranks; the file must not exist yet.
        timeout_s: Timeout in seconds of the group's collectives.
    """
    dist.init_process_group(
        backend,
        init_method=f"file://{file}",
        rank=member,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
    )


WIRE = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}
"""Type to which gradients are converted for the exchange, by `gradient_compression`; None to leave
them unchanged."""


class GradientNorms:
    """Squared norms of the gradients that a worker sends and receives in a step.

    DDP exchanges gradients in several buckets, each of which has a squared norm here.
    """

    def __init__(self) -> None:
        self.sent: list[Tensor] = []
        self.received: list[Tensor] = []
        """Added to in the thread that runs the exchange."""

    def pop(self) -> tuple[Tensor, Tensor]:
        """Return the squared norms sent and received in the finished step, each summed over its
        buckets, and start the next step."""
        sums = torch.stack(self.sent).sum(), torch.stack(self.received).sum()
        self.sent, self.received = [], []
        return sums


Precision = Callable[[], AbstractContextManager[object]]
"""Function that returns the autocast context of the forward pass."""


class Replica(nn.Module):
    """Wraps a model so that it computes in the run's precision in any thread.

    DataParallel calls each replica in a different thread. The thread inherits whether autocast is
    on, but not its type, so that the model would be computed in fp16.
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
    """A model that several workers train, and the exchange of their gradients.

    Replicas in one process need no exchange, since DataParallel sums their gradients in the
    backward pass.
    """

    def __init__(
        self, spec: RunSpec, model: nn.Module, precision: Precision, *, may_skip_parameters: bool
    ) -> None:
        """Wrap a model.

        Args:
            spec: The run spec.
            model: The model, on its device.
            precision: Function that returns the autocast context of the forward pass.
            may_skip_parameters: Whether a forward pass may use only some of the parameters.
        """
        self.model = model
        """Module to use for the forward pass (DDP-wrapped if distributed)."""
        self.squares: GradientNorms | None = None
        """Norms of the exchanged gradients; None unless the run records steps (`record_steps`)."""
        self._spec, self._unwrapped, self._is_on = spec, model, spec.exchange_gradients
        self._parallel: DistributedDataParallel | None = None
        self._may_leave_out = may_skip_parameters
        if spec.replicas_per_process > 1:
            devices = list(range(spec.replicas_per_process))
            self.model = nn.DataParallel(Replica(model, precision), device_ids=devices)
        elif spec.num_workers > 1:
            if spec.record_steps and self._is_on:
                self.squares = GradientNorms()
            self._wrap()

    def rewrap(self) -> nn.Module:
        """Wrap the model in a new DDP module, after parameters were frozen or unfrozen; return it.

        DDP exchanges the gradients of those parameters that required gradients when the DDP module
        was created. The caller must not keep a reference to the previous module, or its hooks stay
        active. Collective: all ranks must call it.
        """
        if self._parallel is not None:
            # Without references to the previous module, its hooks on the parameters are removed.
            self.model, self._parallel = self._unwrapped, None
            self._wrap()
        return self.model

    def _wrap(self) -> None:
        """Wrap the model in a DDP module."""
        size, usual = self._spec.bucket_mb, RunSpec.model_fields["bucket_mb"].default
        with warnings.catch_warnings():
            # torch 2.15 renames `broadcast_buffers`; earlier versions do not know the new name.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            self.model = self._parallel = DistributedDataParallel(
                self._unwrapped,
                broadcast_buffers=False,  # `average_statistics` makes them equal
                gradient_as_bucket_view=True,
                # By default, DDP uses a smaller first bucket; keep that for the default size.
                bucket_cap_mb=None if size == usual else size,
                find_unused_parameters=self._may_leave_out,
            )
        wire = WIRE[self._spec.gradient_compression]
        if wire or self.squares:
            self._register_hook(1 / self._spec.num_workers, wire)

    def sync_if(self, is_wanted: bool) -> AbstractContextManager[object]:
        """Return a context for the backward pass, in which it exchanges gradients if `is_wanted`,
        and otherwise only accumulates them."""
        if self._parallel is None or (is_wanted and self._is_on):
            return contextlib.nullcontext()
        return self._parallel.no_sync()

    def _register_hook(self, share: float, wire: torch.dtype | None) -> None:
        """Register a communication hook that averages gradients, as DDP does by default, and can
        also compress them and measure their norms.

        Args:
            share: Factor by which gradients are multiplied: 1 / number of workers.
            wire: Type to which gradients are converted for the exchange; None to leave them.
        """
        assert self._parallel is not None
        squares = self.squares

        def exchange(
            state: None,
            bucket: dist.GradBucket,  # type: ignore[name-defined]
        ) -> Future[Tensor]:
            # Multiplied before the exchange, so that both frameworks compress the same numbers.
            buffer: Tensor = bucket.buffer().mul_(share)
            real = torch.view_as_real(buffer) if buffer.is_complex() else buffer
            part = real.flatten()
            if squares:
                squares.sent.append(part.dot(part))
            sent = part if wire is None else part.to(wire)
            work = dist.all_reduce(sent, async_op=True)
            assert work is not None

            def receive(done: Future[list[Tensor]]) -> Tensor:
                (received,) = done.value()
                if wire:
                    part.copy_(received)
                if squares:
                    squares.received.append(part.dot(part))
                return buffer

            return work.get_future().then(receive)

        self._parallel.register_comm_hook(None, exchange)
