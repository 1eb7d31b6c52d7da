"""TensorBoard: one folder of event files per run, inside the results folder.

Each value is written under two tags. In `by_train_ms/...`, the step of an evaluation is its
training time in milliseconds; in `by_samples/...`, it is the number of training samples. Timestamps
are computed from training time, so the axis RELATIVE shows the training seconds since the first
evaluation.

Events are written with the event file writer of tensorboardX, which is installed with Ray.
`SummaryWriter` is not used, because its thread would end silently if the disk is full.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import event_pb2
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.summary import hparams, text

from raybench.loggers.follow import Figures, LoggedRun, Sink, params_of
from raybench.spec.documents import to_yaml

FOLDER = "tensorboard"
AXES = {
    "by_train_ms": (1000.0, "train_s"),
    "by_samples": (1.0, "samples"),
}
"""Axes of the charts: (factor, name of a value), keyed by tag prefix. The step of an evaluation is
the factor times the value."""
NOT_DRAWN = ("train_s", "samples")
"""Values of an evaluation that are used as axes and are not plotted as curves."""
NOT_COMPARED = ("objective.", "dataset.", "checkpoint_every_s", "record_steps")
"""Prefixes of keys that the table of hyperparameters leaves out."""


class _TensorBoard(Sink):
    """Writes event files to `<study>/tensorboard/<run>/`; a rerun of a run replaces its files."""

    def __init__(self, folder: Path, study: str) -> None:
        del study  # TensorBoard names runs by their folders
        self._folder = folder / FOLDER
        self._files: dict[str, _Events] = {}

    def start(self, run: LoggedRun) -> None:
        file = self._files[run.name] = _Events(self._folder / folder_name(run.name))
        params = params_of(run.spec)
        file.add(text("spec", f"```yaml\n{to_yaml(dict(params))}```"), wall_s=run.began)
        compared = {key: params[key] for key in params if not key.startswith(NOT_COMPARED)}
        metric = run.spec.objective.judged_by
        figures = ("time_to_target_s", "worker_seconds_to_target", metric.best_column)
        measured = {f"run/{name}": 0.0 for name in figures}
        for part in hparams({"role": run.role, **compared}, measured)[:2]:  # not the session end
            file.add(part, wall_s=run.began)

    def points(self, run: LoggedRun, points: Sequence[Figures]) -> None:
        file = self._files[run.name]
        for values in points:
            wall_s = run.began + values.get("train_s", 0.0)
            for axis, (factor, counter) in AXES.items():
                for name in values.keys() - NOT_DRAWN if counter in values else ():
                    step = round(factor * values[counter])
                    file.scalar(f"{axis}/{name}", values[name], step, wall_s=wall_s)

    def end(self, run: LoggedRun, figures: Figures, texts: Mapping[str, str]) -> None:
        file = self._files.pop(run.name)
        wall_s = run.began + figures.get("train_s", 0.0)
        for name, value in figures.items():
            tag = name.replace(".", "/") if name.startswith("ledger.") else f"run/{name}"
            file.scalar(tag, value, 0, wall_s=wall_s)
        lines = "".join(f"- {key}: {_plain(value)}\n" for key, value in texts.items())
        file.add(text("end", lines), wall_s=wall_s)
        file.close()

    def flush(self) -> None:
        for file in self._files.values():
            file.flush()

    def close(self) -> str:
        for file in self._files.values():
            file.close()
        return f"tensorboard --logdir {self._folder}"


class _Events:
    """A new event file; earlier event files in its folder are deleted."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = EventsWriter(str(folder.absolute() / "events"))
        self.flush, self.close = self._writer.flush, self._writer.close
        # A running TensorBoard then discards the points of the earlier file.
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._writer.write_event(event_pb2.Event(step=0, wall_time=0.0, session_log=start))

    def add(self, summary: Summary, step: int = 0, *, wall_s: float) -> None:
        """Write a summary with a step and a Unix time in seconds."""
        event = event_pb2.Event(step=step, wall_time=wall_s, summary=summary)
        self._writer.write_event(event)

    def scalar(self, tag: str, value: float, step: int, *, wall_s: float) -> None:
        """Write a number with a step and a Unix time in seconds."""
        summary_value = Summary.Value(tag=tag, simple_value=value)
        self.add(Summary(value=[summary_value]), step, wall_s=wall_s)


open_sink = _TensorBoard


def folder_name(run: str) -> str:
    """Return the name of the folder for a run.

    If the name of the run is not a valid folder name, it is changed and a hash is appended.
    """
    safe = re.sub(r"[^\w.=+-]", "_", run, flags=re.ASCII).lstrip(".")[:100]
    if safe == run:
        return run
    return f"{safe}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"


def _plain(text: str) -> str:
    """Return text escaped for Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>()#|~!-])", r"\\\1", text)
