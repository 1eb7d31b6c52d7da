"""A results folder as DataFrames: the entry of notebooks and reports."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from raybench.core.clock import PHASES
from raybench.core.documents import read_mapping
from raybench.core.record import CURVE_KEYS
from raybench.results.store import STUDY_FILE, read_records

SPEC_COLUMNS = (
    "framework",
    "workload",
    "num_workers",
    "batch_size_per_worker",
    "optimizer",
    "learning_rate",
    "seed",
)
TRIAL_COLUMNS = (
    "trial",
    "phase",
    "state",
    "failure",
    "framework",
    "workload",
    "num_parameters",
    "num_workers",
    "batch_size_per_worker",
    "global_batch_size",
    "optimizer",
    "learning_rate",
    "seed",
    "time_to_target_s",
    "best_accuracy",
    *(f"{name}_s" for name in ("queue", "start", "setup", "compile", "train", "input")),
    *(f"{name}_s" for name in ("eval", "checkpoint", "report", "wall")),
    "samples_per_s",
    "worker_seconds",
)
"""Columns of `trials` that scripts may rely on; more may follow behind them."""
EXTRA_COLUMNS = (
    "score",
    "samples",
    "stop",
    "message",
    "test_accuracy",
    "concurrent",
    "config",
    "batch_statistics",
)
FLOAT_COLUMNS = ("time_to_target_s", "best_accuracy", "test_accuracy", "samples_per_s", "score")
CURVE_COLUMNS = ("trial", *(key for key in CURVE_KEYS if key != "index"))
"""Columns of `curves` that scripts may rely on."""


PREDICTION_COLUMNS = (
    "trial",
    "framework",
    "num_workers",
    "batch_size_per_worker",
    "time_to_target_s",
)


@dataclass(frozen=True)
class StudyResults:
    """What a results folder holds."""

    folder: Path
    study: dict[str, Any]
    """Content of `study.yaml`."""
    trials: pd.DataFrame
    """One row per finished run, in the order they finished; columns TRIAL_COLUMNS first."""
    curves: pd.DataFrame
    """One row per evaluation of these runs; columns CURVE_COLUMNS."""
    specs: dict[str, dict[str, Any]]
    """Full run spec of every trial."""
    predictions: pd.DataFrame
    """One row per split that a trial was not run on, by the step-time model; columns
    PREDICTION_COLUMNS. Never measured: do not mix with `trials`."""

    @property
    def target(self) -> float | None:
        """Validation accuracy the study asked for, as a fraction."""
        value = self.study["study"]["objective"]["target"]
        return None if value is None else float(value)


def load(folder: str | Path) -> StudyResults:
    """Read a results folder; needs neither Ray nor a framework.

    A run that was interrupted and run again counts once, with its last record. Raises
    UserError where the folder is not a results folder.
    """
    folder = Path(folder)
    runs: dict[str, dict[str, Any]] = {}
    curves: dict[str, list[dict[str, Any]]] = {}
    pending: dict[str, list[dict[str, Any]]] = {}
    predictions: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in read_records(folder):
        name = record["trial"]
        if record["kind"] == "prediction":
            split = name, *(record[key] for key in PREDICTION_COLUMNS[1:4])
            predictions[split] = record
        elif record["kind"] == "run":
            runs.pop(name, None)  # the later record stands at its own place
            runs[name] = record
            curves[name] = pending.pop(name, [])
        elif record["index"] == 0:
            pending[name] = [record]
        else:
            pending.setdefault(name, []).append(record)
    points = [point for name in runs for point in curves[name]]
    return StudyResults(
        folder=folder,
        study=read_mapping(folder / STUDY_FILE),
        trials=_trial_table([_trial_row(run) for run in runs.values()]),
        curves=pd.DataFrame(points, columns=list(CURVE_COLUMNS)),
        specs={name: run["spec"] for name, run in runs.items()},
        predictions=pd.DataFrame(predictions.values(), columns=list(PREDICTION_COLUMNS)),
    )


def _trial_table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=[*TRIAL_COLUMNS, *EXTRA_COLUMNS])
    # A column whose values are all missing has no type of its own.
    return table.astype(dict.fromkeys(FLOAT_COLUMNS, float))


def _trial_row(run: dict[str, Any]) -> dict[str, Any]:
    spec, ledger = run["spec"], run["ledger"]
    train = ledger["train"]
    row = {key: run[key] for key in (*TRIAL_COLUMNS, *EXTRA_COLUMNS) if key in run}
    row |= {key: spec[key] for key in SPEC_COLUMNS}
    row |= {f"{name}_s": ledger[name] for name in (*PHASES, "input")}
    row["global_batch_size"] = (
        spec["batch_size_per_worker"] * spec["num_workers"] * spec["accumulate"]
    )
    row["samples_per_s"] = run["samples"] / train if train > 0 else None
    row["worker_seconds"] = spec["num_workers"] * train
    row["config"] = describe(spec)
    return row


def describe(spec: dict[str, Any]) -> str:
    """Return a configuration in one line: framework, workers x batch, optimizer, rate."""
    return (
        f"{spec['framework']} {spec['num_workers']}x{spec['batch_size_per_worker']} "
        f"{spec['optimizer']} {spec['learning_rate']:.3g}"
    )
