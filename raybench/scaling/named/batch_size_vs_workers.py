"""Batch size against number of GPUs, a small CNN in Keras (Weights & Biases, 2019), again.

    python -m raybench.scale batch_size_vs_workers --quick

Claims: 2 GPUs train 1.6 times as fast as one, 4 GPUs 2.5 times, 8 GPUs about 3 times and only with
a batch of 512; larger batches train faster; accuracy differs by 4 to 5 points between batch sizes
and by about 1 between numbers of GPUs; batch 64 is the best on average; with a fixed 64 per GPU, 1,
2 and 4 GPUs are equally fast; sub-batches of 8 are a waste.

Source: "Distributed Training with Weights & Biases" (wandb.ai, project estuary): a CNN of seven
layers (`cnn7`, 910,922 parameters at 299x299x3) on 10 classes of iNaturalist 2017, 5,000 training
and 800 validation images, 50 epochs, Keras's `multi_gpu_model`, Adam. What it confounded, and what
is done about it here:

- Pictures were augmented one by one on the host ("this is hitting CPU limits"): speed-ups of the
  input, not of the GPUs. Here they are in memory, and waiting for data is a column of its own.
- The batch was that of all GPUs together in most runs (strong scaling) and that of each in four
  (weak): here both, each labelled.
- One learning rate for all batches: here one rate too, and in weak scaling, where the batch grows
  with the GPUs, rates scaled by their number (`linear`) or its root (`sqrt`) beside it.
- No accuracy was timed; here the seconds to one are (90 %, quick 80 %). Runs do not end there.
- One run for each cell, one of which stalled for two hours and vanished in a mean: here several
  seeds, medians, and stalled runs named as outliers.

Full size as published, with handwritten digits scaled to 299 pixels and shown four times an epoch
(5,028 images) in place of iNaturalist, whose subset was not published; the speed does not depend
on what is in the pictures, the accuracy does. Hours on a CPU; on GPUs add
`--set base.gpus_per_worker=1`. Quick: 32 pixels, 1 and 2 workers, 6 epochs.
"""

import itertools
from typing import Any

import numpy as np

from raybench.core.objective import Objective
from raybench.core.scaling_study import Cell, Scaling, ScalingStudy
from raybench.core.spec import DatasetSpec, RunSpec
from raybench.scaling.named.claims import (
    NOT_MEASURED,
    Claim,
    Measured,
    Results,
    claim,
    finite,
    measured,
    ratios,
)

NAME = "batch_size_vs_workers"
SPEEDUPS = {2: 1.6, 4: 2.5, 8: 3.0}
"""Published speed-ups by number of GPUs; that of 8 with a batch of 512."""
BATCH_POINTS, GPU_POINTS = (4.0, 5.0), 1.0
"""Published differences in accuracy, in points, between batch sizes and between GPU counts."""
FIXED = 64
"""Samples of each GPU in the runs of weak scaling."""
RULES = ("linear", "sqrt")
"""Of the learning rate over the number of GPUs, beside none."""


