"""Records the learning curves and step times that `search_table.py` replays.

Really trains every cell of a grid: 5 optimizers x 10 learning rates x 6 global batch sizes x
seeds, one torch worker without Ray (equal updates and sample order make the curve the same for
every framework and worker count; tests/backends/test_worker_equality.py and
test_frameworks_agree.py hold that), validated on 5,000 samples twenty times or more. Step times
are another matter: `times` measures them in worker groups of one and two, interleaved.

    RAYBENCH_DATA=DIR python benchmarks/record_table.py curves mnist_conv [--seeds 3] [--jobs 2]
    RAYBENCH_DATA=DIR python benchmarks/record_table.py times mnist_conv [--rounds 3]

`curves` takes about an hour a table on two cores, and goes on where it was stopped. Both end by
packing what there is into `tables/NAME.npz` (curves as counts of correct answers) and
`tables/NAME.json` (provenance, times).
"""

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from raybench.core.objective import Objective
from raybench.core.spec import DatasetSpec, RunSpec
from raybench.results.provenance import machine, versions

TABLES = Path(__file__).with_name("tables")
OPTIMIZERS = ("sgd", "lars", "adam", "radam", "lamb")
BATCHES = (16, 32, 64, 128, 256, 512)
RATES = {
    name: [float(f"{rate:.3g}") for rate in np.geomspace(low, high, 10)]
    for name, low, high in (
        ("sgd", 1e-3, 3.0),
        ("lars", 3e-2, 100.0),
        ("adam", 1e-4, 1e-1),
        ("radam", 1e-4, 1e-1),
        ("lamb", 3e-4, 3e-1),
    )
}
SPECS: dict[str, dict[str, Any]] = {
    "mnist_conv": {
        "workload": "mnist_small",
        "dataset": DatasetSpec(name="mnist", image_size=10, limit=4000, validation_size=5000),
        "epochs": 6,
        "eval_every_samples": 1000,
    },
    "mnist_mlp": {
        "workload": "deep_mlp",
        "dataset": DatasetSpec(name="mnist", image_size=14, limit=8000, validation_size=5000),
        "epochs": 8,
        "eval_every_samples": 2000,
    },
}
TIMED_BATCHES = (8, 16, 32, 64, 128, 256, 512)
"""Per worker: those that make up the global ones on one and two workers."""

Cell = tuple[str, float, int, int]
"""Optimizer, learning rate, global batch size, seed."""


def spec_of(table: str, cell: Cell, **changes: Any) -> RunSpec:
    """Return the run spec of one cell, on one torch worker unless changed."""
    optimizer, rate, batch, seed = cell
    content: dict[str, Any] = {
        **SPECS[table],
        "objective": Objective(kind="best_at_budget", max_train_seconds=1e6),
        "optimizer": optimizer,
        "learning_rate": rate,
        "batch_size_per_worker": batch,
        "seed": seed,
    }
    return RunSpec(**(content | changes))


def record(job: tuple[str, Cell]) -> dict[str, Any]:
    """Train one cell in this process; return its curve."""
    from raybench.backends.find import find_backend
    from raybench.backends.run import run
    from raybench.core.clock import Ledger
    from raybench.workloads.find import load_workload_dataset

    table, cell = job
    spec = spec_of(table, cell)
    workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
    backend = find_backend("torch")
    world = backend.join(rank=0, num_workers=1, device="cpu", num_threads=1)
    trainer = backend.Trainer(spec, workload, dataset, world)
    samples, correct = [], []
    for evaluation in run(spec, dataset, trainer, world, Ledger("setup")):
        samples.append(evaluation.samples)
        correct.append(round(evaluation.value * len(dataset.validation)))
    trainer.close()
    return {"cell": cell, "samples": samples, "correct": correct}


def record_curves(table: str, num_seeds: int, jobs: int) -> None:
    """Train every cell that is not in the table's file yet, all of a seed before the next."""
    file = TABLES / f"{table}.jsonl"
    done = {tuple(json.loads(line)["cell"]) for line in _lines(file)}
    rng = np.random.default_rng(0)
    cells: list[tuple[str, Cell]] = []
    for seed in range(num_seeds):
        fresh = [
            (table, (optimizer, rate, batch, seed))
            for optimizer, batch in itertools.product(OPTIMIZERS, BATCHES)
            for rate in RATES[optimizer]
            if (optimizer, rate, batch, seed) not in done
        ]
        rng.shuffle(fresh)  # type: ignore[arg-type]
        cells += fresh
    print(f"{table}: {len(done)} cells recorded, {len(cells)} to train", flush=True)
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs) as pool, file.open("a") as out:
        for number, result in enumerate(pool.imap_unordered(record, cells), 1):
            out.write(json.dumps(result) + "\n")
            out.flush()
            if number % 50 == 0:
                print(f"{number} of {len(cells)}", flush=True)


