"""Records the learning curves and step times that `search_table.py` replays.

Trains every cell of a grid (`table_grids.py`): 5 optimizers x 6 to 10 learning rates x 6 global
batch sizes x seeds, with one torch worker without Ray, and validates it twenty times or more. Equal
updates and sample order make the curve the same for every framework and worker count, as
tests/training/test_worker_equality.py and test_layers_agree.py check. `times` measures step times
in worker groups of one and two, in turns.

    RAYBENCH_DATA=DIR python benchmarks/search/record_table.py curves mnist_conv [--jobs 2]
    RAYBENCH_DATA=DIR python benchmarks/search/record_table.py best flights_mlp [--seeds 5]
    RAYBENCH_DATA=DIR python benchmarks/search/record_table.py times mnist_conv [--rounds 3]
    python benchmarks/search/record_table.py summary mnist_conv

`curves` trains the whole grid, `best` more seeds of the cells that may be the best tenth of it at
any worker count (`table_best.py`). Run them from the root of the repository; `table_data.py` makes
the data of the newer tables. Both resume where they were stopped, and end by packing the results
into `tables/NAME.npz` (curves as counts of correct answers) and `tables/NAME.json` (provenance,
times). `summary` prints the target, the best configuration, and the scatter of seeds in the best
tenth.
"""

import argparse
import hashlib
import itertools
import json
import multiprocessing
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from table_best import best_cells, summary
from table_grids import DATA, GRIDS, TABLES, Cell

from raybench.data.load import load_dataset
from raybench.data.split_metrics import label_baseline
from raybench.results.store import machine, versions
from raybench.spec.metric import ACCURACY


def record(job: tuple[str, Cell]) -> dict[str, Any]:
    """Train one cell in this process; return its curve."""
    from raybench.models.find import load_workload_dataset
    from raybench.stats.clock import Ledger
    from raybench.training.base import find_backend
    from raybench.training.run import run

    table, cell = job
    spec = GRIDS[table].spec_of(cell)
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


def recorded(table: str) -> list[dict[str, Any]]:
    """Return the cells that were trained so far."""
    return [json.loads(line) for line in _lines(TABLES / f"{table}.jsonl")]


def record_all(table: str, cells: list[Cell], jobs: int) -> None:
    """Train the cells that are not in the table's file yet, in this order."""
    done = {tuple(line["cell"]) for line in recorded(table)}
    fresh = [(table, cell) for cell in cells if cell not in done]
    print(f"{table}: {len(done)} cells recorded, {len(fresh)} to train", flush=True)
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs) as pool, (TABLES / f"{table}.jsonl").open("a") as out:
        for number, result in enumerate(pool.imap_unordered(record, fresh), 1):
            out.write(json.dumps(result) + "\n")
            out.flush()
            if number % 50 == 0:
                print(f"{number} of {len(fresh)}", flush=True)


def record_curves(table: str, num_seeds: int, jobs: int) -> None:
    """Train the whole grid, all of a seed in random order before the next."""
    rng = np.random.default_rng(0)
    cells: list[Cell] = []
    for seed in range(num_seeds):
        of_seed = GRIDS[table].cells(seed)
        cells += [of_seed[i] for i in rng.permutation(len(of_seed))]
    record_all(table, cells, jobs)


def record_best(table: str, num_seeds: int, jobs: int) -> None:
    """Train more seeds of the best cells, the best one first, until all best cells have enough.

    The best cells change with more seeds.
    """
    while True:
        pack(table)
        cells = [(*cell, seed) for cell in best_cells(table) for seed in range(num_seeds)]
        if not set(cells) - {tuple(line["cell"]) for line in recorded(table)}:
            return
        record_all(table, cells, jobs)


