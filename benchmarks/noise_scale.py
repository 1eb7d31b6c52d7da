"""Claim: the gradient noise of a single run tells what other batch sizes would need.

A dense network (196-64-10, ReLU, cross entropy) learns MNIST at 14 x 14 pixels by plain SGD, in
numpy; four workers share a batch. For every batch size the samples until `--target` of validation
accuracy, at the rate of `RATES` that takes fewest (median over seeds). Then one run at one batch
size measures its noise scale on the way; from it and that run's samples alone every other batch
size is predicted (`from_noise_scale`), and compared with what these took. Peers: the same samples,
or the same steps, at every batch size. No bar in the issue: the ratio of the critical batch from
noise to the fitted one, and the errors, are printed as they are; exit 1 if the noise scale's
median error is not the least of the three.

    RAYBENCH_DATA=DIR python benchmarks/noise_scale.py [--target 0.93] [--seeds 3]

Ten minutes on one core.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from raybench.core.spec import DatasetSpec
from raybench.data.load import load_dataset
from raybench.results.store import machine, versions
from raybench.scaling.noise_scale import NoiseScale, critical_batch
from raybench.scaling.samples_to_target import fit, from_noise_scale

BATCHES = (8, 16, 32, 64, 128, 256, 512, 1024)
RATES = tuple(0.01 * 2**k for k in range(9))
WORKERS = 4
EVERY = 2048
"""Samples between evaluations; every batch size divides them."""
LIMIT = 2_000_000
HIDDEN = 64
DECAY = 0.95
Parameters = list[np.ndarray]


class Data(NamedTuple):
    """MNIST, scaled: training and validation."""

    inputs: np.ndarray
    labels: np.ndarray
    held_inputs: np.ndarray
    held_labels: np.ndarray


class Trained(NamedTuple):
    """What a run took: samples to the target (NaN: missed), and noise scales of its steps."""

    samples: float
    noise_scales: list[float]


def load() -> Data:
    dataset = load_dataset(DatasetSpec(name="mnist", image_size=14))
    train, held = (
        split.inputs.reshape(len(split), -1).astype(np.float32) / 255
        for split in (dataset.train, dataset.validation)
    )
    return Data(train, dataset.train.labels, held, dataset.validation.labels)


def start(rng: np.random.Generator, features: int) -> Parameters:
    """He's initial values (2015)."""
    return [
        (rng.standard_normal((features, HIDDEN)) * np.sqrt(2 / features)).astype(np.float32),
        np.zeros(HIDDEN, np.float32),
        (rng.standard_normal((HIDDEN, 10)) * np.sqrt(2 / HIDDEN)).astype(np.float32),
        np.zeros(10, np.float32),
    ]


def gradient(parameters: Parameters, inputs: np.ndarray, labels: np.ndarray) -> Parameters:
    """Return the gradient of the mean cross entropy."""
    first, bias, second, second_bias = parameters
    hidden = np.maximum(inputs @ first + bias, 0)
    logits = hidden @ second + second_bias
    logits -= logits.max(axis=1, keepdims=True)
    error = np.exp(logits)
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    back = (error @ second.T) * (hidden > 0)
    return [inputs.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)]


def accuracy(parameters: Parameters, inputs: np.ndarray, labels: np.ndarray) -> float:
    first, bias, second, second_bias = parameters
    logits = np.maximum(inputs @ first + bias, 0) @ second + second_bias
    return float((logits.argmax(axis=1) == labels).mean())


