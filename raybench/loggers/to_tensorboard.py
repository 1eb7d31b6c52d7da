"""TensorBoard: a folder of event files for every run, below the study's own.

What TensorBoard draws over is the step, a whole number: in the tags `by_train_ms/...` that is
milliseconds of training (its axis says 5k for 5 seconds), in `by_samples/...` training samples. The
axis RELATIVE is seconds of training since the first evaluation, as the time of every point is that
of the training clock.

Written with tensorboardX, which comes with Ray, by its plain file: its `SummaryWriter` has a thread
that dies without a word where the disk is full.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import event_pb2
from tensorboardX.proto.api_pb2 import Status
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData, SessionEndInfo
from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboardX.summary import hparams, text

from raybench.loggers.sink import (
    Run,
    Value,
    Winner,
    curve_values,
    params_of,
    run_figures,
    run_words,
)
from raybench.spec.documents import to_yaml
from raybench.stats.clock import unix_seconds
from raybench.stats.record import Evaluation, RunRecord

FOLDER = "tensorboard"
WINNERS = "winners"
EVENTS = "events.out.tfevents.*"
AXES = {
    "by_train_ms": (1000.0, "train_s", "over milliseconds of training: 5k is 5 seconds"),
    "by_samples": (1.0, "samples", "over training samples"),
}
"""Beginnings of tags: what of a point is the step, times what, and that in words."""
NOT_DRAWN = ("train_s", "samples")
"""What is an axis is no curve."""
END_TAG = "_hparams_/session_end_info"
NOT_COMPARED = ("objective.", "dataset.", "checkpoint_every_s", "record_steps")
"""Beginnings of keys that a table of configurations needs no column of."""


class TensorBoard:
    """Writes `<study>/tensorboard/<run>/events.out.tfevents...`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self.place = FOLDER
        self._files: dict[str, _Events] = {}

    def has(self, name: str) -> bool:
        """Whether a run's folder is there: it may be deleted to have all written anew."""
        return (self._folder / name).is_dir()

    def start(self, run: Run, earlier: str | None) -> str:
        """Begin a run's file, in place of the one it had."""
        del earlier  # lies where this one will
        name = folder_name(run.name)
        file = self._files[run.name] = _Events(self._folder / name)
        params = params_of(run.spec)
        file.add(text("spec", f"```yaml\n{to_yaml(dict(params))}```"), wall_s=run.began)
        compared = {key: params[key] for key in params if not key.startswith(NOT_COMPARED)}
        metric = run.spec.objective.judged_by
        figures = ("time_to_target_s", "worker_seconds_to_target", metric.best_column)
        tags = [f"run/{name}" for name in figures]
        for part in _hparams({"role": run.role, **compared}, tags):
            file.add(part, wall_s=run.began)
        return name

    def points(self, run: Run, points: Sequence[Evaluation]) -> None:
        """Add evaluations to a run's curve, on both axes."""
        file, metric = self._files[run.name], run.spec.objective.judged_by.name
        for point in points:
            values = curve_values(point, metric)
            wall_s = run.began + values.get("train_s", 0.0)
            for axis, (factor, of, words) in AXES.items():
                if of not in values:
                    continue
                step = round(factor * values[of])
                for name, value in values.items():
                    if name not in NOT_DRAWN:
                        file.scalar(f"{axis}/{name}", value, step, wall_s=wall_s, words=words)

    def end(self, run: Run, record: RunRecord) -> None:
        """Write a run's figures, its end, and close its file."""
        file = self._files.pop(run.name)
        figures = run_figures(record)
        wall_s = run.began + figures["train_s"]
        for name, value in figures.items():
            part = "ledger" if name.startswith("ledger.") else "run"
            file.scalar(f"{part}/{name.removeprefix('ledger.')}", value, 0, wall_s=wall_s)
        words = "".join(f"- {key}: {_plain(value)}\n" for key, value in run_words(record).items())
        file.add(text("end", words), wall_s=wall_s)
        file.add(_session_end(is_well=record.failure is None), wall_s=wall_s)
        file.close()

    def cut_off(self, run: Run) -> None:
        """Close a run's file."""
        file = self._files.pop(run.name)
        file.add(text("end", "- state: cut off"), wall_s=run.began)
        file.close()

    def winners(self, winners: Sequence[Winner], earlier: str | None) -> str:
        """Write a run `winners`: a text, and a number for every figure."""
        del earlier  # lies where this one will
        file, now_s = _Events(self._folder / WINNERS), unix_seconds()
        for winner in winners:
            proof = "confirmed by new runs" if winner.is_confirmed else "one run, not confirmed"
            rows = "".join(f"| {key} | {value:.6g} |\n" for key, value in winner.figures.items())
            table = f"**{_plain(winner.config)}** (trial {_plain(winner.trial)}; {proof})\n\n"
            file.add(
                text(winner.title, f"{table}| figure | value |\n|---|---|\n{rows}"), wall_s=now_s
            )
            for key, value in winner.figures.items():
                file.scalar(f"{WINNERS}/{winner.title}/{key}", value, 0, wall_s=now_s)
        file.close()
        return WINNERS

    def flush(self) -> None:
        """Write what is held back."""
        for file in self._files.values():
            file.flush()

    def close(self) -> str:
        """Close all files; return the command that shows them."""
        for file in self._files.values():
            file.close()
        return f"tensorboard --logdir {self._folder}"


