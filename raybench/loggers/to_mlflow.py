"""MLflow: an experiment for the study, in it a run for every run and one for the winners.

MLflow draws over a step, a whole number: it is milliseconds of training. The time of every point is
that of the training clock, so its axis of relative time is seconds of training. Where it writes,
MLflow's own variables say: MLFLOW_TRACKING_URI (a server, `sqlite:///FILE`) and
MLFLOW_EXPERIMENT_NAME.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import mlflow
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST, ErrorCode
from mlflow.tracking import MlflowClient

from raybench.loggers.sink import (
    Run,
    Value,
    Winner,
    curve_values,
    params_of,
    run_figures,
    run_words,
    shown,
)
from raybench.stats.clock import unix_seconds
from raybench.stats.record import Evaluation, RunRecord

MOST_METRICS, MOST_PARAMS = 1000, 100
"""That a server takes at once."""
LONGEST = 5000
"""Characters of a tag's value; a server takes a few more."""
NOTE = "mlflow.note.content"
PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3"}
"""How long a server is waited for, seconds and tries, unless the user says otherwise."""


class MLflow:
    """Writes through MLflow's client: neither its current run nor the code's place are told."""

    def __init__(self, study: str) -> None:
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        self._client, uri = MlflowClient(), mlflow.get_tracking_uri()
        self._experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or study
        self.place = f"{shown(uri)} {self._experiment}"
        self._shown_uri, self._study = shown(uri), study
        self._is_new = False
        self._experiment_id = self._opened_experiment()
        self._runs: dict[str, str] = {}
        """Runs that go on, by MLflow's ids."""

    def has(self, name: str) -> bool:
        """Believe it, but of an experiment that is new: what the user has deleted stays away."""
        del name
        return not self._is_new

    def start(self, run: Run, earlier: str | None) -> str:
        """Begin a run with its spec; the one it had is deleted, as MLflow cannot shorten it."""
        if earlier is not None:
            self._delete(earlier)
        number = self._create(run.name, began=run.began, tags={"role": run.role})
        self._runs[run.name] = number
        self._params(number, params_of(run.spec))
        return number

    def points(self, run: Run, points: Sequence[Evaluation]) -> None:
        """Add evaluations to a run's curve."""
        metric = run.spec.objective.judged_by.name
        metrics = []
        for point in points:
            values = curve_values(point, metric)
            step = round(1000 * values.get("train_s", 0.0))
            at = round(1000 * run.began) + step
            metrics += [Metric(name, value, at, step) for name, value in values.items()]
        self._metrics(self._runs[run.name], metrics)

    def end(self, run: Run, record: RunRecord) -> None:
        """End a run with its figures."""
        number, figures = self._runs.pop(run.name), run_figures(record)
        step = round(1000 * figures["train_s"])
        at = round(1000 * run.began) + step
        # Points of a curve have these as metrics, too.
        own = {name: value for name, value in figures.items() if name not in ("train_s", "samples")}
        self._metrics(number, [Metric(name, value, at, step) for name, value in own.items()])
        self._tags(number, run_words(record))
        status = "FAILED" if record.failure else "FINISHED"
        status = "KILLED" if record.stop == "interrupted" else status
        self._client.set_terminated(number, status, end_time=at)

    def cut_off(self, run: Run) -> None:
        """End a run that nobody trains any more."""
        self._client.set_terminated(self._runs.pop(run.name), "KILLED")

    def winners(self, winners: Sequence[Winner], earlier: str | None) -> str:
        """Write the winners to a run of the study's own."""
        if earlier is not None:
            self._delete(earlier)
        number = self._create(
            f"{self._study}: winners", began=unix_seconds(), tags={"role": "winners"}
        )
        sentences = []
        for winner in winners:
            title = winner.title
            self._params(number, {f"{title}.{k}": v for k, v in params_of(winner.spec).items()})
            at = round(1000 * unix_seconds())
            found = {f"{title}.{name}": value for name, value in winner.figures.items()}
            self._metrics(number, [Metric(name, value, at, 0) for name, value in found.items()])
            proof = "confirmed" if winner.is_confirmed else "one run, not confirmed"
            config = f"trial {winner.trial}: {shown(winner.config)} ({proof})"
            self._tags(number, {title: config})
            sentences.append(f"- {title}: {config}")
        self._tags(number, {NOTE: "\n".join(sentences)})
        self._client.set_terminated(number, "FINISHED")
        return number

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> str:
        """Return where to look."""
        if "://" in self._shown_uri and self._shown_uri.startswith("http"):
            return f"experiment {self._experiment} at {self._shown_uri}"
        return f"mlflow ui --backend-store-uri {self._shown_uri}, experiment {self._experiment}"

    def _opened_experiment(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            self._is_new = True
            return str(self._client.create_experiment(self._experiment))
        if found.lifecycle_stage != "active":
            raise ValueError(
                f"the experiment {self._experiment} was deleted there; restore it, or set "
                "MLFLOW_EXPERIMENT_NAME to another"
            )
        return str(found.experiment_id)

    def _create(self, name: str, *, began: float, tags: dict[str, str]) -> str:
        found = self._client.create_run(
            self._experiment_id,
            start_time=round(1000 * began),
            run_name=name,
            tags={"study": self._study} | tags,
        )
        return str(found.info.run_id)

    def _delete(self, number: str) -> None:
        try:
            self._client.delete_run(number)
        except MlflowException as error:
            if error.error_code != ErrorCode.Name(RESOURCE_DOES_NOT_EXIST):
                raise  # the user has deleted it for good before

    def _params(self, number: str, params: dict[str, Value]) -> None:
        rows = [Param(name, str(value)[:LONGEST]) for name, value in params.items()]
        for at in range(0, len(rows), MOST_PARAMS):
            self._client.log_batch(number, params=rows[at : at + MOST_PARAMS])

    def _metrics(self, number: str, metrics: list[Metric]) -> None:
        for at in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(number, metrics=metrics[at : at + MOST_METRICS])

    def _tags(self, number: str, tags: dict[str, str]) -> None:
        rows = [RunTag(name, value[:LONGEST]) for name, value in tags.items()]
        self._client.log_batch(number, tags=rows)


def open_sink(folder: Path, study: str) -> MLflow:
    """Return the sink of a study, which MLflow keeps elsewhere."""
    del folder
    return MLflow(study)
