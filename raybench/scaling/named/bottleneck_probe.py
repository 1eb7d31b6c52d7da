"""Is training bound by communication or by data? ("Effective Distributed Training", Determined AI)

    python -m raybench.scale bottleneck_probe --quick

Claims: exchanging gradients hardly ever (`aggregation_frequency: 1000` there) against after every
batch shows what communication costs; synthetic against real data shows what the input costs; models
of fewer parameters train more efficiently; the batch size does not change how long an exchange
takes, so larger batches lower its share.

Source: topic guide of Determined's documentation (2021). It prescribes and shows no figures: what
is published are directions, and model sizes (ResNet-50 about 30 million parameters, VGG-16 about
136 million; the networks of Keras have 25,636,712 and 138,357,544). Confounds of the recipe: with
an exchange every 1,000 batches the weights are updated as rarely, too, so the update's cost would
count as communication; here workers update every step and only never exchange
(`exchange_gradients: false`). And its per-slot batch is silently rounded down where the global one
does not divide; here that is refused.

`python -m raybench.diagnose` asks the same of one run spec, with a verdict.

Real data are pictures that are decoded one by one as a batch asks for them, without prefetching;
synthetic ones, of the same shape, lie in memory. So what differs is the input's way, all of it.

Full size: `mnist_large_dense` (4.1 million parameters, most of them dense) against `cnn7` at 128
pixels (173,354, nearly all compute), 2, 4 and 8 workers, both frameworks. Quick: `mnist_small`
(525,322) against `cnn7` (124,202), both at 32 pixels, 2 workers, torch. All by their classes in
`raybench.workloads.pictures`, which have the pictures with them.
"""

import itertools
import math
from typing import Any

import numpy as np

from raybench.core.objective import Objective
from raybench.core.scaling_study import Cell, ScalingStudy
from raybench.core.spec import FRAMEWORKS, DatasetSpec, RunSpec
from raybench.scaling.named.claims import (
    Claim,
    Measured,
    Results,
    claim,
    measured,
    pairs,
    shown,
)

NAME = "bottleneck_probe"
PARAMETERS = {"ResNet-50": 25_636_712, "VGG-16": 138_357_544}
"""Of the models that the guide compares, as Keras builds them."""
BATCHES = (32, 128)
FOLDER = "raybench.workloads.pictures"


def study(quick: bool) -> ScalingStudy:
    """Return the study; `quick` for two cores in at most five minutes."""
    frameworks = ["torch"] if quick else list(FRAMEWORKS)
    workers = (2,) if quick else (2, 4, 8)
    cells = [
        Cell(
            changes={
                "framework": framework,
                "workload": workload,
                "dataset": data,
                "num_workers": k,
                "batch_size_per_worker": batch,
                "exchange_gradients": exchanges,
            }
        )
        for framework in frameworks
        for workload, size in _workloads(quick).items()
        for data, k, batch, exchanges in itertools.product(
            _data(size, quick), workers, BATCHES, (True, False)
        )
    ]
    base = RunSpec(
        dataset=DatasetSpec(name="workload"),
        workload=f"{FOLDER}:DecodedDigits",
        objective=Objective(kind="best_at_budget", max_train_seconds=1e6),
        epochs=2.0,
    )
    return ScalingStudy(name=NAME, base=base, cells=cells)


def _workloads(quick: bool) -> dict[str, int]:
    """Return the model of many parameters and that of much compute, and their pixels."""
    names = {"SmallDecodedDigits": 32, "DecodedDigits": 32}
    if not quick:
        names = {"DenseDecodedDigits": 28, "MediumDecodedDigits": 128}
    return {f"{FOLDER}:{name}": size for name, size in names.items()}


def _data(size: int, quick: bool) -> list[dict[str, Any]]:
    """Return real data, decoded on demand, and synthetic data of their shape and number."""
    repeat = 2 if quick else 8
    synthetic = {"name": "synthetic", "shape": [size, size, 1], "num_samples": 1257}
    return [{"name": "workload", "repeat": repeat}, synthetic | {"repeat": repeat}]