def train(
    data: Data, batch: int, rate: float, seed: int, target: float, limit: float, watch: bool
) -> Trained:
    """Train until the target; with `watch` the noise scale of every step is kept."""
    rng = np.random.default_rng(seed)
    parameters = start(rng, data.inputs.shape[1])
    order, state, scales = rng.permutation(len(data.inputs)), NoiseScale(decay=DECAY), []
    at, samples = 0, 0
    while samples < limit:
        if at + batch > len(order):
            order, at = rng.permutation(len(data.inputs)), 0
        chosen = order[at : at + batch]
        at, samples = at + batch, samples + batch
        if watch:
            own = [
                gradient(parameters, data.inputs[part], data.labels[part])
                for part in np.split(chosen, WORKERS)
            ]
            found = [sum(parts) / WORKERS for parts in zip(*own, strict=True)]
            state = state.update(
                sum(square(g) for g in own), square(found), [batch // WORKERS] * WORKERS
            )
            scales.append(state.b_simple)
        else:
            found = gradient(parameters, data.inputs[chosen], data.labels[chosen])
        for value, slope in zip(parameters, found, strict=True):
            value -= rate * slope
        if samples % EVERY == 0:
            reached = accuracy(parameters, data.held_inputs, data.held_labels)
            if reached >= target:
                return Trained(samples, scales)
    return Trained(np.nan, scales)


def square(values: Parameters) -> float:
    return float(sum((value.astype(np.float64) ** 2).sum() for value in values))


def best_rates(data: Data, target: float, seeds: int) -> pd.DataFrame:
    """Return a row a run at each batch size's best rate: batch_size, rate, samples_to_target."""
    rows, usual = [], 0.1
    for batch in BATCHES:
        best: tuple[float, float, list[float]] = (np.inf, 0.0, [])
        # Those near the last batch size's best come first, so that bad ones are soon given up.
        for rate in sorted(RATES, key=lambda rate: abs(np.log(rate / usual))):
            # What takes twice the best so far is not the best.
            limit = min(LIMIT, 2 * best[0])
            took = [
                train(data, batch, rate, seed, target, limit, False).samples
                for seed in range(seeds)
            ]
            median = float(np.median(np.nan_to_num(took, nan=np.inf)))
            if median < best[0]:
                best = (median, rate, took)
        usual = best[1]
        print(f"batch {batch}: rate {best[1]:g}, samples {best[2]}", file=sys.stderr, flush=True)
        rows += [
            {"batch_size": batch, "rate": best[1], "samples_to_target": samples}
            for samples in best[2]
        ]
    return pd.DataFrame(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=float, default=0.93, help="validation accuracy")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    data = load()
    runs = best_rates(data, options.target, options.seeds)
    curve = fit(runs)
    measured = runs.groupby("batch_size")["samples_to_target"].median()
    rates = runs.groupby("batch_size")["rate"].first()

    lines = [
        f"MNIST at 14 x 14, 196-{HIDDEN}-10, SGD, target {options.target:.0%}, "
        f"{options.seeds} seeds, best of {len(RATES)} rates",
        "",
        "| batch | best rate | samples to target (median) | fitted curve, 90 % |",
        "|---|---|---|---|",
    ]
    for row in curve.predict(list(measured.index)).itertuples():
        lines.append(
            f"| {row.batch_size} | {rates[row.batch_size]:g} | {measured[row.batch_size]:,.0f} | "
            f"{row.low:,.0f} - {row.high:,.0f} |"
        )
    lines += [
        "",
        curve.sentence(),
        "",
        "| one run at batch | noise scale of the run | over the fitted critical batch | "
        "median (worst) error at other sizes | same samples | same steps | in its 90 % |",
        "|---" * 7 + "|",
    ]
    totals: dict[str, list[float]] = {"noise": [], "same samples": [], "same steps": []}
    for batch in BATCHES[1:]:
        run = train(data, batch, rates[batch], 100, options.target, LIMIT, True)
        if np.isnan(run.samples):
            lines.append(f"| {batch} | missed the target | | | | | |")
            continue
        scale = critical_batch(run.noise_scales, [batch] * len(run.noise_scales))
        others = measured.drop(batch)
        found = from_noise_scale(batch, run.samples, scale).predict(list(others.index))
        truth = others.to_numpy()
        errors = {
            "noise": found["samples"].to_numpy() / truth - 1,
            "same samples": run.samples / truth - 1,
            "same steps": run.samples / batch * others.index.to_numpy() / truth - 1,
        }
        inside = ((found["low"] <= truth) & (truth <= found["high"])).sum()
        cells = [f"{np.median(abs(e)):.0%} ({abs(e).max():.0%})" for e in errors.values()]
        for name, values in errors.items():
            totals[name] += list(abs(values))
        lines.append(
            f"| {batch} | {scale:,.0f} | {scale / curve.critical_batch.value:.2f} | "
            f"{' | '.join(cells)} | {inside} of {len(truth)} |"
        )
    medians = {name: float(np.median(values)) for name, values in totals.items()}
    good = medians["noise"] == min(medians.values())
    said = ", ".join(f"{name} {value:.0%}" for name, value in medians.items())
    lines += ["", f"- median error: {said} {'met' if good else 'BELOW'}", ""]
    lines.append(f"{machine()['processor']}, python {versions()['python']}")
    print("\n".join(lines))
    options.out.mkdir(exist_ok=True)
    (options.out / "noise_scale.md").write_text("\n".join(lines) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