def record_times(table: str, rounds: int) -> None:
    """Time short trainings in groups of one and two torch workers, in turn; pack after each round.

    Rounds are added to those measured before.
    """
    from raybench.cluster.run_client import RunClient
    from raybench.cluster.session import Session

    grid = GRIDS[table]
    assert grid.dataset.limit is not None
    measured = _times(table)
    with Session() as session:
        for number in range(rounds + 1):
            for optimizer, batch, workers in itertools.product(
                grid.rates, grid.timed_batches, (1, 2)
            ):
                steps = max(8, grid.timed_samples // (batch * workers))
                spec = grid.spec_of(
                    (optimizer, 1e-3, batch, 0),
                    num_workers=workers,
                    epochs=steps * batch * workers / grid.dataset.limit,
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
            print(f"round {number} of {rounds}, load {os.getloadavg()[0]:.1f}", flush=True)
            pack(table, measured)


def pack(table: str, times: list[dict[str, Any]] | None = None) -> None:
    """Write the files of a table that are committed: curves, step times, provenance.

    Args:
        table: Name of the table.
        times: Measured seconds of steps, by default those of the table.
    """
    grid = GRIDS[table]
    if lines := recorded(table):  # a checkout has the packed curves alone
        _pack_curves(table, lines)
    with np.load(TABLES / f"{grid.curves or table}.npz") as curves:
        num_cells = int((curves["correct"][..., 0] >= 0).sum())
    grouped: dict[tuple[str, int, int], list[float]] = {}
    for row in _times(table) if times is None else times:
        grouped.setdefault((row["optimizer"], row["batch"], row["workers"]), []).append(row["s"])
    spec = grid.spec_of((next(iter(grid.rates)), 1e-3, 64, 0)).document()
    path = spec["dataset"]["path"]
    content = {
        "optimizers": list(grid.rates),
        "rates": grid.rates,
        "batches": grid.batches,
        "curves": grid.curves or table,
        "note": grid.note,
        "num_validation": grid.dataset.validation_size,
        "baseline_value": label_baseline(ACCURACY, load_dataset(grid.dataset)),
        "spec": spec | {"dataset": spec["dataset"] | {"path": path and Path(path).name}},
        "data_sha256": path and hashlib.sha256((DATA / Path(path).name).read_bytes()).hexdigest(),
        "cells": num_cells,
        "step_statistic": grid.step_statistic,
        "step_s": [
            {
                **{"optimizer": o, "batch": b, "workers": k, "median": statistics.median(v)},
                **{"least": min(v), "all": v},
            }
            for (o, b, k), v in grouped.items()
        ],
        "machine": machine(),
        "versions": versions(),
        "command": f"python benchmarks/search/record_table.py curves {table}; ... best; ... times",
    }
    (TABLES / f"{table}.json").write_text(json.dumps(content, indent=1) + "\n")
    print(f"{table}: {num_cells} cells")


def _pack_curves(table: str, lines: list[dict[str, Any]]) -> None:
    grid = GRIDS[table]
    optimizers = list(grid.rates)
    shape = (len(optimizers), len(grid.rates[optimizers[0]]), len(grid.batches))
    seeds = max((line["cell"][3] for line in lines), default=-1) + 1
    length = max((len(line["samples"]) for line in lines), default=0)
    correct = np.full((*shape, seeds, length), -1, np.int16)
    samples = np.zeros((len(grid.batches), length), np.int32)
    for line in lines:
        optimizer, rate, batch, seed = line["cell"]
        b = grid.batches.index(batch)
        cell = (optimizers.index(optimizer), grid.rates[optimizer].index(rate), b, seed)
        correct[cell][: len(line["correct"])] = line["correct"]
        if len(line["samples"]) > np.count_nonzero(samples[b]):
            samples[b, : len(line["samples"])] = line["samples"]
    np.savez_compressed(TABLES / f"{table}.npz", correct=correct, samples=samples)


def _times(table: str) -> list[dict[str, Any]]:
    """Return the seconds of steps that the table has, with optimizer, batch size and workers."""
    file = TABLES / f"{table}.json"
    rows = json.loads(file.read_text())["step_s"] if file.is_file() else []
    keys = ("optimizer", "batch", "workers")
    return [{key: row[key] for key in keys} | {"s": s} for row in rows for s in row["all"]]


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.is_file() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("curves", "best", "times", "pack", "summary"))
    parser.add_argument("table", choices=tuple(GRIDS))
    parser.add_argument("--seeds", type=int, help="default: 3 of the grid, 5 of the best cells")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    TABLES.mkdir(exist_ok=True)
    if options.what in ("curves", "best") and (curves := GRIDS[options.table].curves):
        parser.error(f"{options.table} has the curves of {curves}; record those")
    if options.what == "curves":
        record_curves(options.table, options.seeds or 3, options.jobs)
    if options.what == "best":
        record_best(options.table, options.seeds or 5, options.jobs)
    if options.what == "times":
        record_times(options.table, options.rounds)
    if options.what == "summary":
        print(summary(options.table))
    else:
        pack(options.table)


if __name__ == "__main__":
    main()