class _Events:
    """An event file in a folder, in place of those that are there."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(EVENTS):
            old.unlink()
        self._writer = EventsWriter(str(folder.absolute() / "events"))
        self._described: set[str] = set()
        # A TensorBoard that has read the earlier file forgets what it held.
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._writer.write_event(event_pb2.Event(step=0, wall_time=0.0, session_log=start))

    def add(self, summary: Summary, step: int = 0, *, wall_s: float) -> None:
        """Write a summary at a step and a time, Unix seconds."""
        event = event_pb2.Event(step=step, wall_time=wall_s, summary=summary)
        self._writer.write_event(event)

    def scalar(self, tag: str, value: float, step: int, *, wall_s: float, words: str = "") -> None:
        """Write a number; `words` stand beside the tag, and are written with its first one."""
        metadata = None
        if tag not in self._described:
            self._described.add(tag)
            plugin = SummaryMetadata.PluginData(plugin_name="scalars")
            metadata = SummaryMetadata(summary_description=words, plugin_data=plugin)
        one = Summary.Value(tag=tag, simple_value=value, metadata=metadata)
        self.add(Summary(value=[one]), step, wall_s=wall_s)

    def flush(self) -> None:
        """Write what is held back."""
        self._writer.flush()

    def close(self) -> None:
        """Write what is held back, and close."""
        self._writer.close()


def open_sink(folder: Path, study: str) -> TensorBoard:
    """Return the sink of a study in `folder`."""
    del study  # TensorBoard names runs by their folders
    return TensorBoard(folder)


def folder_name(run: str) -> str:
    """Return a folder's name for a run's; those that had to be changed end in a digest."""
    safe = re.sub(r"[^\w.=+-]", "_", run, flags=re.ASCII).lstrip(".")[:100]
    if safe == run and run != WINNERS:
        return run
    return f"{safe}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"


def _hparams(params: Mapping[str, Value], tags: Sequence[str]) -> list[Summary]:
    """Return what TensorBoard's table of configurations is made of, but the end.

    `tags` are those of its columns that are measured.
    """
    experiment, start, _ = hparams(dict(params), dict.fromkeys(tags, 0.0))
    return [experiment, start]


def _session_end(*, is_well: bool) -> Summary:
    status = Status.Value("STATUS_SUCCESS" if is_well else "STATUS_FAILURE")
    content = HParamsPluginData(session_end_info=SessionEndInfo(status=status), version=0)
    plugin = SummaryMetadata.PluginData(plugin_name="hparams", content=content.SerializeToString())
    value = Summary.Value(tag=END_TAG, metadata=SummaryMetadata(plugin_data=plugin))
    return Summary(value=[value])


def _plain(text: str) -> str:
    """Return a text that Markdown takes as it is."""
    return re.sub(r"([\\`*_{}\[\]<>()#|~!-])", r"\\\1", text)
