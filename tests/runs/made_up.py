"""Made-up scaling studies with steps of known duration, as records or in a folder."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from raybench.report.study import StudyResults, load
from raybench.results.store import SCALING, STUDY_FILE, Store
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import ScalingStudy, build_scaling_study, study_cells
from raybench.stats.record import Evaluation, RunRecord
from raybench.stats.step_times import StepTimes
from tests.search.made_up import evaluation, record

EPOCH = 1000
"""Samples of an epoch; a run has three epochs, with an evaluation after each."""
StepSeconds = Callable[[RunSpec, int], float]
"""Function that returns the seconds of a step of a run spec in a repeat."""


def study_of(**content: Any) -> ScalingStudy:
    """Return a study of weak and strong scaling: 1 and 2 workers, batches of 64, two repeats."""
    usual = {"num_workers": [1, 2], "batch_sizes": [64], "repeats": 2, "base": {}}
    return build_scaling_study(usual | content, "test", name="made_up")


def ideal(spec: RunSpec, repeat: int) -> float:
    """Return seconds of a step with ideal scaling: one millisecond per sample of each worker."""
    return spec.batch_size_per_worker / 1000


def run_of(
    study: ScalingStudy, step_s: StepSeconds = ideal, **changes: Any
) -> tuple[dict[str, RunRecord], dict[str, list[Evaluation]]]:
    """Return the records and the curves of all runs; `changes` apply to every record."""
    runs = {}
    curves = {}
    for cell in study_cells(study):
        for repeat in range(study.repeats):
            name, spec = cell.repeat(repeat)
            rate = spec.global_batch_size / step_s(spec, repeat)
            curves[name] = [point(index, rate) for index in range(3)]
            ended = record(name, spec, role="scaling", source=cell.name)
            ledger = ended.ledger | {"train": 3 * EPOCH / rate, "compile": 1.0}
            nodes = {"workers_per_node": [spec.num_workers]}
            usual = {"ledger": ledger, "samples": 3 * EPOCH, **nodes}
            runs[name] = replace(ended, **(usual | changes))
    return runs, curves


TARGET = 0.9
NEEDED, CRITICAL = 4000, 256
"""Samples to the target at small batches, and the batch size where they double."""


def law(spec: RunSpec, repeat: int) -> float:
    """Return seconds of a step: compute and communication added in quadrature, with 2 % spread."""
    wire = 0.02 if spec.num_workers > 1 else 0.0
    compute = 0.004 + spec.batch_size_per_worker / 2000
    return math.hypot(compute, wire) * (1.0, 1.02, 0.98)[repeat % 3]


def needed(batch: float) -> float:
    """Return samples to the target of a global batch size."""
    return NEEDED * (1 + batch / CRITICAL)


def reaching(folder: Path, *, epoch: int = EPOCH, **content: Any) -> StudyResults:
    """Return a study of 1, 2 and 4 workers, three repeats, whose runs reach the target
    after `needed` samples; evaluations are 100 samples apart."""
    objective = {"kind": "best_at_budget", "target": TARGET, "max_train_seconds": 600.0}
    usual = {"num_workers": [1, 2, 4], "repeats": 3, "base": {"objective": objective}}
    study = study_of(**(usual | content))
    runs, curves = run_of(study, law)
    for name, run in runs.items():
        batch = run.spec.global_batch_size
        rate = batch / law(run.spec, int(name[-1]))
        curves[name] = [
            point(
                number - 1,
                rate,
                samples=100 * number,
                train_s=100 * number / rate,
                epoch=100 * number / epoch,
                value=TARGET if 100 * number >= needed(batch) else 0.5,
            )
            for number in range(1, math.ceil(needed(batch) / 100) + 6)
        ]
        reached = next((at.train_s for at in curves[name] if at.value >= TARGET), None)
        samples = 100 * len(curves[name])
        ledger = run.ledger | {"train": samples / rate}
        runs[name] = replace(run, time_to_target_s=reached, samples=samples, ledger=ledger)
    return load(write(folder / "made_up", study, runs, curves))


def point(index: int, rate: float, **changes: Any) -> Evaluation:
    """Return the evaluation after epoch `index` + 1 at `rate` samples per second."""
    samples = EPOCH * (index + 1)
    usual = {"samples": samples, "samples_per_s": rate}
    return evaluation(changes.pop("train_s", samples / rate), index=index, **(usual | changes))


def equal_steps(num, seconds):
    """Return the times of `num` equal steps, as runs with `record_steps` have them."""
    names = ("median_s", "p25_s", "p75_s", "p95_s", "max_s")
    return StepTimes(num=num, **dict.fromkeys(names, seconds))


def write(
    folder: Path,
    study: ScalingStudy,
    runs: dict[str, RunRecord],
    curves: dict[str, list[Evaluation]],
    **sections: Any,
) -> Path:
    """Write a results folder; return it."""
    with Store(folder) as store:
        for name, ended in runs.items():
            for at in curves[name]:
                store.append(at.line(name))
            store.append(ended.line())
        objective = study.base.objective.model_dump(mode="json")
        store.write_yaml(
            STUDY_FILE, {"study": {"objective": objective}, SCALING: study.document(), **sections}
        )
    return folder
