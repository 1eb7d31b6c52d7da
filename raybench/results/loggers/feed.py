"""From the lines of `records.jsonl`, whenever they come, to what a tool is told."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from raybench.core.record import Evaluation, Role, RunRecord
from raybench.core.spec import RunSpec
from raybench.core.time_of_day import unix_seconds
from raybench.results.loggers.ledger import Ledger
from raybench.results.loggers.sink import Run, Sink
from raybench.results.records import evaluation_of, kind_and_trial, run_of, what_runs


@dataclass
class _Live:
    """A run without a record."""

    curve: list[Evaluation] = field(default_factory=list)
    what: tuple[Role, RunSpec] | None = None
    """Its role and spec; None of what a version wrote that told them at the end."""
    run: Run | None = None
    """As the tool was told of it; None before."""
    num_told: int = 0
    """Points of the curve that the tool has; -1 where it has some that count no more."""

    def add(self, point: Evaluation) -> None:
        """Add an evaluation; one that comes again was repeated, and what followed it is gone."""
        while self.curve and self.curve[-1].index >= point.index:
            self.curve.pop()
        self.curve.append(point)
        if len(self.curve) <= self.num_told:
            self.num_told = -1


class Feed:
    """Tells a tool of a study's runs: of each once, with the curve of its last attempt."""

    def __init__(self, sink: Sink, ledger: Ledger) -> None:
        self._sink, self._ledger = sink, ledger
        self._live: dict[str, _Live] = {}
        self.num_told = 0
        """Runs that the tool was told the end of."""

    def take(self, line: dict[str, Any]) -> None:
        """Take a line of the records; ValueError where it is none."""
        kind, name = kind_and_trial(line)
        if kind == "eval":
            live = self._live.setdefault(name, _Live())
            live.what = what_runs(line) or live.what
            live.add(evaluation_of(line))
        elif kind == "run":
            self._end(run_of(line), self._live.pop(name, _Live()))

    def flush(self) -> None:
        """Tell the tool of the new points of runs that go on."""
        for name, live in self._live.items():
            if live.what is not None and live.num_told < len(live.curve):
                self._tell(name, live, began=unix_seconds() - live.curve[-1].train_s)
        self._sink.flush()

    def close(self) -> None:
        """End in the tool what nobody trains any more."""
        for live in self._live.values():
            if live.run is not None:
                self._sink.cut_off(live.run)
        self._live.clear()

    def _end(self, record: RunRecord, live: _Live) -> None:
        if live.run is None and self._is_there(record):
            return
        live.what = record.role, record.spec
        run = self._tell(record.trial, live, began=_ended_s(record) - record.ledger["train"])
        self._sink.end(run, record)
        self._ledger.ended(record)
        self.num_told += 1

    def _is_there(self, record: RunRecord) -> bool:
        name = self._ledger.name_of(record.trial)
        return name is not None and self._ledger.holds(record) and self._sink.has(name)

    def _tell(self, name: str, live: _Live, *, began: float) -> Run:
        """Tell the points that are new; all of them where the run is, or begins again."""
        assert live.what is not None
        if live.run is None or live.num_told < 0:
            role, spec = live.what
            live.run, live.num_told = Run(name=name, role=role, spec=spec, began=began), 0
            self._ledger.begun(name, self._sink.start(live.run, self._ledger.name_of(name)))
        self._sink.points(live.run, live.curve[live.num_told :])
        live.num_told = len(live.curve)
        return live.run


def _ended_s(record: RunRecord) -> float:
    """Return when a run ended, Unix seconds; now, of a version that did not write it."""
    if not record.finished:
        return unix_seconds()
    return datetime.fromisoformat(record.finished).timestamp()
