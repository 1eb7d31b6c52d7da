"""Claim: a rate that was tuned on small networks is carried to a large one by `raybench forecast`.

Two networks (two hidden layers; two convolutions; MNIST, 6,000 training images) at four widths are
trained on a grid of rates, batches and seeds (`record`, one torch worker without Ray). `compare`
then draws small studies: 12 random cells at each of the three smaller widths, one seed each, whose
runs end at the target. From the errors at the length of the shortest run,
`raybench.scaling.forecast` predicts the rate of the largest width. Compared at that width are the
predicted rate alone, 6 rates of its interval, the best rate of the largest small study, and 6, 20
and 60 random rates. Results are samples to the target over the lowest median.

    RAYBENCH_DATA=DIR python benchmarks/search/widths.py record [--jobs 2]
    python benchmarks/search/widths.py compare [--studies 200]

Recording takes two hours on two cores, resumes where it was stopped, and writes
tables/widths_*.json. `compare` takes two minutes and writes results/widths.md with losses and wins;
exit 1 below a bar: 6 trials are within 5 % of the lowest in 8 of 10 draws, and the interval holds 9
of 10.
"""

import argparse
import functools
import itertools
import json
import math
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from raybench.commands.forecast import quantiles
from raybench.results.store import versions
from raybench.scaling.forecast import OptimumModel, SmallRun
from raybench.spec.objective import Objective, search_score

RESULTS = Path(__file__).parents[1] / "results" / "widths.md"
TABLES = Path(__file__).parents[1] / "tables"


class Network(NamedTuple):
    """A network and its training."""

    workload: str
    widths: tuple[int, ...]
    image_size: int
    validation_size: int
    epochs: int
    target: float


NETWORKS = {
    "dense": Network("table_workloads:Widths", (32, 96, 288, 864), 28, 5000, 8, 0.92),
    "conv": Network("table_workloads:ConvWidths", (12, 24, 48, 96), 14, 3000, 5, 0.94),
}
RATES = {"adam": tuple(1e-4 * 2**n for n in range(10))}
"""Learning rates by optimizer."""
BATCHES, SEEDS = (32, 128), (0, 1)
EVERY = 1500
Cell = tuple[int, str, float, int, int]
"""Width, optimizer, rate, batch, seed."""


def table_of(name: str) -> Path:
    """Return the file of a network's recorded runs."""
    return TABLES / f"widths_{name}.json"


def record(network: Network, cell: Cell) -> dict[str, Any]:
    """Train one cell in this process; return its accuracies, one for every EVERY samples."""
    from raybench.models.find import load_workload_dataset
    from raybench.spec.dataset_spec import DatasetSpec
    from raybench.spec.run import RunSpec
    from raybench.stats.clock import Ledger
    from raybench.training.base import find_backend
    from raybench.training.run import run

    width, optimizer, rate, batch, seed = cell
    spec = RunSpec(
        workload=network.workload,
        model={"width": width},
        dataset=DatasetSpec(
            name="mnist",
            limit=6000,
            image_size=network.image_size,
            validation_size=network.validation_size,
        ),
        objective=Objective(kind="best_at_budget", max_train_seconds=1e6),
        optimizer=optimizer,
        learning_rate=rate,
        batch_size_per_worker=batch,
        eval_every_samples=EVERY,
        epochs=network.epochs,
        seed=seed,
    )
    workload, dataset = load_workload_dataset(spec.workload, spec.dataset, spec.model)
    backend = find_backend("torch")
    world = backend.join(rank=0, num_workers=1, device="cpu", num_threads=1)
    trainer = backend.Trainer(spec, workload, dataset, world)
    values = [one.value for one in run(spec, dataset, trainer, world, Ledger("setup"))]
    parameters = trainer.num_parameters
    trainer.close()
    return {"cell": cell, "parameters": parameters, "accuracy": [round(v, 4) for v in values]}