def compare(results: Results) -> list[Claim]:
    """Return the published claims beside what was measured."""
    every = measured(results)
    exchanging = [one for one in every if one.key("exchange_gradients")]
    shares = dict(_shares(every))
    by_model = {
        name: [share for one, share in shares.items() if one_workload(one) == name]
        for name in dict.fromkeys(one_workload(one) for one in shares)
    }
    return [
        _models(exchanging, by_model),
        claim(
            "A larger batch lowers the share of communication",
            "fewer passes through the loop, the same time for each exchange",
            [other - one for one, other in _at_both_batches(shares)],
            lambda value: value < 0,
            unit=f"points from batch {BATCHES[0]} to {BATCHES[1]}",
            scale=100,
        ),
        claim(
            "An exchange takes the same time whatever the batch size",
            "the same",
            _exchange_ratios(every),
            lambda value: 0.67 <= value <= 1.5,
            unit=f"times as long at batch {BATCHES[1]}",
        ),
        _communication(by_model),
        claim(
            "Real data, decoded on demand, cost no more than synthetic ones in memory",
            "a comparison to make; no figures",
            [1 - 1 / value for value in _real_over_synthetic(exchanging)],
            lambda value: value < 0.05,
            unit="% of a step waits for data",
            scale=100,
        ),
    ]


def one_workload(key: tuple[object, ...]) -> str:
    """Return the workload of a key of `_shares`."""
    return str(key[1])


def _shares(every: list[Measured]) -> list[tuple[tuple[object, ...], float]]:
    """Return each cell's share of communication: 1 - step never exchanging / step."""
    found = [
        (_where(with_it), 1 - without.number("step_median_s") / with_it.number("step_median_s"))
        for without, with_it in pairs(every, "exchange_gradients")
    ]
    return [(where, share) for where, share in found if math.isfinite(share)]


def _where(one: Measured) -> tuple[object, ...]:
    spec = one.spec
    return (
        spec.framework,
        spec.workload,
        spec.dataset.name,
        spec.num_workers,
        spec.batch_size_per_worker,
    )


def _at_both_batches(shares: dict[tuple[object, ...], float]) -> list[tuple[float, float]]:
    small, large = BATCHES
    return [
        (share, shares[*where[:-1], large])
        for where, share in shares.items()
        if where[-1] == small and (*where[:-1], large) in shares
    ]


def _exchange_ratios(every: list[Measured]) -> list[float]:
    """Return the seconds of an exchange at the large batch over those at the small one."""
    seconds = {
        _where(with_it): with_it.number("step_median_s") - without.number("step_median_s")
        for without, with_it in pairs(every, "exchange_gradients")
    }
    found = _at_both_batches(seconds)
    return [other / one for one, other in found if one > 0 and other > 0]


def _models(exchanging: list[Measured], by_model: dict[str, list[float]]) -> Claim:
    """Compare the model of more parameters with that of fewer."""
    words = "A model of more parameters spends a larger share on communication"
    published = (
        f"VGG-16 ({PARAMETERS['VGG-16']:,}) more than ResNet-50 ({PARAMETERS['ResNet-50']:,})"
    )
    sizes = {one.spec.workload: one.number("num_parameters") for one in exchanging}
    known = [name for name in by_model if sizes.get(name, 0) > 0]
    if len(known) < 2:
        return Claim(words, published, "not measured here", None)
    large, *_, small = sorted(known, key=lambda name: -sizes[name])
    ours = {name: shown(by_model[name], unit="%", scale=100) for name in (large, small)}
    text = ", ".join(
        f"{name.rpartition(':')[2]} ({sizes[name]:,.0f}): {found}" for name, found in ours.items()
    )
    median = {name: float(np.median(by_model[name])) for name in (large, small)}
    return Claim(words, published, text, median[large] > median[small])


def _communication(by_model: dict[str, list[float]]) -> Claim:
    return claim(
        "Exchanging never instead of every step shows an overhead of communication",
        "a comparison to make; no figures",
        [share for shares in by_model.values() for share in shares],
        lambda value: value > 0.02,
        unit="% of a step",
        scale=100,
    )


def _real_over_synthetic(exchanging: list[Measured]) -> list[float]:
    """Return seconds of a step with real data over those with synthetic ones."""
    at: dict[tuple[object, ...], dict[str, float]] = {}
    for one in exchanging:
        framework, workload, name, *rest = _where(one)
        found = at.setdefault((framework, workload, *rest), {})
        found[str(name)] = one.number("step_median_s")
    return [
        found["workload"] / found["synthetic"]
        for found in at.values()
        if {"workload", "synthetic"} <= set(found)
    ]
