"""Claim: the lead over stock Ray is not the priors alone.

As `search_table.py` (same tables, clock and metric), with other opponents. Bars, on the geometric
mean over tables of ratios of medians to within 5 %:

- raybench without priors: stock Ray needs at least 1.2 times as long;
- the same priors given to stock Ray (`points_to_evaluate`): at least 1.0 times;
- wrong priors, rates x 10 and / 30: raybench needs at most 1.5 times as long as stock Ray.

    python benchmarks/search_fair.py [--seeds 20] [--jobs 2]

About 30 minutes on two cores. Writes results/search_fair.{md,json,png}; exit 1 below a bar.
"""

import json
import os
import sys

from search_plot import draw, key_of
from search_table import (
    geometric_mean,
    load_task,
    parse,
    run_all,
    summaries,
    table_lines,
)

from raybench.results.store import machine, versions

STOCK = "Ray, ASHA by seconds"
OURS = "raybench"
CHECKS = (
    ("without priors, stock Ray over raybench", STOCK, "raybench, no priors", 1.2, True),
    ("the same priors, Ray over raybench", "Ray, the same priors", OURS, 1.0, True),
    ("rates x 10, raybench over stock Ray", "raybench, rates x 10", STOCK, 1.5, False),
    ("rates / 30, raybench over stock Ray", "raybench, rates / 30", STOCK, 1.5, False),
)
"""What, slower, faster, bar, and whether the bar is a least (or a most)."""


def main() -> int:
    """Run the searches, print the table, hold the bars."""
    options = parse(list(dict.fromkeys(name for check in CHECKS for name in check[1:3])))
    tasks = {t: load_task(t, options.folder, options.targets.get(t)) for t in options.tables}
    rows = run_all(options)
    cells = summaries(rows)
    key = key_of(options.margin)
    lines = table_lines(tasks, cells, options.margin)
    bars = []
    for what, slower, faster, bar, is_least in CHECKS:
        if not all((table, name) in cells for table in tasks for name in (slower, faster)):
            lines.append(f"- {what}: not compared")
            continue
        ratio = geometric_mean(
            [cells[t, slower][key]["median"] / cells[t, faster][key]["median"] for t in tasks]
        )
        is_met = ratio >= bar if is_least else ratio <= bar
        bars.append((what, ratio, bar, is_met))
        word = "at least" if is_least else "at most"
        lines.append(f"- {what}: {ratio:.2f} ({word} {bar:g}) {'met' if is_met else 'MISSED'}")
    lines += [
        "",
        f"{options.seeds} seeds from {options.first_seed}; {machine()['processor']}, load "
        f"{os.getloadavg()[0]:.1f}, {versions()}",
    ]
    print("\n".join(lines))
    options.out.mkdir(exist_ok=True)
    (options.out / "search_fair.md").write_text("\n".join(lines) + "\n")
    text = json.dumps({"bars": bars, "searches": rows}, indent=1).replace(": Infinity", ": null")
    (options.out / "search_fair.json").write_text(text + "\n")
    draw(rows, tasks, options.margin, options.out / "search_fair.png")
    return 0 if all(is_met for *_, is_met in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
