"""The tables of `pools.py`."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from pool_policies import RACED
from pool_worlds import Pool

Cell = dict[str, Any]
"""Results of a policy's studies on a pool."""
Bar = tuple[str, float, float, bool]
"""Label, value, bar, and whether it is met."""
SHARES = {"criteo1tb": 0.93, "fastmri": 0.84}
"""Bars of raybench's race: share of studies whose named configuration is within 5 % of the best."""
SAME_COST = 1.1
RACES = "raybench, race"
SOURCES: dict[str, Callable[[str], bool]] = {
    "AlgoPerf": lambda pool: not pool.startswith("zeus"),
    "Zeus": lambda pool: pool.startswith("zeus"),
}


def key_of(row: Cell) -> tuple[str, str]:
    return row["pool"], row["policy"]


def means(cells: list[Cell], name: str, is_in: Callable[[str], bool]) -> dict[str, float] | None:
    """Return means of a policy over its pools, with those of the race there; None without pools."""
    base = {row["pool"]: row for row in cells if row["policy"] == RACED and is_in(row["pool"])}
    rows = {row["pool"]: row for row in cells if row["policy"] == name and row["pool"] in base}
    if not rows:
        return None
    found = {
        key: float(np.mean([row[key] for row in rows.values()]))
        for key in ("within_5", "within_10", "never", "runs", "cpu_s")
    }
    costs = [math.log(rows[pool]["cost"] / base[pool]["cost"]) for pool in rows]
    ended = [min(row["worst_tenth"], 10.0) for row in rows.values()]
    return found | {
        "cost": math.exp(float(np.mean(costs))),
        "worst_tenth": math.exp(float(np.mean(np.log(ended)))),
        "raced_within_5": float(np.mean([base[pool]["within_5"] for pool in rows])),
        "pools": float(len(rows)),
        "n": float(min(row["n"] for row in rows.values())),
    }


def bars(cells: list[Cell]) -> list[Bar]:
    """Return the bars of raybench's race on the pools that were run."""
    held: list[Bar] = []
    for row in cells:
        if row["policy"] == RACED and row["pool"] in SHARES:
            bar = SHARES[row["pool"]]
            share = row["within_5"]
            held.append((f"{row['pool']}, within 5 %", share, bar, share >= bar))
    for source, is_in in SOURCES.items():
        names = dict.fromkeys(row["policy"] for row in cells)
        others = {n: means(cells, n, is_in) for n in names if not n.startswith(RACES)}
        leads = {
            name: mean["raced_within_5"] - mean["within_5"]
            for name, mean in others.items()
            if mean is not None and mean["cost"] <= SAME_COST
        }
        if leads:
            nearest = min(leads, key=lambda name: leads[name])
            what = f"{source}, lead within 5 % over the best of no greater cost ({nearest})"
            held.append((what, leads[nearest], 0.0, leads[nearest] >= 0))
    return held


def lines_of(known: list[Pool], cells: list[Cell], held: list[Bar]) -> list[str]:
    """Return the lines of the means over pools, the bars, and the table of each pool."""
    lines: list[str] = []
    for source, is_in in SOURCES.items():
        count = sum(is_in(pool.name) for pool in known)
        if not count:
            continue
        lines += [
            f"{source}, mean of pools:",
            "",
            "| policy | pools | within 5 % | the race of 24 there | within 10 % | "
            "nine of ten within | none named | cost | runs | CPU s | n a pool |",
            "|---" * 11 + "|",
        ]
        for name in dict.fromkeys(row["policy"] for row in cells):
            mean = means(cells, name, is_in)
            if mean is not None:
                lines.append(
                    f"| {name} | {mean['pools']:.0f} of {count} | {mean['within_5']:.0%} | "
                    f"{mean['raced_within_5']:.0%} | {mean['within_10']:.0%} | "
                    f"{mean['worst_tenth']:.2f} | {mean['never']:.0%} | {mean['cost']:.2f} | "
                    f"{mean['runs']:.0f} | {mean['cpu_s']:.2f} | {mean['n']:.0f} |"
                )
        lines.append("")
    lines += [
        f"- {what}: {100 * value:.1f} (bar {100 * bar:.1f}) {'met' if good else 'MISSED'}"
        for what, value, bar, good in held
    ]
    lines += [
        "",
        f"Cost: training seconds over those of {RACED} on the same pools, geometric mean; nine of "
        "ten within: median time to target over the best, geometric mean of pools, 10 at most.",
        "",
    ]
    for pool in known:
        lines += [*_pool_lines(pool, [row for row in cells if row["pool"] == pool.name]), ""]
    return lines


def _pool_lines(pool: Pool, rows: list[Cell]) -> list[str]:
    medians = sorted(option.median_s / pool.best_s for option in pool.options)
    near = ", ".join(
        f"{sum(m <= 1 + margin for m in medians)} within {margin:.0%}" for margin in (0.05, 0.1)
    )
    seeds = sorted({len(option.runs) for option in pool.options})
    lines = [
        f"{pool.name}: {len(pool.options)} configurations, {' or '.join(map(str, seeds))} seeds, "
        f"{pool.num_workers} workers, best median {pool.best_s:,.0f} s, {near}",
        "",
        "| policy | within 5 % | within 10 % | median | nine of ten | none named | "
        "unused seeds within 10 % (n) | each seed once, within 5 % | worker-seconds | runs | n |",
        "|---" * 11 + "|",
    ]
    for row in rows:
        unused = row["unused_within_10"]
        once = row["once_within_5"]
        each = "-" if once is None else f"{once:.0%}"
        held_out = "-" if unused is None else f"{unused:.0%} ({row['unused_n']})"
        lines.append(
            f"| {row['policy']} | {row['within_5']:.0%} | {row['within_10']:.0%} | "
            f"{row['median']:.2f} | {row['worst_tenth']:.2f} | {row['never']:.0%} | {held_out} | "
            f"{each} | {row['worker_seconds']:,.0f} | {row['runs']:.0f} | {row['n']} |"
        )
    return lines
