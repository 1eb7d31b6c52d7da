"""Clients of runs without a cluster: a function says what becomes of each run."""

from collections.abc import Callable, Generator
from typing import Any

import pytest

from raybench.runs import lifecycle
from raybench.spec.run import RunSpec
from raybench.stats.record import RunOutcome

Train = Callable[[str, RunSpec], Generator[RunOutcome, None, None]]
"""Yields the states of a run, of which the last is over; closed at the end of the run."""


class FakeClient:
    """Stands for a `RunClient`."""

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
    """Let single runs have fake clients; return those that were made."""
    made: list[FakeClient] = []

    def make(pool: Any, name: str, spec: RunSpec, *, keep: bool, **options: Any) -> FakeClient:
        made.append(FakeClient(train, name, spec, keep=keep))
        return made[-1]

    monkeypatch.setattr(lifecycle, "RunClient", make)
    return made
