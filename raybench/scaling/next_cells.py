"""What to measure next: the cells whose measured steps would narrow a prediction most, and what
they cost.

As the fitted law's draws and what it leaves over have it: how far a cell's step tells the asked one
is their covariance (as if both were normal). The second cell is the best once the first is known.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raybench.scaling.averaged import ThroughputModel
from raybench.scaling.measurements import Cell

CELLS = 2
STEPS = 100
"""Of a cell's short run: what its cost is of."""
BATCHES = 12
"""Measured batches, nearest to the asked one, that are tried."""
ALIKE = 1.05
"""Cells that leave an interval within so many times the narrowest are equal: the cheaper wins."""


@dataclass(frozen=True)
class NextCell:
    """A cell to measure, and what is known of the asked one then."""

    cell: Cell
    worker_seconds: float
    """Of STEPS steps."""
    spread: float
    """Half of the asked cell's 90 % interval once this and those before are measured, relative."""


def least_sure(model: ThroughputModel, cells: Sequence[Cell]) -> Cell:
    """Return the cell whose prediction has the widest interval."""
    found = model.predict(cells)
    return max(found, key=lambda one: (one.high_s / one.low_s, one.cell)).cell


def next_cells(model: ThroughputModel, asked: Cell) -> list[NextCell]:
    """Return the cells to measure, the best first; fewer where there are no others to try."""
    tried = _candidates(model, asked)
    if not tried:
        return []
    own, (now, *rest) = model.own, model.predict([asked, *tried])
    centre, doubt = own.outcomes([asked, *tried])
    known = np.cov(centre.T) + doubt
    noise = own.levels.own**2 + own.observed.noise
    half, first = math.log(now.high_s / now.low_s) / 2, known[0, 0] + noise
    found: list[NextCell] = []
    left = list(range(1, 1 + len(tried)))
    while left and len(found) < CELLS:
        narrowed = {i: known[0, 0] - known[0, i] ** 2 / (known[i, i] + noise) for i in left}
        least = min(narrowed.values())
        equal = [i for i in left if narrowed[i] + noise <= ALIKE**2 * (least + noise)]
        cost = {i: STEPS * rest[i - 1].step_s * tried[i - 1].num_workers for i in left}
        best = min(equal, key=lambda i: cost[i])
        share = math.sqrt(max(narrowed[best], 0.0) + noise) / math.sqrt(first)
        found.append(NextCell(tried[best - 1], cost[best], math.expm1(half * min(share, 1.0))))
        gain = known[:, best] / (known[best, best] + noise)
        known = known - np.outer(gain, known[best])
        left.remove(best)
    return found


def _candidates(model: ThroughputModel, asked: Cell) -> list[Cell]:
    """Return cells that are not measured: up to twice the most workers, and half of those asked
    for, on nodes as full as any measured, or two on two nodes; at measured batches and the asked
    one."""
    seen = model.observed.cells
    most = min(2 * max(cell.num_workers for cell in seen), max(asked.num_workers // 2, 1))
    full = max(cell.num_workers / cell.num_nodes for cell in seen)
    doublings = {2**i for i in range(most.bit_length()) if 2**i <= most}
    sizes = {(k, math.ceil(k / full)) for k in doublings | {most}}
    if asked.num_nodes > 1 and most >= 2:
        sizes.add((2, 2))
    own = asked.batch_size_per_worker
    measured = {cell.batch_size_per_worker for cell in seen} - {own}
    near = sorted(measured, key=lambda batch: (abs(math.log(batch / own)), batch))[:BATCHES]
    batches = {own, *near}
    cells = {Cell(k, n, batch, asked.accumulate) for k, n in sizes for batch in batches}
    return sorted(cells - set(seen))