def record_times(table: str, rounds: int) -> None:
    """Time short trainings in groups of one and two torch workers, in turn; keep every figure."""
    from raybench.cluster.run_client import RunClient
    from raybench.cluster.session import Session

    measured: list[dict[str, Any]] = []
    with Session() as session:
        for number in range(rounds + 1):
            for optimizer, batch, workers in itertools.product(OPTIMIZERS, TIMED_BATCHES, (1, 2)):
                steps = max(8, 2000 // (batch * workers))
                spec = spec_of(
                    table,
                    (optimizer, 1e-3, batch, 0),
                    num_workers=workers,
                    epochs=steps * batch * workers / SPECS[table]["dataset"].limit,
                    eval_every_samples=steps * batch * workers,
                )
                client = RunClient(session.pool, f"{number}-{optimizer}-{batch}-{workers}", spec)
                client.step()
                evaluation = client.finish().evaluation
                assert evaluation is not None
                if number:  # the first round warms groups and caches
                    step_s = evaluation.train_s / (evaluation.samples / (batch * workers))
                    measured.append(
                        {"optimizer": optimizer, "batch": batch, "workers": workers, "s": step_s}
                    )
            print(f"round {number} of {rounds}", flush=True)
    (TABLES / f"{table}.times.json").write_text(json.dumps(measured))


def pack(table: str) -> None:
    """Write the table that is read and committed: curves, medians of the times, provenance."""
    lines = [json.loads(line) for line in _lines(TABLES / f"{table}.jsonl")]
    seeds = max((line["cell"][3] for line in lines), default=-1) + 1
    length = max((len(line["samples"]) for line in lines), default=0)
    correct = np.full((len(OPTIMIZERS), 10, len(BATCHES), seeds, length), -1, np.int16)
    samples = np.zeros((len(BATCHES), length), np.int32)
    for line in lines:
        optimizer, rate, batch, seed = line["cell"]
        o, r, b = OPTIMIZERS.index(optimizer), RATES[optimizer].index(rate), BATCHES.index(batch)
        correct[o, r, b, seed, : len(line["correct"])] = line["correct"]
        if len(line["samples"]) > np.count_nonzero(samples[b]):
            samples[b, : len(line["samples"])] = line["samples"]
    np.savez_compressed(TABLES / f"{table}.npz", correct=correct, samples=samples)
    times_file = TABLES / f"{table}.times.json"
    times = json.loads(times_file.read_text()) if times_file.is_file() else []
    grouped: dict[tuple[str, int, int], list[float]] = {}
    for row in times:
        grouped.setdefault((row["optimizer"], row["batch"], row["workers"]), []).append(row["s"])
    content = {
        "optimizers": OPTIMIZERS,
        "rates": RATES,
        "batches": BATCHES,
        "num_validation": SPECS[table]["dataset"].validation_size,
        "spec": spec_of(table, ("adam", 1e-3, 64, 0)).document(),
        "cells": len(lines),
        "step_s": [
            {"optimizer": o, "batch": b, "workers": k, "median": statistics.median(v), "all": v}
            for (o, b, k), v in grouped.items()
        ],
        "machine": machine(),
        "versions": versions(),
        "command": f"python benchmarks/record_table.py curves {table}; ... times {table}",
    }
    (TABLES / f"{table}.json").write_text(json.dumps(content, indent=1) + "\n")
    size = (TABLES / f"{table}.npz").stat().st_size / 2**20
    print(f"{table}: {len(lines)} cells, {seeds} seeds, {size:.2f} MB")


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.is_file() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("curves", "times", "pack"))
    parser.add_argument("table", choices=tuple(SPECS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    TABLES.mkdir(exist_ok=True)
    if options.what == "curves":
        record_curves(options.table, options.seeds, options.jobs)
    if options.what == "times":
        record_times(options.table, options.rounds)
    pack(options.table)


if __name__ == "__main__":
    main()
