"""Claim: `diagnose --fastest` ends within 5 % of the fastest setting, in a tenth of the time.

The whole grid of the axes (framework, workers, micro-batch, prefetch, compile) is measured by the
same probes, in rounds of random order. The setting that `--fastest` has chosen is a cell of it, and
so are two common choices: *largest batch*, one pass of the largest micro-batch that runs, found by
halving (as in Lightning and Composer), and *compile always*. All are compared by the seconds of the
grid.

    python benchmarks/speed/axes.py [--workloads mlp,conv,table] [--rounds 3] [--batch 64]

The grid is measured after `--fastest` and finds its compiled code on disk, so the shares are upper
bounds. On two cores the three small workloads take an hour, `resnet18` and `distilbert` hours each.
With `--batch 65` there are few settings, which checks in minutes that everything runs. Bars: within
5 % of the best, at most 10 % of the grid's seconds; exit 1 below them. Prints losses and wins.
"""

import argparse
import csv
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import raybench
from raybench.cluster.signals import Interrupt
from raybench.data.dataset import Dataset
from raybench.models.find import load_workload_dataset
from raybench.report.console import make_console
from raybench.results.store import DIAGNOSIS, Store, machine, versions
from raybench.runs.diagnose import leeway_of, time_step
from raybench.runs.lifecycle import single_runs
from raybench.runs.wait_watch import Deadline, RunLines, live_session
from raybench.scaling.diagnosis import AXES, Leeway, variants_of
from raybench.spec.documents import read_mapping
from raybench.spec.run import RunSpec

NEAR, SHARE = 1.05, 0.1
DIGITS = {"name": "digits", "image_size": 28}
ROWS = 4000


