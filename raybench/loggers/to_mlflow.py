"""MLflow: one experiment per study, with an MLflow run for each run.

The step of an evaluation is its training time in milliseconds, since MLflow needs an integer.
Timestamps are computed from training time too, so the axis of relative time shows training seconds.
The environment variables MLFLOW_TRACKING_URI (a server, or `sqlite:///FILE`) and
MLFLOW_EXPERIMENT_NAME set the destination.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import mlflow
from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from raybench.loggers.follow import CUT_OFF, Figures, LoggedRun, Sink, Value, params_of, redacted
from raybench.spec.objective import StopReason

MOST_METRICS, MOST_PARAMS = 1000, 100
"""Maximum number of metrics, and of parameters, in one request to a server."""
LONGEST = 5000
"""Maximum length of a parameter or tag in characters; the limit of the server is a little
higher."""
NOT_IN_NAMES = re.compile(r"[^\w. :/-]")
"""Characters that MLflow rejects in the name of a metric; `mAP50-95(B)` becomes `mAP50-95_B_`."""
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # seconds
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Environment variables that are set unless the user has set them."""
KEY = "raybench_run"
"""Tag whose value is the same for all attempts of a run."""


class _MLflow(Sink):
    """Writes to MLflow with `MlflowClient`, which sends no information about the code and sets no
    active run."""

    def __init__(self, folder: Path, study: str) -> None:
        del folder  # MLflow writes elsewhere
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self._client, self._uri = MlflowClient(), redacted(mlflow.get_tracking_uri())
        self._name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or study
        self._study = study
        self._runs: dict[str, str] = {}
        """MLflow ids of the open runs, keyed by run name."""
        experiment = self._client.get_experiment_by_name(self._name)
        if experiment is not None and experiment.lifecycle_stage != "active":
            raise ValueError(
                f"the experiment {self._name} was deleted there; restore it, or set "
                "MLFLOW_EXPERIMENT_NAME to another"
            )
        self._experiment = str(
            experiment.experiment_id if experiment else self._client.create_experiment(self._name)
        )

    def start(self, run: LoggedRun) -> None:
        self._runs[run.name] = number = self._create(run.name, run.role, run.began)
        self._params(number, params_of(run.spec))

    def points(self, run: LoggedRun, points: Sequence[Figures]) -> None:
        metrics = []
        for values in points:
            step = round(1000 * values.get("train_s", 0.0))
            metrics += _metrics(values, round(1000 * run.began) + step, step)
        self._log(self._runs[run.name], metrics)

    def end(self, run: LoggedRun, figures: Figures, texts: Mapping[str, str]) -> None:
        number = self._runs.pop(run.name)
        step = round(1000 * figures.get("train_s", 0.0))
        time_ms = round(1000 * run.began) + step
        # The points of the curve already have metrics of these names.
        final_figures = {
            name: value for name, value in figures.items() if name not in ("train_s", "samples")
        }
        self._log(number, _metrics(final_figures, time_ms, step))
        tags = [RunTag(name, value[:LONGEST]) for name, value in texts.items()]
        self._client.log_batch(number, tags=tags)
        status = "FAILED" if "failure" in texts else "FINISHED"
        is_killed = texts.get("stop") == StopReason.INTERRUPTED or texts == CUT_OFF
        # A run that is cut off has no figures; None then means now.
        end_time = time_ms if figures else None
        self._client.set_terminated(number, "KILLED" if is_killed else status, end_time=end_time)

    def close(self) -> str:
        if self._uri.startswith("http"):
            return f"experiment {self._name} at {self._uri}"
        return f"mlflow ui --backend-store-uri {self._uri}, experiment {self._name}"

    def _create(self, name: str, role: str, began: float) -> str:
        """Create a run in MLflow, and return its id.

        Earlier attempts of the run are deleted, since MLflow cannot remove points of a curve.
        """
        key = hashlib.sha256(f"{self._study} {name}".encode()).hexdigest()[:16]
        for earlier in self._client.search_runs([self._experiment], f"tags.{KEY} = '{key}'"):
            self._client.delete_run(earlier.info.run_id)
        created = self._client.create_run(
            self._experiment,
            start_time=round(1000 * began),
            run_name=name,
            tags={"study": self._study, "role": role, KEY: key},
        )
        return str(created.info.run_id)

    def _params(self, number: str, params: Mapping[str, Value]) -> None:
        rows = [Param(name, str(value)[:LONGEST]) for name, value in params.items()]
        for start in range(0, len(rows), MOST_PARAMS):
            self._client.log_batch(number, params=rows[start : start + MOST_PARAMS])

    def _log(self, number: str, metrics: list[Metric]) -> None:
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(number, metrics=metrics[start : start + MOST_METRICS])


def _metrics(values: Mapping[str, float], time_ms: int, step: int) -> list[Metric]:
    return [
        Metric(NOT_IN_NAMES.sub("_", name), value, time_ms, step) for name, value in values.items()
    ]


open_sink = _MLflow
