"""How a run is spread over workers: the part of a run spec that decides its speed alone."""

from dataclasses import dataclass, replace

ROUNDING = 1e-6
"""Parts of a worker that are an error of arithmetic: ten tenths of a GPU are a whole one."""


@dataclass(frozen=True)
class Placement:
    """Workers of one framework, what each of them has, and the samples each sees in a pass."""

    framework: str
    num_workers: int
    batch_size_per_worker: int = 0
    """0 where it does not matter, as in `group`."""
    cpus_per_worker: int = 1
    gpus_per_worker: float = 0
    """A part of a GPU where there is one worker only."""
    strategy: str = "pack"
    """`pack`: on as few hosts as can be; `spread`: on as many."""
    accelerator_type: str | None = None
    """Ray's name of the GPU's model; none takes any."""
    replicas_per_process: int = 1
    """Replicas of the model in each process; several where one process has them all, which is then
    the group's one worker and has what all of them need."""

    @property
    def in_one_process(self) -> "Placement":
        """The same replicas in one process of one node, in place of a worker for each."""
        return replace(
            self,
            num_workers=1,
            cpus_per_worker=self.cpus,
            gpus_per_worker=self.gpus,
            replicas_per_process=self.num_workers,
        )

    @property
    def group(self) -> "Placement":
        """The worker group it needs: groups with equal ones are interchangeable."""
        return replace(self, batch_size_per_worker=0)

    @property
    def cpus(self) -> int:
        """CPU cores of the whole group."""
        return self.num_workers * self.cpus_per_worker

    @property
    def gpus(self) -> float:
        """GPUs of the whole group."""
        return self.num_workers * self.gpus_per_worker

    @property
    def shares_a_gpu(self) -> bool:
        """Whether its workers would have to share GPUs, which collectives between GPUs refuse."""
        return self.num_workers > 1 and 0 < self.gpus_per_worker < 1

    def num_fitting(self, cpus: float, gpus: float) -> int:
        """Return how many of its workers fit into so many free cores and GPUs of a node."""
        fitting = float(self.num_workers)
        for free, each in ((cpus, self.cpus_per_worker), (gpus, self.gpus_per_worker)):
            if each:
                fitting = min(fitting, free / each)
        return max(0, int(fitting + ROUNDING))
