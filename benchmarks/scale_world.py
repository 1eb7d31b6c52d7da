"""Made-up runs for `scale_10000.py`: what a training would have shown, without one.

Curves and step times follow from the run spec by formulas with the usual shapes (a best learning
rate that moves with the batch, workers that exchange gradients); a run's name draws its noise.
"""

import math
import random
from typing import Any

from raybench.core.clock import WORKER_PHASES
from raybench.core.objective import StopRule
from raybench.core.record import Evaluation, RunOutcome
from raybench.core.spec import RunSpec
from raybench.search.sampling.default_rates import usual_rate

TARGET, CHANCE = 0.95, 0.1
NUM_TRAIN, CADENCE = 20_000, 4_000
"""Samples of an epoch, and between two evaluations: about twenty to the target."""
MOST_EVALUATIONS = 40
PARAMETERS = 100_000
STEP_S = {"torch": (1.0e-3, 2.0e-5), "tensorflow": (1.5e-3, 1.5e-5)}
"""Seconds of a step, and of each sample in it."""
EXCHANGE_S = 1.5e-3
"""More for each doubling of the workers."""

RATES: list[dict[str, Any]] = [
    {"when": {"optimizer": ["adam", "radam", "lamb"]}, "low": 1e-4, "high": 3e-2, "log": True},
    {"when": {"optimizer": ["lars", "sgd"]}, "low": 1e-2, "high": 10.0, "log": True},
]
SPACES: dict[str, dict[str, Any]] = {
    "wide": {
        "framework": ["torch", "tensorflow"],
        "num_workers": [1, 2, 4, 8],
        "batch_size_per_worker": {"low": 16, "high": 512, "log2": True},
        "optimizer": ["adam", "radam", "lars", "lamb", "sgd"],
        "learning_rate": RATES,
        "weight_decay": {"low": 1e-6, "high": 1e-2, "log": True},
        "warmup_epochs": {"low": 0.0, "high": 3.0},
        "beta1": {"low": 0.8, "high": 0.98},
    },
    "narrow": {
        "framework": ["torch", "tensorflow"],
        "num_workers": [1, 2],
        "batch_size_per_worker": {"low": 16, "high": 512, "log2": True},
        "optimizer": ["adam", "radam", "lars", "lamb"],
        "learning_rate": RATES,
    },
}
"""`narrow` is that of the shipped digits study: after a few hundred trials most draws repeat."""


def content(space: str, trials: int, *, early_stopping: bool, seed: int = 0) -> dict[str, Any]:
    """Return a study as its file has it."""
    seconds = MOST_EVALUATIONS * CADENCE / 64 * (STEP_S["torch"][0] + 64 * STEP_S["torch"][1])
    return {
        "objective": {"target": TARGET, "max_train_seconds": round(seconds, 1)},
        "search": {"trials": trials, "seed": seed, "early_stopping": early_stopping},
        "confirm": {"top": 3, "repeats": 3},
        "space": SPACES[space],
        "fixed": {"eval_every_samples": CADENCE, "epochs": MOST_EVALUATIONS * CADENCE / NUM_TRAIN},
    }


def outcomes(name: str, spec: RunSpec) -> list[RunOutcome]:
    """Return what the owner of a run would know after each of its evaluations."""
    noise = random.Random(name)
    batch, workers = spec.batch_size_per_worker, spec.num_workers
    base, each = STEP_S[spec.framework]
    step_s = (base + each * batch + EXCHANGE_S * math.log2(workers)) * noise.uniform(0.95, 1.05)
    usual = 3 * usual_rate(spec.optimizer, spec.global_batch_size)
    off = math.log10(spec.learning_rate / usual)
    off += 0.1 * math.log10(spec.weight_decay / 1e-4) if spec.weight_decay else 0.0
    pace = 20_000 * math.exp(1.5 * off**2 + 0.3 * spec.warmup_epochs) * noise.uniform(0.9, 1.1)
    pace *= 1 + (spec.global_batch_size / 1024) ** 0.5 + abs(spec.beta1 - 0.9)
    rule, found = StopRule(spec.objective), []
    for index in range(MOST_EVALUATIONS):
        samples = (index + 1) * CADENCE
        train_s = samples / spec.global_batch_size * step_s
        accuracy = CHANCE + (0.99 - CHANCE) * (1 - math.exp(-samples / pace))
        accuracy = min(accuracy + noise.gauss(0, 0.002), 1.0)
        is_last = index == MOST_EVALUATIONS - 1
        stop = rule.update(value=accuracy, train_s=train_s, finished=is_last)
        ledger = dict.fromkeys(WORKER_PHASES, 0.01) | {"train": train_s, "input": 0.0}
        evaluation = Evaluation(
            index=index,
            epoch=samples / NUM_TRAIN,
            samples=samples,
            train_s=train_s,
            train_loss=1.0 - accuracy,
            value=accuracy,
            learning_rate=spec.learning_rate,
            samples_per_s=spec.global_batch_size / step_s,
            ledger=ledger,
            best_value=rule.best_value,
            time_to_target_s=rule.time_to_target_s,
            stop=stop,
        )
        outcome = RunOutcome(
            evaluation=evaluation,
            is_over=stop is not None,
            ledger={"queue": 0.01, "start": 0.0, "other": 0.0} | ledger,
            wall_s=train_s + 0.1,
            num_parameters=PARAMETERS,
            batch_statistics=False,
            chance=CHANCE,
            hosts=("host",) * workers,
            devices=("cpu",) * workers,
            workers_per_node=(workers,),
        )
        found.append(outcome)
        if stop:
            break
    return found
