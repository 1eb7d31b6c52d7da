"""The plot of replayed searches: which share of them has found the best, over search time."""

import math
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from recorded import Task
from registry import OURS, REGISTRY
from replay import LIMIT

Row = dict[str, Any]
"""A search: table, contestant, seed, its times within margins, clock, CPU seconds, trials."""
# Okabe and Ito's colours by library, line styles within one.
STYLES: dict[str, tuple[str, list[Any]]] = {
    "raybench": ("#000000", ["-", "--", "-.", ":"]),
    "Ray": ("#D55E00", ["-", "--", ":"]),
    "Optuna": ("#0072B2", ["-", "--"]),
    "Syne Tune": ("#009E73", ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1))]),
    "NePS": ("#CC79A7", ["-", "--"]),
    "SMAC3": ("#E69F00", ["-", "--"]),
    "FLAML": ("#56B4E9", ["-", "--"]),
    "random": ("#999999", ["--", "-"]),
}


def key_of(margin: float) -> str:
    """Name the times of a margin."""
    return f"within_{round(100 * margin)}"


def draw(rows: list[Row], tasks: dict[str, Task], margin: float, file: Path) -> None:
    """Plot the share of searches within the margin over search time, one panel a table."""
    figure = Figure(figsize=(5.2 * len(tasks) + 2.4, 4.4), dpi=100, layout="constrained")
    panels = figure.subplots(1, len(tasks), squeeze=False, sharey=True)[0]
    handles = {}
    for axes, (table, task) in zip(panels, tasks.items(), strict=True):
        for name in dict.fromkeys(str(row["contestant"]) for row in rows):
            own = [r for r in rows if r["table"] == table and r["contestant"] == name]
            if not own:
                continue
            times = sorted(row[key_of(margin)] for row in own)
            # Nothing is known after the last search has ended without.
            ended = max((r["clock"] for r in own if math.isinf(r[key_of(margin)])), default=LIMIT)
            library = next(key for key in STYLES if name.startswith(key))
            colour, dashes = STYLES[library]
            number = [n for n in REGISTRY if n.startswith(library)].index(name)
            hits = [time for time in times if not math.isinf(time)]
            shares = [i / len(times) for i in range(len(hits) + 1)]
            (handles[name],) = axes.step(
                [0.5, *hits, max([ended, *hits])],
                [*shares, shares[-1]],
                where="post",
                color=colour,
                linestyle=dashes[number % len(dashes)],
                linewidth=2.6 if name == OURS else 1.5,
            )
        axes.set_xscale("log")
        axes.set_xlim(0.8, LIMIT)
        axes.set_ylim(0, 1.02)
        axes.set_xticks([1, 3, 10, 30, 100, 300], ["1", "3", "10", "30", "100", "300"])
        axes.set_title(f"{table}: {task.target:.1%} in {task.best_s:.2g} s at best", fontsize=10)
        axes.set_xlabel("search time [best times to target]")
        axes.grid(color="#EEEEEE")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(f"share of searches within {margin:.0%} of the best")
    figure.legend(
        list(handles.values()), list(handles), loc="outside right center", frameon=False, fontsize=9
    )
    figure.savefig(file)
