"""The named studies by their names."""

from typing import Protocol

from raybench.core.scaling_study import ScalingStudy
from raybench.scaling.named import (
    batch_size_vs_workers,
    bottleneck_probe,
    finetune_lr_schedule,
    mnist_data_parallel,
    synthetic_throughput,
)
from raybench.scaling.named.claims import Claim, Results


class NamedStudy(Protocol):
    """A module of this folder; its docstring has claim, source and command."""

    def study(self, quick: bool) -> ScalingStudy:
        """Return the study; `quick` for two cores in at most five minutes."""
        ...

    def compare(self, results: Results) -> list[Claim]:
        """Return the published claims beside what was measured."""
        ...


STUDIES: dict[str, NamedStudy] = {
    "mnist_data_parallel": mnist_data_parallel,
    "batch_size_vs_workers": batch_size_vs_workers,
    "finetune_lr_schedule": finetune_lr_schedule,
    "bottleneck_probe": bottleneck_probe,
    "synthetic_throughput": synthetic_throughput,
}
