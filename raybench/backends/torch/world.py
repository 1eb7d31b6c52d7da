"""A torch worker's place among the workers. Mirrors tensorflow's."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from raybench.backends.gpus import Seen, require_gpus
from raybench.core.errors import UserError


class World:
    """This process's place among the workers; a process group exists where there are several."""

    def __init__(
        self, *, rank: int = 0, num_workers: int = 1, device: str = "cpu", num_replicas: int = 1
    ) -> None:
        self.rank, self.num_workers = rank, num_workers
        self.torch_device = torch.device(device)
        """Where the model and the data are; the first replica's."""
        self.replica_devices = [self.torch_device]
        """Of each replica in this process; where they are several, its GPUs from the first on."""
        if num_replicas > 1:
            self.replica_devices = [torch.device("cuda", i) for i in range(num_replicas)]
            self.torch_device = self.replica_devices[0]
        is_cuda = self.torch_device.type == "cuda"
        self.gpus = tuple(one.index or 0 for one in self.replica_devices) if is_cuda else ()
        self.device = torch.cuda.get_device_name(self.torch_device) if is_cuda else "cpu"

    def gather(self, values: list[float]) -> list[list[float]]:
        """Return every rank's values (float64), in rank order; a barrier for all ranks."""
        if self.num_workers == 1:
            return [values]
        mine = torch.tensor(values, dtype=torch.float64, device=self.torch_device)
        rows = [torch.empty_like(mine) for _ in range(self.num_workers)]
        dist.all_gather(rows, mine)
        return [row.tolist() for row in rows]

    def time_all_reduce(self, num_bytes: int, rounds: int) -> list[float]:
        """Return the seconds of each of some sums over all workers of so many bytes (float32)."""
        values = torch.zeros(num_bytes // 4, device=self.torch_device)
        seconds = []
        for _ in range(rounds):
            self.gather([0.0])
            began = time.perf_counter()
            dist.all_reduce(values)
            float(values[0])  # waits for a GPU
            seconds.append(time.perf_counter() - began)
        return seconds

    @property
    def through(self) -> str:
        """What carries the sums: `gloo` or `nccl`."""
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
    """Return this process's World; Ray Train has made the process group already."""
    torch.set_num_threads(num_threads)
    require_gpus("torch", num_gpus, torch.cuda.device_count() if num_gpus else 0)
    # A worker of its own does not count GPUs, which wakes CUDA's driver.
    gpus = torch.cuda.device_count() if num_replicas > 1 else 1
    if num_replicas > gpus:
        raise UserError(
            f"strategy single_process: {num_replicas} replicas need as many GPUs, and their "
            f"process sees {gpus}; ask for fewer with num_workers."
        )
    return World(rank=rank, num_workers=num_workers, device=device, num_replicas=num_replicas)


def set_arithmetic(precision: str) -> None:
    """Let this process multiply float32 on GPUs as a run says, whatever the last one said; try
    which of cuDNN's convolutions is fastest, in the warm-up."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True


def gpus_seen() -> Seen:
    """Return the GPUs that torch sees; wakes them, so for a process of its own."""
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    versions = {"torch": str(torch.__version__), "cuda": torch.version.cuda}
    if found:
        versions["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        versions["nccl"] = ".".join(map(str, nccl))
    return Seen(
        names=tuple(one.name for one in found),
        memory_bytes=tuple(one.total_memory for one in found),
        versions={name: version for name, version in versions.items() if version},
    )


def meet_in_file(*, backend: str, member: int, size: int, file: str, timeout_s: int) -> None:
    """Join the default process group as rank `member` of `size`; all name the same new `file`."""
    dist.init_process_group(
        backend,
        init_method=f"file://{file}",
        rank=member,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
    )
