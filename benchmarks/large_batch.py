"""Claim: where layers need rates of their own, LAMB and LARS hold a large batch together.

A deep network without normalisation (`deep_mlp`: eight dense layers, 64 wide) trains 20 epochs
at batch 1,024 on 6,000 images of MNIST (117 steps), warm-up over a tenth of them, then cosine.
Every optimizer takes the best rate of its own list, chosen with seeds that are not reported,
and is then run with `--seeds` other ones. "Adam, linear" is Adam at its best rate for batch 64
(chosen likewise, equal epochs) times 1,024 / 64, which is what the linear rule gives. Bars, in
points of validation accuracy, means over seeds: LAMB - Adam, linear >= 10; LARS - SGD >= 10.

    RAYBENCH_DATA=DIR python benchmarks/large_batch.py [--framework tensorflow] [--seeds 3]

About two minutes on one core. Prints losses like wins; exit 1 below a bar. It is a check of the
optimizers and no law: Nado et al. 2021 (arXiv 2102.06356) tune Nesterov and Adam to equal LARS
and LAMB on ResNet-50 and BERT.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from raybench.backends.find import find_backend
from raybench.backends.run import run
from raybench.core.clock import Ledger
from raybench.core.objective import Objective
from raybench.core.spec import DatasetSpec, RunSpec
from raybench.results.store import machine, versions
from raybench.workloads.find import load_workload_dataset

EPOCHS = 20
CHOOSING_SEEDS = (100, 101)
FIRST_SEED = 0
RATES = {
    "sgd": [0.03, 0.1, 0.3, 1.0, 3.0],
    "lars": [0.1, 0.3, 1.0, 3.0, 10.0],
    "adam": [1e-3, 3e-3, 5e-3, 1e-2, 3e-2],
    "radam": [1e-3, 3e-3, 1e-2, 3e-2, 1e-1],
    "lamb": [3e-3, 1e-2, 2e-2, 3e-2, 6e-2],
}
BATCH, BASE_BATCH = 1024, 64


def accuracy(
    framework: str, optimizer: str, learning_rate: float, seed: int, batch_size: int = BATCH
) -> float:
    """Validation accuracy after the last epoch."""
    spec = RunSpec(
        workload="deep_mlp",
        dataset=DatasetSpec(name="mnist", limit=6000),
        objective=Objective(kind="best_at_budget", max_train_seconds=1e6),
        framework=framework,
        batch_size_per_worker=batch_size,
        optimizer=optimizer,
        learning_rate=learning_rate,
        schedule="cosine",
        warmup_epochs=EPOCHS / 10,
        epochs=EPOCHS,
        eval_every_samples=6000 * EPOCHS,
        seed=seed,
    )
    workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
    backend = find_backend(framework)
    world = backend.join(rank=0, num_workers=1, device="cpu", num_threads=1)
    trainer = backend.Trainer(spec, workload, dataset, world)
    *_, last = run(spec, dataset, trainer, world, Ledger("setup"))
    trainer.close()
    return 100 * last.value


def best_rate(framework: str, optimizer: str, batch_size: int) -> float:
    """Return the rate of the optimizer's list with the best mean accuracy."""
    means = {
        rate: statistics.mean(
            accuracy(framework, optimizer, rate, seed, batch_size) for seed in CHOOSING_SEEDS
        )
        for rate in RATES[optimizer]
    }
    return max(means, key=lambda rate: means[rate])


def measure(framework: str, num_seeds: int) -> list[dict[str, object]]:
    """Choose a rate for every optimizer, then run it with new seeds."""
    chosen = []
    for optimizer in RATES:
        chosen.append((optimizer, optimizer, best_rate(framework, optimizer, BATCH)))
    base = best_rate(framework, "adam", BASE_BATCH)
    chosen.append(("adam, linear", "adam", base * BATCH / BASE_BATCH))
    chosen.append(("adam, sqrt", "adam", base * (BATCH / BASE_BATCH) ** 0.5))
    results: dict[str, list[float]] = {name: [] for name, _, _ in chosen}
    for seed in range(FIRST_SEED, FIRST_SEED + num_seeds):
        for name, optimizer, rate in chosen:
            results[name].append(accuracy(framework, optimizer, rate, seed))
    return [
        {
            "optimizer": name,
            "learning_rate": rate,
            "mean": statistics.mean(results[name]),
            "low": min(results[name]),
            "high": max(results[name]),
            "n": num_seeds,
        }
        for name, _, rate in chosen
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=("torch", "tensorflow"), default="torch")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rows = measure(options.framework, options.seeds)
    mean = {str(row["optimizer"]): float(str(row["mean"])) for row in rows}
    bars = [
        ("LAMB - Adam, linear", mean["lamb"] - mean["adam, linear"], 10.0),
        ("LARS - SGD", mean["lars"] - mean["sgd"], 10.0),
    ]
    lines = [
        f"{'optimizer':14} {'rate':>8} {'mean':>7} {'low':>7} {'high':>7}   n",
        *(
            f"{r['optimizer']:14} {r['learning_rate']:8.4g} {r['mean']:6.1f}% {r['low']:6.1f}% "
            f"{r['high']:6.1f}% {r['n']:3}"
            for r in rows
        ),
        *(
            f"{name}: {points:+.1f} points (bar {bar:+.0f}) {'ok' if points >= bar else 'BELOW'}"
            for name, points, bar in bars
        ),
        f"LAMB - Adam, best rate: {mean['lamb'] - mean['adam']:+.1f} points (no bar)",
        f"{options.framework}, {machine()['processor']}, {versions()}",
    ]
    print("\n".join(lines))
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    content = {"rows": rows, "bars": bars, "versions": versions()}
    (results / f"large_batch_{options.framework}.json").write_text(json.dumps(content, indent=1))
    return 0 if all(points >= bar for _, points, bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