def record_all(name: str, jobs: int) -> None:
    """Train the cells of a network that are not in its table yet, the narrow ones first."""
    network, file = NETWORKS[name], table_of(name).with_suffix(".jsonl")
    done = {tuple(json.loads(line)["cell"]) for line in _lines(file)}
    cells: list[Cell] = [
        (width, optimizer, rate, batch, seed)
        for optimizer, rates in RATES.items()
        for width, seed in itertools.product(network.widths, SEEDS)
        for rate, batch in itertools.product(rates, BATCHES)
        if batch == BATCH or width != network.widths[-1]
    ]
    fresh = [cell for cell in cells if cell not in done]
    with multiprocessing.get_context("spawn").Pool(jobs) as pool, file.open("a") as out:
        rows = pool.imap_unordered(functools.partial(record, network), fresh)
        for number, row in enumerate(rows, 1):
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(f"{name}: {number} of {len(fresh)}", file=sys.stderr, flush=True)
    table_of(name).write_text("[\n" + ",\n".join(_lines(file)) + "\n]\n")


SMALL_TRIALS, TRIALS = 12, 6
NEAR = 1.05
NEAR_BAR, HELD_BAR = 0.8, 0.9
BATCH = 128
"""Batch size of the large run."""
Costs = dict[tuple[float, int], list[float]]
"""Costs of all seeds by rate and batch."""


def costs_of(optimizer: str, width: int, rows: list[dict[str, Any]], target: float) -> Costs:
    """Return the costs of a width's recorded runs."""
    found: Costs = {}
    for row in rows:
        of_width, name, rate, batch, _ = row["cell"]
        if (of_width, name) == (width, optimizer):
            found.setdefault((rate, batch), []).append(cost(row["accuracy"], target))
    return found


def cost(values: list[float], target: float) -> float:
    """Return the log samples to the target, interpolated between evaluations.

    A miss costs more (`raybench.spec.objective.search_score`).
    """
    reached = next((index for index, value in enumerate(values) if value >= target), None)
    samples = None
    if reached is not None:
        before = values[reached - 1] if reached else 0.1
        samples = EVERY * (reached + (target - before) / (values[reached] - before))
    return search_score(
        Objective(target=target, max_train_seconds=EVERY * len(values)),
        time_to_target_s=samples,
        best_value=max(values),
        baseline_value=0.1,
    )


class Large:
    """The largest network at BATCH: the cost of a rate, interpolated between recorded ones."""

    def __init__(self, costs: Costs, rng: np.random.Generator) -> None:
        own = sorted((rate, seeds) for (rate, batch), seeds in costs.items() if batch == BATCH)
        self._rates = np.log([rate for rate, _ in own])
        self._costs = np.array([seeds for _, seeds in own])
        self._rng = rng
        self.range = float(self._rates[0]), float(self._rates[-1])
        """Log of the lowest and the highest recorded rate."""
        self.best = float(min(map(self.truth, np.exp(np.linspace(*self.range, 400)))))

    def truth(self, rate: float) -> float:
        """Return the mean cost of a rate over seeds."""
        return float(np.interp(math.log(rate), self._rates, self._costs.mean(axis=1)))

    def regret_of(self, rates: Sequence[float]) -> float:
        """Run each rate once; return the true cost of the best one over the lowest cost."""
        seeds = self._rng.integers(self._costs.shape[1], size=len(rates))
        ran = [
            np.interp(math.log(rate), self._rates, self._costs[:, seed])
            for rate, seed in zip(rates, seeds, strict=True)
        ]
        return math.exp(self.truth(rates[int(np.argmin(ran))]) - self.best)


