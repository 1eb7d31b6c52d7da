"""Specs, evaluations and records as the names and numbers that tools show."""

import json
import math
import os
from collections.abc import Mapping
from typing import Any

from raybench.core.record import Evaluation, RunRecord
from raybench.core.secrets import HIDDEN, KEY, redact_text
from raybench.core.spec import RunSpec
from raybench.core.text import clean
from raybench.results.loggers.sink import Value


def params_of(spec: RunSpec) -> dict[str, Value]:
    """Return a spec's keys, `dataset.name` for those that lie deeper, without those not set.

    Lists are JSON; what looks secret is hidden.
    """
    found: dict[str, Value] = {}
    _flatten(spec.document(), "", found)
    return found


def curve_values(point: Evaluation, metric_name: str) -> dict[str, float]:
    """Return what is drawn of an evaluation, without what is not finite.

    | name | of it |
    |---|---|
    | validation_accuracy | the metric (or another one) on the validation split |
    | train_loss | mean since the last evaluation |
    | learning_rate | of the last step |
    | samples_per_s | training samples per second of training |
    | epoch, samples, train_s | how far the training is; the last is seconds |
    """
    values = {
        f"validation_{metric_name}": point.value,
        "train_loss": point.train_loss,
        "learning_rate": point.learning_rate,
        "samples_per_s": point.samples_per_s,
        "epoch": point.epoch,
        "samples": float(point.samples),
        "train_s": point.train_s,
    }
    return {name: value for name, value in values.items() if math.isfinite(value)}


def run_figures(record: RunRecord) -> dict[str, float]:
    """Return the numbers of a run that has ended, without those it has none of.

    `time_to_target_s`, `worker_seconds_to_target`, `best_accuracy` and `test_accuracy` (or of
    another metric), `train_s`, `wall_s`, `samples`, `num_parameters`, and seconds of every phase
    as `ledger.<phase>_s`.
    """
    metric, seconds = record.spec.objective.judged_by, record.time_to_target_s
    found: dict[str, float | None] = {
        "time_to_target_s": seconds,
        "worker_seconds_to_target": seconds and seconds * record.spec.num_workers,
        metric.best_column: record.best_value,
        metric.test_column: record.test_value,
        "train_s": record.ledger["train"],
        "wall_s": record.wall_s,
        "samples": record.samples,
        "num_parameters": record.num_parameters,
    }
    found |= {f"ledger.{clean(phase)}_s": spent for phase, spent in record.ledger.items()}
    return {
        name: float(value)
        for name, value in found.items()
        if value is not None and math.isfinite(value)
    }


def run_words(record: RunRecord) -> dict[str, str]:
    """Return the words of a run that has ended: role, state, stop, failure, message, source."""
    found = {
        "role": record.role,
        "state": record.state,
        "stop": record.stop,
        "failure": record.failure,
        "message": record.message,
        "source": record.source,
    }
    return {name: shown(value) for name, value in found.items() if value is not None}


def shown(text: str) -> str:
    """Return a text from outside, in one line and without secrets."""
    return redact_text(clean(text), os.environ)


def _flatten(content: Mapping[str, Any], above: str, found: dict[str, Value]) -> None:
    for key, value in content.items():
        name = f"{above}{clean(str(key))}"
        if isinstance(value, dict):
            _flatten(value, f"{name}.", found)
        elif isinstance(value, bool | int | float):
            found[name] = value
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            is_secret = KEY.search(f"{name}=x") is not None
            found[name] = HIDDEN if is_secret else shown(text)
