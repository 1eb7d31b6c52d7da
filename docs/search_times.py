"""Draw the README's first picture: `python docs/search_times.py`.

Time until each tool's best configuration is within 5 % of the grid's best, from the files in
`benchmarks/results/`.
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parent))
from reference import TABLES, TOOLS, search_cells

OUT = Path(__file__).with_name("search_times.png")
OURS = ("raybench, then its race", "raybench")
"""The whole study where it was replayed, else its search alone."""
MARKERS = "ovs^Dd"


def main() -> None:
    """Write the picture."""
    cells = search_cells()
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots()
    places = {table: -place for place, table in enumerate(TABLES)}
    peers = [tool for tool in TOOLS if tool not in (*OURS, "random")]
    for tool, marker in zip(peers, MARKERS, strict=True):
        found = [cells.get((tool, table)) for table in TABLES]
        shown = [(one, places[table]) for one, table in zip(found, TABLES, strict=True) if one]
        for is_reached in (True, False):
            points = [(one["median"], y) for one, y in shown if (one["never"] < 0.5) == is_reached]
            axes.scatter(
                [x for x, _ in points],
                [y for _, y in points],
                marker=marker,
                s=45,
                color="0.45" if is_reached else "none",
                edgecolors="0.45",
                label=TOOLS[tool] if is_reached else None,
            )
    for table, y in places.items():
        ours = next(cells[tool, table] for tool in OURS if (tool, table) in cells)
        is_first = y == 0
        axes.scatter(ours["median"], y, s=140, color="C0", label="raybench" if is_first else None)
    axes.set(xscale="log", yticks=list(places.values()), yticklabels=list(TABLES.values()))
    axes.set_xticks([3, 10, 30, 100, 300], ["3", "10", "30", "100", "300"])
    axes.set_xlabel("time, in multiples of the best configuration's own training time (log scale)")
    axes.set_title("Time until a configuration within 5 % of the best is held: less is better")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside right center", title="hollow: half of the\nsearches never did")
    figure.savefig(OUT, dpi=120)


if __name__ == "__main__":
    main()
