"""The process of a torch worker: its group, devices and arithmetic, and what a user's training loop
needs from them. Mirrors tensorflow/world.py."""

import io
import sys
from collections.abc import Callable
from datetime import timedelta
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
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
from raybench.training.base import DistributedContext
from raybench.training.machine import GpusSeen, Memory, require_gpus, require_replicas
from raybench.training.saved import foreign_state_error


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
        """Return the values of all ranks as float64: one row per rank, in rank order. Collective,
        so also a barrier."""
        if self.num_workers == 1:
            return [values]
        mine = torch.tensor(values, dtype=torch.float64, device=self.torch_device)
        rows = [torch.empty_like(mine) for _ in range(self.num_workers)]
        dist.all_gather(rows, mine)
        return [row.tolist() for row in rows]

    def gather_objects(self, value: Any) -> list[Any]:
        """Return one object per rank, in rank order. Collective, so also a barrier."""
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
        num_threads: Number of CPU threads that torch uses for one operation.
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

    Unless `precision` is None, this also lets cuDNN benchmark its convolutions, which happens in
    the warm-up. Since version 2.9, torch has an old and a new set of switches for the arithmetic,
    and reading a switch raises an error if the two sets disagree. Here both are set, the old set
    first, because it also changes the new one.

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
    """Return the GPUs that torch sees; call in a separate process, since torch initializes them."""
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


class GpuMemory(Memory):
    """Measures the memory of a worker's GPUs; the peak is that of the fullest GPU."""

    def __init__(self, devices: list[torch.device]) -> None:
        self._devices = devices
        super().__init__()

    def peak(self) -> int:
        """Return the peak memory in bytes since this object was created."""
        return max(torch.cuda.max_memory_allocated(device) for device in self._devices)

    def _reset(self) -> None:
        for device in self._devices:
            torch.cuda.reset_peak_memory_stats(device)


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
"""Getters and setters of global settings of PyTorch that one run could leave changed for the next.

Thread-local settings (grad mode, autocast, default device) are not included, because each loop runs
in a new thread. The float32 arithmetic is not included, because `Adapter.begin` sets it."""


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
        """Return the values of all ranks, one row per rank, exchanged in a separate process group.

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
        return sharded(model, device.type, self._world.num_workers)

    def end(self) -> None:
        """Release the GPU memory that torch caches."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def pack(self, state: Any) -> tuple[str, bytes]:
        """Convert a state that the user saves to bytes; see `LoopAdapter.pack`. The state may
        contain plain data, bytes, arrays, tensors and models."""
        buffer = io.BytesIO()
        torch.save(_savable(state), buffer)
        return "torch", buffer.getvalue()

    def unpack(self, content: bytes) -> Any:
        """Return the state that was passed to `pack`, with its tensors on the CPU."""
        try:
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except (UnpicklingError, RuntimeError, EOFError) as error:
            raise foreign_state_error(error) from None


def sharded(model: nn.Module, device_type: str, num_workers: int) -> nn.Module:
    """Shard a model over the workers (FSDP2), one block of layers at a time; return it.

    Blocks are the items of ModuleList and Sequential modules that contain layers, such as the
    blocks of a transformer. Each block is gathered from the workers when it is needed. All workers
    start with the values of rank 0, as with DistributedDataParallel.
    """
    # Imported only for models that are sharded, because the import takes half a second.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device_type, (num_workers,))
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
    tensors. Raise UserError if it contains an object that cannot be saved."""
    if isinstance(value, nn.Module):
        model = value.module if isinstance(value, DistributedDataParallel) else value
        value = model.state_dict()
    tensors: Any = sys.modules.get("torch.distributed.tensor")  # imported if a model is sharded
    if tensors is not None and isinstance(value, tensors.DTensor):
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