def study(quick: bool) -> ScalingStudy:
    """Return the study; `quick` for two cores in at most five minutes."""
    workers = (1, 2) if quick else (1, 2, 4, 8)
    batches = (32, 64, 128, 256) if quick else (32, 64, 128, 256, 512)
    size, repeat, epochs = (32, 1, 6.0) if quick else (299, 4, 50.0)
    cells = [
        *(_cell("strong", k, batch // k) for batch, k in itertools.product(batches, workers)),
        *(_cell("weak", k, FIXED) for k in workers),
        *(
            _cell("weak", k, FIXED, learning_rate_scaling=rule)
            for k, rule in itertools.product(workers[1:], RULES[:1] if quick else RULES)
        ),
    ]
    base = RunSpec(
        workload="cnn7",
        dataset=DatasetSpec(name="digits", image_size=size, repeat=repeat),
        objective=Objective(
            kind="best_at_budget", target=0.8 if quick else 0.9, max_train_seconds=1e6
        ),
        framework="tensorflow",
        optimizer="adam",
        learning_rate=1e-3,
        epochs=epochs,
    )
    return ScalingStudy(name=NAME, base=base, cells=cells)


def _cell(scaling: Scaling, workers: int, batch: int, **more: Any) -> Cell:
    changes = {"num_workers": workers, "batch_size_per_worker": batch}
    return Cell(scaling=scaling, changes=changes | more)


def compare(results: Results) -> list[Claim]:
    """Return the published claims beside what was measured."""
    strong, weak = measured(results, "strong"), measured(results, "weak")
    plain = [one for one in weak if one.spec.learning_rate_scaling == "none"]
    return [
        *(_speedup(strong, workers) for workers in SPEEDUPS),
        _larger_batch(strong),
        _accuracy(strong),
        _best_batch(strong),
        claim(
            "More GPUs reach an accuracy sooner",
            "not timed; the report asks for it",
            [1 / value for value in ratios(strong, "num_workers", "time_to_target_s") if value > 0],
            lambda value: value > 1,
            unit="times as soon, the batch of all the same",
        ),
        claim(
            "A learning rate that grows with the GPUs makes weak scaling more accurate",
            "one rate for all; the report asks for it",
            _rule_gains(weak),
            lambda value: value > 0,
            unit="points",
            scale=100,
        ),
        claim(
            f"With {FIXED} samples per GPU, 1, 2 and 4 GPUs are equally fast",
            "no speed-up to be seen before 8 GPUs, there about 3 times",
            ratios([one for one in plain if one.spec.num_workers <= 4], "num_workers"),
            lambda value: value < 1.2,
        ),
        claim(
            "Sub-batches of 8 are a waste",
            "a batch of 32 on 4 GPUs, 64 on 8: slower and no better",
            [
                one.number("efficiency_same_batch")
                for one in strong
                if one.spec.batch_size_per_worker <= 8
            ],
            lambda value: value < 0.5,
            unit="of the speed that as many workers should bring",
        ),
    ]


def _speedup(strong: list[Measured], workers: int) -> Claim:
    published = SPEEDUPS[workers]
    batches = [one for one in strong if one.spec.num_workers == workers]
    if workers == 8:
        batches = [one for one in batches if one.spec.global_batch_size == 512]
    return claim(
        f"{workers} GPUs train {published:g} times as fast as one"
        + (" with a batch of 512" if workers == 8 else ""),
        f"{published:g} times",
        [one.number("speedup_same_batch") for one in batches],
        lambda value: 0.8 * published <= value <= 1.25 * published,
    )


def _larger_batch(strong: list[Measured]) -> Claim:
    rates = [
        [one.number("samples_per_s") for one in sorted(group, key=_global)]
        for group in _by(strong, lambda one: one.spec.num_workers)
    ]
    return claim(
        "Larger batches train faster",
        "yes, with few exceptions",
        [row[-1] / row[0] for row in rates if len(row) > 1],
        lambda value: value > 1,
    )


def _accuracy(strong: list[Measured]) -> Claim:
    """Compare how accuracy varies over batch sizes and over numbers of workers."""
    over_batches = _ranges(_by(strong, lambda one: one.spec.num_workers))
    over_workers = _ranges(_by(strong, _global))
    words = "Accuracy depends on the batch size more than on the number of GPUs"
    published = f"{BATCH_POINTS[0]:g} to {BATCH_POINTS[1]:g} points against {GPU_POINTS:g}"
    if not over_batches or not over_workers:
        return Claim(words, published, NOT_MEASURED, None)
    batch, workers = (100 * float(np.median(each)) for each in (over_batches, over_workers))
    return Claim(words, published, f"{batch:.1f} points against {workers:.1f}", batch > workers)


def _best_batch(strong: list[Measured]) -> Claim:
    words, published = "A batch of 64 is the most accurate on average", "64, then 128 and 32"
    known = {_global(group[0]): _accuracies(group) for group in _by(strong, _global)}
    means = {batch: float(np.mean(values)) for batch, values in known.items() if values}
    if len(means) < 2:
        return Claim(words, published, NOT_MEASURED, None)
    order = sorted(means, key=lambda batch: -means[batch])
    ours = ", ".join(f"{batch}: {means[batch]:.1%}" for batch in order)
    return Claim(words, published, ours, order[0] == 64)


def _rule_gains(weak: list[Measured]) -> list[float]:
    """Return the best accuracy with each rule less that without one, of as many workers."""
    found: dict[int, dict[str, float]] = {}
    for one in weak:
        of_rule = found.setdefault(one.spec.num_workers, {})
        of_rule[one.spec.learning_rate_scaling] = one.number("best_accuracy")
    return [
        each[rule] - each["none"]
        for each in found.values()
        for rule in RULES
        if {rule, "none"} <= set(each)
    ]


def _global(one: Measured) -> int:
    return one.spec.global_batch_size


def _by(cells: list[Measured], key: Any) -> list[list[Measured]]:
    groups: dict[Any, list[Measured]] = {}
    for one in cells:
        groups.setdefault(key(one), []).append(one)
    return [group for group in groups.values() if len(group) > 1]


def _ranges(groups: list[list[Measured]]) -> list[float]:
    """Return how far accuracy varies within each group of two known ones or more."""
    known = [_accuracies(group) for group in groups]
    return [max(values) - min(values) for values in known if len(values) > 1]


def _accuracies(group: list[Measured]) -> list[float]:
    return finite(one.number("best_accuracy") for one in group)
