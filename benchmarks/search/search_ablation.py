"""Claim: every ingredient of raybench's search pays.

As `search_table.py` (same tables, clock and metric): raybench against itself without one
ingredient at a time. Prints the ratio of the medians, and of the means, to the whole; below 1 the
search is better without it, which is printed like the rest.

    python benchmarks/search/search_ablation.py [--seeds 20] [--first-seed 100] [--jobs 2]

About 12 minutes on two cores. Writes results/search_ablation.md; has no bar.
"""

import os
import sys

from registry import OURS, TPE, VARIANTS
from search_plot import key_of
from search_table import (
    geometric_mean,
    load_task,
    parse,
    run_all,
    summaries,
    table_lines,
)

from raybench.results.store import machine, versions

WITHOUT = (
    "raybench, workers sampled",
    "raybench, no priors",
    "raybench, no cap",
    "raybench, no stops",
    TPE,
    "raybench, random",
)


def main() -> int:
    """Run the searches and print the table."""
    assert set(WITHOUT) <= set(VARIANTS)
    options = parse([OURS, *WITHOUT])
    tasks = {t: load_task(t, options.folder, options.targets.get(t)) for t in options.tables}
    rows = run_all(options)
    cells = summaries(rows)
    key = key_of(options.margin)
    lines = table_lines(tasks, cells, options.margin)
    lines += ["| without | median, times the whole search's | mean |", "|---|---|---|"]
    for name in WITHOUT:
        if not all((table, one) in cells for table in tasks for one in (name, OURS)):
            continue  # not among --contestants
        ratios = [
            geometric_mean([cells[t, name][key][what] / cells[t, OURS][key][what] for t in tasks])
            for what in ("median", "mean")
        ]
        lines.append(f"| {name} | {ratios[0]:.2f} | {ratios[1]:.2f} |")
    lines += [
        "",
        f"{options.seeds} seeds from {options.first_seed}; {machine()['processor']}, load "
        f"{os.getloadavg()[0]:.1f}, {versions()}",
    ]
    print("\n".join(lines))
    options.out.mkdir(exist_ok=True)
    (options.out / "search_ablation.md").write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