def study_of(
    rows: list[dict[str, Any]], target: float, rng: np.random.Generator
) -> tuple[list[SmallRun], float]:
    """Draw a study of a small network.

    Returns:
        Its runs at the length of the shortest, and the rate of the run with the lowest cost.
    """
    cells: dict[tuple[float, int], list[list[float]]] = {}
    for row in rows:
        cells.setdefault((row["cell"][2], row["cell"][3]), []).append(row["accuracy"])
    names = list(cells)
    drawn = [names[n] for n in rng.choice(len(names), min(SMALL_TRIALS, len(names)), replace=False)]
    curves = {name: cells[name][rng.integers(len(cells[name]))] for name in drawn}
    ends = [
        next((at for at, value in enumerate(curve) if value >= target), len(curve) - 1)
        for curve in curves.values()
    ]
    size, end = float(rows[0]["parameters"]), min(ends)
    runs = [
        SmallRun(size, EVERY * (end + 1.0), batch, rate, 1 - curve[end])
        for (rate, batch), curve in curves.items()
    ]
    return runs, min(drawn, key=lambda one: cost(curves[one], target))[0]


def compare(name: str, num_studies: int) -> tuple[list[str], bool]:
    """Return the table of a network, costs over the lowest one, and whether the bars are met."""
    network, rows = NETWORKS[name], json.loads(table_of(name).read_text())
    lines = [
        f"{name}: samples to {network.target:.0%} at width {network.widths[-1]}, batch {BATCH}, "
        f"over the least; {num_studies} draws, {SMALL_TRIALS} trials of each small width.",
        "",
        "| optimizer | way | trials | median | 90 % | within 5 % |",
        "|---|---|---|---|---|---|",
    ]
    is_met = True
    for optimizer in RATES:
        by_width = {one: costs_of(optimizer, one, rows, network.target) for one in network.widths}
        sizes = {row["cell"][0]: float(row["parameters"]) for row in rows}
        regrets: dict[tuple[str, int], list[float]] = {}
        held = []
        for seed in range(num_studies):
            rng = np.random.default_rng(seed)
            large = Large(by_width[network.widths[-1]], rng)
            small = [
                study_of(
                    [row for row in rows if row["cell"][:2] == [width, optimizer]],
                    network.target,
                    rng,
                )
                for width in network.widths[:-1]
            ]
            runs = [run for those, _ in small for run in those]
            longest = max(run.samples for run in runs)
            found = OptimumModel(runs).rate_of(sizes[network.widths[-1]], longest, BATCH)
            random = [list(np.exp(rng.uniform(*large.range, n))) for n in (6, 20, 60)]
            ways = {
                ("predicted", 1): [found.value],
                ("predicted", TRIALS): quantiles(found, TRIALS),
                ("copied from the largest small one", 1): [small[-1][1]],
                **{("random", len(one)): one for one in random},
            }
            for way, rates in ways.items():
                regrets.setdefault(way, []).append(large.regret_of(rates))
            grid = np.exp(np.linspace(*large.range, 400))
            truly = float(min(grid, key=large.truth))
            held.append(found.low <= truly <= found.high)
        for (label, number), values in regrets.items():
            within = np.mean([value <= NEAR for value in values])
            lines.append(
                f"| {optimizer} | {label} | {number} | {np.median(values):.2f} | "
                f"{np.quantile(values, 0.9):.2f} | {within:.0%} |"
            )
        near = np.mean([value <= NEAR for value in regrets["predicted", TRIALS]])
        is_met &= bool(near >= NEAR_BAR and np.mean(held) >= HELD_BAR)
        lines.append(
            f"| {optimizer} | the interval holds the best rate | | | | {np.mean(held):.0%} |"
        )
    return lines, is_met


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.is_file() else []


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--studies", type=int, default=200)
    options = parser.parse_args()
    if options.what == "record":
        for name in NETWORKS:
            record_all(name, options.jobs)
        return 0
    lines, is_met = [], True
    for name in NETWORKS:
        table, is_good = compare(name, options.studies)
        lines += [*table, ""]
        is_met &= is_good
    lines.append(f"{versions()}")
    print("\n".join(lines))
    RESULTS.write_text("\n".join(lines) + "\n")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
