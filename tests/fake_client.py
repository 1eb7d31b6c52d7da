"""Fake clients of runs without a cluster, driven by a generator of outcomes, and a fake session."""

import contextlib
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import pytest

from raybench.runs import lifecycle
from raybench.spec.run import RunSpec
from raybench.stats.record import RunOutcome
from tests.search.stage import FakeSavedRuns

Train = Callable[[str, RunSpec], Generator[RunOutcome, None, None]]
"""Function of a run's name and spec that yields its outcomes."""


class FakeClient:
    """Fake `RunClient`; `train(name, spec)` generates the outcomes of the run, and the last of them
    is over."""

    weights = None

    def __init__(self, train: Train, name: str, spec: RunSpec, *, keep: bool) -> None:
        self.name, self.spec, self.keep = name, spec, keep
        self.is_tested = False
        self._outcomes = train(name, spec)

    def step(self) -> RunOutcome:
        self._last = next(self._outcomes)
        return self._last

    def finish(self, *, save: bool, test: bool) -> RunOutcome:
        self._outcomes.close()
        self.is_tested = test
        return self._last


def use_clients(monkeypatch: pytest.MonkeyPatch, train: Train) -> list[FakeClient]:
    """Give single runs fake clients; return the list of created clients."""
    clients = []

    def make(pool: Any, name: str, spec: RunSpec, *, keep: bool, **options: Any) -> FakeClient:
        clients.append(FakeClient(train, name, spec, keep=keep))
        return clients[-1]

    monkeypatch.setattr(lifecycle, "RunClient", make)
    return clients


def use_session(monkeypatch, command, capacity):
    """Let a command connect to a machine without workers, and keep no checkpoints."""

    @contextlib.contextmanager
    def session(*arguments):
        yield SimpleNamespace(
            pool=None,
            is_local=True,
            capacity=capacity(),
            notes=[],
            share=lambda datasets: None,
            waiting=dict,
            stop_waiting=lambda: None,
        )

    monkeypatch.setattr(command, "live_session", session)
    saved = contextlib.nullcontext(FakeSavedRuns())
    monkeypatch.setattr(lifecycle, "SavedRuns", lambda *arguments, **options: saved)
