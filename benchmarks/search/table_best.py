"""Cells of a recorded table that may be in its best tenth, and the scatter of their seeds."""

import math

import numpy as np
from recorded import Table, Task

SHARE = 0.1
Rated = tuple[str, float, int]
"""Optimizer, learning rate, global batch size."""
Indices = tuple[int, int, int]
"""The same as indices of the table."""


def best_cells(name: str) -> list[Rated]:
    """Return the cells that may be in the best tenth by time to the default target, best first.

    With measured step times, this is the tenth with the fewest seconds on any worker count. Without
    them, it is the tenth of each batch size with the fewest samples (steps of a batch size take
    about as long with every optimizer), then the cells with the next rates on both sides.
    """
    table = Table(name)
    target = table.default_target()
    chosen = by_seconds(table, target) if table.meta["step_s"] else by_samples(table, target)
    meta = table.meta
    return [
        (meta["optimizers"][o], meta["rates"][meta["optimizers"][o]][r], meta["batches"][b])
        for o, r, b in chosen
    ]


def by_seconds(table: Table, target: float) -> list[Indices]:
    """Return the tenth of the cells with the fewest seconds on their best worker count."""
    fastest: dict[Indices, float] = {}
    for config in table.configs():
        cell = table.cell(config)
        fastest[cell] = min(fastest.get(cell, math.inf), table.tta(config, target))
    ordered = sorted(fastest, key=lambda cell: fastest[cell])
    return ordered[: math.ceil(SHARE * len(ordered))]


def by_samples(table: Table, target: float) -> list[Indices]:
    """Return the tenth of every batch size with the fewest samples, then the neighboring rates."""
    hits = table.mean >= target
    samples = table.samples[np.arange(hits.shape[2]), hits.argmax(-1)]
    needed = np.where(hits.any(-1), samples, np.inf)
    num_rates = needed.shape[1]
    best: list[Indices] = []
    for rank in range(math.ceil(SHARE * needed[..., 0].size)):
        for b in range(needed.shape[2]):
            o, r = divmod(int(needed[..., b].argsort(axis=None, kind="stable")[rank]), num_rates)
            if needed[o, r, b] < np.inf:
                best.append((o, r, b))
    beside = [(o, r + way, b) for o, r, b in best for way in (-1, 1) if 0 <= r + way < num_rates]
    return list(dict.fromkeys([*best, *beside]))


def summary(name: str) -> str:
    """Return a sentence on the best configuration, those near it, and the scatter of seeds."""
    task = Task(Table(name))
    table, best = task.table, task.best_config
    squares, freedom, seeds = 0.0, 0, []
    for o, r, b in by_seconds(table, task.target):
        curves = table.accuracy[o, r, b]
        curves = curves[~np.isnan(curves[:, 0])]
        seeds.append(len(curves))
        hits = curves >= task.target
        logs = np.log(table.samples[b, hits.argmax(-1)[hits.any(-1)]])
        if len(logs) > 1:
            squares += float(((logs - logs.mean()) ** 2).sum())
            freedom += len(logs) - 1
    sigma = math.sqrt(squares / freedom) if freedom else math.nan
    return (
        f"{name}: target {task.target:.1%}, best {task.best_s:.3f} s ({best.optimizer}, rate "
        f"{best.rate:g}, {best.num_workers} x {best.batch_size_per_worker}); of "
        f"{len(table.configs())} configurations {task.close_configs(0.05)} within 5 %, "
        f"{task.close_configs(0.1)} within 10 %; of the best tenth ({len(seeds)} cells) at least "
        f"{min(seeds)} seeds a cell, pooled sigma of the log of time to target {sigma:.2f}"
    )
