"""Claim: the time to train of a family's largest system is predicted from its smaller systems.

A family, in the published logs of MLPerf Training v5.0 and v5.1 submissions
(`scaling/mlperf_families.csv` of RAYBENCH_DATA; not verified by MLCommons), has systems of one
submitter and one GPU type at three scales or more. All scales but the largest give

    the seconds of a step at the largest scale's batch    raybench, Ernest's law, Pollux's
    times the steps: samples to target over that batch    `samples_to_target` fitted to all cells of
                                                          the benchmark on fewer GPUs, whoever ran
                                                          them: it does not depend on the machine
    times the share of evaluation and start               median of the family's own scales

for comparison with the published median time to train. The batch is assumed to be known, because
the submitter chooses it. The partition of the model (tensor, context parallel) and its precision
change within families and are not used. Without logged samples, those of the family's own scales
are used.

    RAYBENCH_DATA=... python benchmarks/scaling/mlperf.py

Prints every family; `*` marks a time outside of its 90 % interval. Half a minute on one core.
Writes results/mlperf.json, which a test compares with the table of docs/benchmarks.md.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from extrapolation import COLD, OURS, PEERS, RESULTS, mlperf_cells

from raybench.scaling.averaged import ThroughputModel
from raybench.scaling.measurements import Observed
from raybench.scaling.samples_to_target import fit
from raybench.spec.errors import UserError

FAMILY = ["release", "benchmark", "submitter", "gpu_type"]
NEEDED = ["benchmark", "train_gpus", "global_batch_size", "samples_to_target"]


def needed_samples(known: pd.DataFrame, batch: int) -> tuple[float, float]:
    """Return samples to target at a batch size, and half of the 90 % interval of its logarithm."""
    runs = known.rename(columns={"global_batch_size": "batch_size"})
    try:
        row = fit(runs[["batch_size", "samples_to_target"]]).predict([batch]).iloc[0]
    except UserError:  # a single batch size
        return float(known["samples_to_target"].median()), 0.0
    return float(row["samples"]), math.log(row["high"] / row["low"]) / 2


def predict(family: pd.DataFrame, everybody: pd.DataFrame) -> dict[str, Any] | None:
    """Return the row of a family's largest scale; None with fewer than two smaller scales."""
    most = int(family["train_gpus"].max())
    below, there = family[family["train_gpus"] < most], family[family["train_gpus"] == most]
    if below["train_gpus"].nunique() < 2:
        return None
    there = there.sort_values("time_to_train_s").head(1)
    batch = int(there["global_batch_size"].iloc[0])
    rest = 1.0
    if below["samples_to_target"].notna().all():
        of = everybody[everybody["benchmark"] == below["benchmark"].iloc[0]]
        known = of[(of["train_gpus"] < most) & of["samples_to_target"].notna()]
        steps_s = below["samples_to_target"] / below["global_batch_size"] * below["step_s"]
        rest = float((below["time_to_train_s"] / steps_s).median())
    else:
        whole = below["time_to_train_s"] / below["step_s"] * below["global_batch_size"]
        known = below.assign(samples_to_target=whole)
    samples, unsure = needed_samples(known, batch)
    seconds_a_step = samples / batch * rest
    both = pd.concat([below, there])
    *cells, asked = mlperf_cells(both.to_dict("records"))
    rows = list(zip(cells, map(float, below["step_s"]), strict=True))
    (step,) = ThroughputModel.fit(Observed.of(rows)).predict([asked])
    steps = {OURS: step.step_s}
    steps |= {name: float(law(rows, [asked])[0]) for name, law in PEERS.items()}
    published = float(there["time_to_train_s"].iloc[0])
    below_s = math.hypot(unsure, math.log(step.step_s / step.low_s))
    above_s = math.hypot(unsure, math.log(step.high_s / step.step_s))
    predicted = step.step_s * seconds_a_step
    return {
        **{key: str(there[key].iloc[0]) for key in FAMILY},
        "from": sorted(int(one) for one in below["train_gpus"].unique()),
        "gpus": most,
        "published_s": published,
        "predicted_s": predicted,
        "low_s": predicted * math.exp(-below_s),
        "high_s": predicted * math.exp(above_s),
        "step_error": step.step_s / float(there["step_s"].iloc[0]) - 1,
        "errors": {name: one * seconds_a_step / published - 1 for name, one in steps.items()},
    }


def is_inside(row: dict[str, Any]) -> bool:
    """Whether the published time lies in the interval."""
    return bool(row["low_s"] <= row["published_s"] <= row["high_s"])


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the table of minutes and the errors of each law."""
    head = ["benchmark", "submitter, GPU", "GPUs", "published min", "predicted (90 %)", OURS]
    found = [f"| {' | '.join([*head, *PEERS])} |", f"|{'---|' * (len(head) + len(PEERS))}"]
    for row in rows:
        miss = "" if is_inside(row) else " *"
        ends = f"{_minutes(row['low_s'])} to {_minutes(row['high_s'])}"
        cells = [
            f"{row['benchmark']} {row['release']}",
            f"{row['submitter']}, {row['gpu_type'].split('-')[0]}",
            f"{', '.join(map(str, row['from']))} -> {row['gpus']}",
            _minutes(row["published_s"]),
            f"{_minutes(row['predicted_s'])} ({ends}){miss}",
            *(f"{error:+.0%}" for error in row["errors"].values()),
        ]
        found.append(f"| {' | '.join(cells)} |")
    return found


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.3g}"


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return a sentence on the median errors."""
    medians = {
        name: np.median([abs(row["errors"][name]) for row in rows]) for name in (OURS, *PEERS)
    }
    inside = sum(map(is_inside, rows))
    said = ", ".join(f"{name} {error:.0%}" for name, error in medians.items())
    return (
        f"Median error of {len(rows)} families: {said}; {inside} of the published times are in the "
        "90 % interval."
    )


def main() -> int:
    """Predict every family, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    folder = Path(os.environ["RAYBENCH_DATA"]) / "scaling"
    families = pd.read_csv(folder / "mlperf_families.csv")
    files = ("mlperf_families.csv", "mlperf_v50_cells.csv", "mlperf_v51_cells.csv")
    everybody = pd.concat([pd.read_csv(folder / name)[NEEDED] for name in files]).drop_duplicates()
    rows = []
    for key, family in families.groupby(FAMILY):
        if " ".join(key[1:]) not in COLD and (row := predict(family, everybody)) is not None:
            rows.append(row)
    print("\n".join(lines(rows)))
    print(f"\n{summary(rows)}")
    (options.out / "mlperf.json").write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
