"""Cells: how a step was spread over workers, nodes and samples, and what it took."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, order=True)
class Cell:
    """Where and on what an optimizer step runs."""

    num_workers: int
    num_nodes: int
    batch_size_per_worker: int
    """Samples that a worker sees in one pass (forward and backward)."""
    accumulate: int = 1
    """Passes of an optimizer step; gradients are exchanged in the last one alone."""

    @property
    def samples(self) -> int:
        """Samples of an optimizer step, over all workers."""
        return self.num_workers * self.batch_size_per_worker * self.accumulate

    @property
    def one_worker(self) -> "Cell":
        """The cell of one worker that sees as many samples in a pass."""
        return Cell(1, 1, self.batch_size_per_worker, self.accumulate)


@dataclass(frozen=True)
class Layout:
    """Cells as arrays of the same length, for arithmetic on all of them at once."""

    workers: Floats
    nodes: Floats
    batch: Floats
    accumulate: Floats

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> "Layout":
        """Return the arrays of some cells, in their order."""
        columns = [
            (cell.num_workers, cell.num_nodes, cell.batch_size_per_worker, cell.accumulate)
            for cell in cells
        ]
        return cls(*np.array(columns, dtype=float).reshape(-1, 4).T)

    @property
    def workers_per_node(self) -> Floats:
        """Workers on the average node."""
        return self.workers / self.nodes
