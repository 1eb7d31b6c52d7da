"""How a run is spread over workers: the part of a run spec that decides its speed alone."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Placement:
    """Workers of one framework, what each of them has, and the samples each sees in a pass."""

    framework: str
    num_workers: int
    batch_size_per_worker: int = 0
    """0 where it does not matter, as in `group`."""
    cpus_per_worker: int = 1
    gpus_per_worker: int = 0

    @property
    def group(self) -> "Placement":
        """The worker group it needs: groups with equal ones are interchangeable."""
        return replace(self, batch_size_per_worker=0)

    @property
    def cpus(self) -> int:
        """CPU cores of the whole group."""
        return self.num_workers * self.cpus_per_worker

    @property
    def gpus(self) -> int:
        """GPUs of the whole group."""
        return self.num_workers * self.gpus_per_worker

    def num_fitting(self, cpus: int, gpus: int) -> int:
        """Return how many of its workers fit into so many free cores and GPUs of a node."""
        by_gpus = gpus // self.gpus_per_worker if self.gpus_per_worker else self.num_workers
        return max(0, min(cpus // self.cpus_per_worker, by_gpus, self.num_workers))
