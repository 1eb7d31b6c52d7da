"""Bars of `benchmarks/scaling`, and its recorded results, which docs/benchmarks.md repeats."""

import json
from pathlib import Path
from typing import Any

from raybench.scaling.throughput import PRIORS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/benchmarks.md").read_text()


def results_of(name: str) -> Any:
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())


def test_chosen_batch_sizes_are_within_10_percent_in_all_but_one_case(module, data):
    """On Zeus's traces."""
    folder, zeus, targets = data("zeus"), module("zeus"), module("samples_to_target").TARGETS
    cases = [
        case for task, target in targets.items() for case in zeus.cases_of(folder, task, target)
    ]
    assert len(cases) == 24
    lost = [zeus.losses(case, "all")["raybench"][1] for case in cases]
    assert sum(loss > 0.1 for loss in lost) <= 1, lost


def test_real_steps_on_eight_hosts_are_predicted_from_two(module, data):
    """The required accuracy on ElasticFlow's tables; the benchmark covers all other tables."""
    extrapolation = module("extrapolation")
    groups = extrapolation.sets(data("scaling") / "scaling")["ElasticFlow"]
    results = {}
    for rows in groups.values():
        two_hosts = extrapolation.tasks(rows).get("two hosts")
        for key, values in (extrapolation.case(*two_hosts, PRIORS) if two_hosts else {}).items():
            results.setdefault(key, []).extend(values)
    row = extrapolation.summary(results)
    assert row["raybench"] <= 0.08
    assert row["raybench"] <= min(row["Ernest"], row["Pollux"])
    assert row["inside"] >= 0.85


def test_the_table_of_predictions_matches_the_results(module):
    rows = results_of("extrapolation")["rows"]
    every = rows.pop("all")
    assert "\n".join(module("extrapolation").lines(rows)) in PAGE
    lowest, highest = (extreme(row["inside"] for row in every.values()) for extreme in (min, max))
    words = " ".join((ROOT / "docs/scaling.md").read_text().split())
    assert f" {100 * lowest:.0f} to {100 * highest:.0f} % of the steps" in words
    widest = max(row["width"] for row in rows["one host"].values())
    assert f"up to {1 + widest:.1f} times" in words


def test_the_table_of_mlperf_families_matches_the_results(module):
    mlperf, rows = module("mlperf"), results_of("mlperf")
    assert "\n".join(mlperf.lines(rows)) in PAGE
    assert mlperf.summary(rows) in PAGE