def table(folder: Path) -> dict[str, Any]:
    """Write a table of forty columns of numbers and a class; return its dataset spec."""
    rng = np.random.default_rng(0)
    with (folder / "table.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*(f"x{i}" for i in range(40)), "label"])
        rows.writerows(
            [*map(float, rng.normal(size=40).round(3)), f"c{i % 7}"] for i in range(ROWS)
        )
    return {"name": "csv", "path": str(folder / "table.csv"), "label": "label"}


def texts(folder: Path) -> dict[str, Any]:
    """Write texts of 20 words with two classes; return their dataset spec."""
    rng = np.random.default_rng(0)
    with (folder / "texts.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for i in range(ROWS):
            words = " ".join(f"word{n}" for n in rng.integers(0, 2000, 20))
            rows.writerow([words, f"c{i % 2}"])
    given = {"name": "csv", "path": str(folder / "texts.csv"), "label": "label", "text": "text"}
    return given | {"sequence_length": 32}


PICTURES = {"name": "synthetic", "shape": [32, 32, 3], "num_classes": 10, "num_samples": ROWS}
WORKLOADS: dict[str, tuple[str, Any, int]] = {
    "mlp": ("mlp", lambda folder: DIGITS, 64),
    "conv": ("mnist_small", lambda folder: DIGITS, 64),
    "resnet18": ("resnet18", lambda folder: PICTURES, 64),
    "distilbert": ("transformers:distilbert", texts, 32),
    "table": ("mlp", table, 256),
}
"""Model, function that returns the dataset spec, and samples of a step, by name."""


@dataclass
class Grid:
    """All settings of a run spec, with their step times."""

    specs: list[RunSpec]
    step_s: dict[int, list[float]] = field(default_factory=dict)
    spent_s: float = 0.0

    def median(self, spec: RunSpec) -> float:
        """Return the median step time of a setting; infinite if it failed."""
        times = self.step_s.get(self.specs.index(spec), [])
        return statistics.median(times) if times else float("inf")


def all_variants(spec: RunSpec, leeway: Leeway) -> list[RunSpec]:
    """Return all combinations of the variants along all axes, the given spec first."""
    specs = [spec]
    for axis in AXES:
        found = [(one, variants_of(axis, one, leeway)) for one in specs]
        specs = [
            variant
            for one, variants in found
            for variant in ([one] if isinstance(variants, str) else variants.values())
        ]
    return specs


def measure(
    grid: Grid, dataset: Dataset, folder: Path, rounds: int, steps: int, leeway: Leeway
) -> None:
    """Probe every setting in each round, in random order."""
    console, interrupt = make_console(sys.stderr), Interrupt()
    rng = np.random.default_rng(0)
    with live_session(None, interrupt, console) as session, Store(folder) as store:
        grid.specs = all_variants(grid.specs[0], leeway)
        deadline = Deadline(None, interrupt=interrupt)
        with single_runs(session, store, deadline, RunLines(console), wait_s=None) as single_run:
            for number in range(rounds):
                for index in rng.permutation(len(grid.specs)).tolist():
                    spec = grid.specs[index]
                    name = f"{index}-{number}"
                    step_s, record = time_step(
                        single_run, spec, dataset, name, "grid", steps=steps, may_fail=True
                    )
                    grid.spent_s += record.wall_s
                    if step_s is not None:
                        grid.step_s.setdefault(index, []).append(step_s)


def largest_batch(grid: Grid) -> RunSpec:
    """Return the setting with the largest micro-batch that runs, and nothing else changed."""
    spec = grid.specs[0]
    passes = sorted((w for w in grid.specs if _alike(w, spec)), key=lambda one: one.accumulate)
    return next(one for one in passes if grid.median(one) < float("inf"))


def _alike(one: RunSpec, spec: RunSpec) -> bool:
    cut = {"batch_size_per_worker": 1, "accumulate": 1}
    return one.model_copy(update=cut) == spec.model_copy(update=cut)


def compare(name: str, folder: Path, rounds: int, batch: int | None) -> bool:
    """Measure one workload; print each choice over the best; return whether the bars are met."""
    workload, data, samples = WORKLOADS[name]
    content = {"workload": workload, "dataset": data(folder)}
    content["batch_size_per_worker"] = batch or samples
    content["objective"] = {"kind": "best_at_budget", "max_train_seconds": 60}
    spec = RunSpec.model_validate(content)
    raybench.diagnose(spec, fastest=True, out=folder / "fastest", repeats=max(rounds, 3))
    answer = read_mapping(folder / "fastest" / DIAGNOSIS)
    taken = RunSpec.model_validate(answer["spec"]).without_defaults()
    _, dataset = load_workload_dataset(spec.workload, spec.dataset, spec.model, spec.data)
    grid = Grid([spec])
    leeway = leeway_of(None, spec, dataset)
    measure(grid, dataset, folder / "grid", rounds, answer["steps"], leeway)
    best = min(grid.specs, key=grid.median)
    share = answer["seconds"] / grid.spent_s
    print(f"\n{name}: {len(grid.specs)} ways, {grid.spent_s:.0f} s; --fastest {share:.1%} of that")
    ways = {"best": best, "--fastest": _in(grid, taken), "as it was": spec}
    ways |= {"largest batch": largest_batch(grid)}
    ways |= {"compile always": spec.model_copy(update={"compile": "default"})}
    for who, way in ways.items():
        times = grid.median(way) / grid.median(best)
        cut = f"{way.num_workers}x{way.batch_size_per_worker}x{way.accumulate}"
        print(
            f"  {who:15} {way.global_batch_size / grid.median(way):12,.0f} samples/s, "
            f"{times:.2f} times the best's step: {way.framework} {cut} {way.compile} "
            f"prefetch {way.prefetch}"
        )
    return grid.median(ways["--fastest"]) <= NEAR * grid.median(best) and share <= SHARE


def _in(grid: Grid, way: RunSpec) -> RunSpec:
    """Return the cell of the grid that equals a run spec."""
    keys = (
        *("framework", "num_workers", "batch_size_per_worker"),
        *("accumulate", "compile", "prefetch"),
    )
    return next(w for w in grid.specs if all(getattr(w, k) == getattr(way, k) for k in keys))


def main() -> int:
    """Compare the given workloads; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="mlp,conv,table")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, help="samples of a step (default: the workload's)")
    given = parser.parse_args()
    print(machine(), versions())
    held = []
    for name in given.workloads.split(","):
        with tempfile.TemporaryDirectory() as folder:
            held.append(compare(name, Path(folder), given.rounds, given.batch))
    print(f"\nbars held by {sum(held)} of {len(held)}")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
