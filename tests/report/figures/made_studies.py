"""Studies that nobody ran: of any size, by any metric, with a race, in memory."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from raybench.report.study import StudyResults
from raybench.results.study import objective_of
from raybench.results.trials import curve_table, prediction_table, trial_table
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.clock import OTHER, PHASES
from raybench.stats.record import Evaluation, Prediction, Role, RunRecord
from tests.factories import evaluation, record

SPACE: dict[str, Any] = {
    "framework": ["torch", "tensorflow"],
    "num_workers": [1, 2, 4],
    "batch_size_per_worker": {"low": 16, "high": 512, "log2": True},
    "optimizer": ["adam", "sgd", "lamb"],
    "learning_rate": {"low": 0.0001, "high": 0.3, "log": True},
    "weight_decay": {"low": 0.0, "high": 0.1},
}
BEGIN = datetime(2026, 11, 23, 9, tzinfo=UTC)
ACCURACY = {"target": 0.95, "max_train_seconds": 60.0}
RMSE = {"kind": "best_at_budget", "metric": "rmse", "direction": "min", "baseline_value": 2.0}
RMSE |= {"max_train_seconds": 60.0}


def made_study(
    num_trials: int,
    *,
    num_points: int = 20,
    objective: Objective | None = None,
    candidates: int = 4,
    failed: float = 0.02,
    pause_s: float = 0.0,
    names: str = "{:04d}",
) -> StudyResults:
    """A search over SPACE whose runs followed each other on two worker groups, and a race.

    `failed` of the runs broke; the study was interrupted for `pause_s` halfway.
    """
    random = np.random.default_rng(0)
    objective = objective or Objective(**ACCURACY)
    runs: dict[str, RunRecord] = {}
    curves: dict[str, list[Evaluation]] = {}
    predictions: list[Prediction] = []
    clocks = [0.0, 3.0]

    def add(run: RunRecord, points: list[Evaluation], clock: float) -> None:
        finished = (BEGIN + timedelta(seconds=clock)).isoformat(timespec="seconds")
        object.__setattr__(run, "finished", finished)
        runs[run.trial], curves[run.trial] = run, points

    for number in range(num_trials):
        spec = _drawn(random, objective)
        name, group = names.format(number), number % 2
        if pause_s and number == num_trials // 2:
            clocks = [clock + pause_s for clock in clocks]
        run, points = _run(random, name, spec, "trial", None, num_points, failed)
        clocks[group] += run.wall_s
        add(run, points, clocks[group])
        if run.time_to_target_s is not None and len(predictions) < 40:
            for workers in (1, 2, 4):
                one = Prediction(
                    trial=name,
                    framework=spec.framework,
                    num_workers=workers,
                    batch_size_per_worker=max(spec.global_batch_size // workers, 1),
                    time_to_target_s=run.time_to_target_s * (spec.num_workers / workers) ** 0.5,
                )
                predictions.append(one)
    clock = max(clocks)
    best = sorted((one for one in runs.values() if not one.failure), key=lambda one: one.score)
    for role, repeats in (("race", 3), ("confirm", 2)):
        for origin in best[: candidates if role == "race" else 2]:
            for repeat in range(repeats):
                spec = origin.spec.model_copy(update={"seed": 1000 + repeat})
                name = f"{origin.trial}-{role}{repeat}"
                run, points = _run(random, name, spec, role, origin.trial, num_points, 0.0)
                clock += run.wall_s
                add(run, points, clock)
    study = {"study": {"objective": objective.model_dump(mode="json"), "space": SPACE}}
    metric = objective_of(study).judged_by
    return StudyResults(
        place="made",
        folder=Path("made"),
        study=study,
        runs=runs,
        trials=trial_table(runs.values(), SPACE, metric=metric, curves=curves),
        curves=curve_table(curves, metric),
        predictions=prediction_table(predictions),
        evaluations=curves,
    )


def _drawn(random: np.random.Generator, objective: Objective) -> RunSpec:
    return RunSpec(
        objective=objective,
        framework=str(random.choice(["torch", "tensorflow"])),
        num_workers=int(random.choice([1, 2, 4])),
        batch_size_per_worker=int(2 ** random.integers(4, 10)),
        optimizer=str(random.choice(["adam", "sgd", "lamb"])),
        learning_rate=float(10 ** random.uniform(-4, -0.5)),
        weight_decay=float(random.uniform(0, 0.1)),
    )


def _run(
    random: np.random.Generator,
    name: str,
    spec: RunSpec,
    role: Role,
    source: str | None,
    num_points: int,
    failed: float,
) -> tuple[RunRecord, list[Evaluation]]:
    """A run that is the slower the further its rate and batch lie off the best ones."""
    off = abs(math.log10(spec.learning_rate) + 2.2) + 0.35 * abs(
        math.log2(spec.global_batch_size) - 7
    )
    off += 0.6 * (spec.optimizer == "sgd")
    pace = 4.0 * 1.6**off * spec.num_workers**-0.5 * random.lognormal(0, 0.2)
    is_stopped = role == "trial" and off > 1.6
    length = num_points if not is_stopped else max(num_points // 4, 1)
    seconds = pace * np.linspace(0.05, 1.4, num_points)[:length]
    rises = 1 - np.exp(-3.4 * seconds / pace)
    noise = random.normal(0, 0.006, length)
    metric = spec.objective.judged_by
    values = np.clip(0.1 + 0.87 * rises + noise, 0, 1)
    if metric.direction == "min":
        values = 0.2 + 0.1 * off + 1.7 * (1 - rises) + noise
    points = [
        evaluation(float(second), index=index, value=float(value))
        for index, (second, value) in enumerate(zip(seconds, values, strict=True))
    ]
    target, train = spec.objective.target, float(seconds[-1])
    hit = next((one.train_s for one in points if target is not None and one.value >= target), None)
    is_failed = bool(random.random() < failed)
    made = record(
        name,
        spec,
        train,
        role=role,
        source=source,
        stop="target" if hit else None if is_stopped else "epochs",
        failure="nan" if is_failed else None,
        value=metric.best([one.value for one in points]),
        time_to_target_s=hit,
    )
    ledger = dict.fromkeys((*PHASES, "input", OTHER), 0.1) | {"train": train, "queue": 0.5}
    wall_s = sum(ledger.values()) - ledger["input"]
    return replace(made, ledger=ledger, wall_s=wall_s, hosts=["a"], devices=["cpu"]), points
