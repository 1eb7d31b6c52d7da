"""Simulated clusters whose step times follow different laws, for `throughput_model.py`.

`TASKS` defines which cells are measured and which are predicted. A world draws the constants of one
model on one kind of GPU: compute of a pass, exchange within and between nodes and its growth, and
noise. None of the laws is raybench's; "p-norm" is Pollux's form (arXiv
2008.12260), "ring" and "tree" the textbook all-reduces, "hierarchical" a ring within nodes and
then one between them, "stragglers" a ring that waits for the slowest of k workers, "congestion" a
network that saturates, "host" a shared input pipeline.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from raybench.scaling.measurements import Cell

LAWS = ("p-norm", "ring", "tree", "hierarchical", "stragglers", "congestion", "host")
BATCHES = (8, 16, 32, 64, 128, 256, 512)


@dataclass
class World:
    """One model on one kind of GPU."""

    law: str
    noise: float
    gpus_per_node: int
    batches: list[int]
    step: Callable[[Cell], float]
    """Seconds of a step without noise."""
    outliers: float
    rng: np.random.Generator = field(repr=False)

    def measure(self, cell: Cell, repeats: int = 1) -> list[float]:
        """Return measured seconds with noise; a few measurements are stalled."""
        factors = np.exp(self.noise * self.rng.standard_normal(repeats))
        stalls = np.where(self.rng.random(repeats) < self.outliers, 1 + self.rng.random(repeats), 1)
        return [float(value) for value in self.step(cell) * factors * stalls]

    def placements(self) -> list[tuple[int, int]]:
        """Return (workers, nodes): packed ones, and some that are spread over more nodes."""
        packed = [(k, max(1, -(-k // self.gpus_per_node))) for k in (1, 2, 4, 8, 16, 32, 64)]
        spread = [(2, 2), (4, 2), (4, 4), (8, 4), (8, 8), (16, 8), (16, 16)]
        fitting = (one for one in spread if one[0] // one[1] <= self.gpus_per_node)
        return sorted({*packed, *fitting})


def make_world(
    law: str,
    seed: int,
    *,
    noise: float | None = None,
    outliers: float = 0.01,
    batches: list[int] | None = None,
) -> World:
    """Draw the constants of a world."""
    rng = np.random.default_rng([LAWS.index(law), seed])
    if batches is None:
        first = int(rng.integers(0, 3))
        batches = list(BATCHES[first : first + int(rng.integers(3, 6))])
    per_node = int(rng.choice([4, 8]))
    compute = _compute(rng, batches)
    exchange = _exchange(law, rng, compute(batches[len(batches) // 2]), per_node)
    gamma = float(np.exp(rng.uniform(0, math.log(6))))
    forward = float(rng.uniform(0.2, 0.4))
    drift = float(rng.uniform(0.02, 0.06)) if law == "stragglers" else 0.0
    host = float(rng.uniform(0.05, 0.25)) if law == "host" else 0.0
    per_sample = compute(max(batches)) / max(batches)

    def step(cell: Cell) -> float:
        k, n, batch = cell.num_workers, cell.num_nodes, cell.batch_size_per_worker
        once = compute(batch)
        if drift:
            once *= math.exp(drift * math.sqrt(2 * math.log(k)))
        wire = exchange(k, n) if k > 1 else 0.0
        if law in ("ring", "stragglers"):  # the backward pass overlaps with the exchange
            last = forward * once + max((1 - forward) * once, wire) + 0.1 * wire
        else:
            last = (once**gamma + wire**gamma) ** (1 / gamma)
        total = (cell.accumulate - 1) * once + last
        feed = host * per_sample * batch * cell.accumulate * k / n
        return max(total, feed)

    sigma = noise if noise is not None else float(rng.uniform(0.03, 0.1))
    return World(law, sigma, per_node, batches, step, outliers, rng)


def _compute(rng: np.random.Generator, batches: list[int]) -> Callable[[int], float]:
    """Return seconds of a pass by batch: affine or with a floor, some with jumps."""
    per_sample = float(np.exp(rng.uniform(math.log(2e-4), math.log(2e-2))))
    fixed = per_sample * float(np.exp(rng.uniform(math.log(2), math.log(80))))
    q = float(rng.choice([1.0, 1.0, 2.0, 5.0]))
    jump = float(rng.choice([0.0, 0.05]))
    jumps = {batch: math.exp(jump * rng.standard_normal()) for batch in BATCHES}
    return lambda batch: jumps.get(batch, 1.0) * (fixed**q + (per_sample * batch) ** q) ** (1 / q)


def _exchange(
    law: str, rng: np.random.Generator, typical: float, per_node: int
) -> Callable[[int, int], float]:
    """Return seconds of the exchange by workers and nodes."""
    within = typical * float(np.exp(rng.uniform(math.log(0.03), math.log(0.8))))
    between = within * float(np.exp(rng.uniform(math.log(1.2), math.log(8))))
    slope = float(rng.uniform(0, 0.04))
    power = float(rng.uniform(0.1, 0.35))

    def seconds(k: int, n: int) -> float:
        base = within if n == 1 else between
        if law == "p-norm":
            return base * (1 + slope * (k - 2))
        if law == "tree":
            return base * (1 + 5 * slope * math.log2(k / 2))
        ring = 2 * (k - 1) / k
        if law == "hierarchical":
            each = k / n
            inner = within * 2 * (each - 1) / each
            return inner + (between * 2 * (n - 1) / n if n > 1 else 0.0)
        if law == "congestion":
            return base * ring * n**power
        return base * (ring + slope / 4 * (k - 1))

    return seconds


Split = Callable[[list[Cell], np.random.Generator], tuple[list[Cell], list[Cell]]]


def up_to(most: int, asked: Sequence[int], *, one_node: bool = False) -> Split:
    """Return the split of cells by their number of workers."""

    def split(cells: list[Cell], _: np.random.Generator) -> tuple[list[Cell], list[Cell]]:
        fit = [c for c in cells if c.num_workers <= most and (c.num_nodes == 1 or not one_node)]
        return fit, [c for c in cells if c.num_workers in asked]

    return split


def half(cells: list[Cell], rng: np.random.Generator) -> tuple[list[Cell], list[Cell]]:
    order = rng.permutation(len(cells))
    middle = len(cells) // 2
    return [cells[i] for i in order[:middle]], [cells[i] for i in order[middle:]]


def ten(cells: list[Cell], rng: np.random.Generator) -> tuple[list[Cell], list[Cell]]:
    small = [c for c in cells if c.num_workers <= 16]
    fit = [small[i] for i in rng.permutation(len(small))[:10]]
    return fit, [c for c in cells if c not in fit]


def nodes(cells: list[Cell], _: np.random.Generator) -> tuple[list[Cell], list[Cell]]:
    fit = [c for c in cells if c.num_nodes == 1 or c.num_workers == 2]
    return fit, [c for c in cells if c not in fit]


TASKS: dict[str, Split] = {
    "four": up_to(4, (16, 64)),
    "one node": up_to(4, (16, 64), one_node=True),
    "eight": up_to(8, (16, 32, 64)),
    "half": half,
    "ten": ten,
    "nodes": nodes,
}
