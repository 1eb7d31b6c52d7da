"""Fake clients of runs without a cluster, driven by a generator of outcomes."""

from collections.abc import Callable, Generator
from typing import Any

import pytest

from raybench.runs import lifecycle
from raybench.spec.run import RunSpec
from raybench.stats.record import RunOutcome

Train = Callable[[str, RunSpec], Generator[RunOutcome, None, None]]
"""Generator function of the outcomes of a run; the last outcome is over."""


class FakeClient:
    """Fake `RunClient`."""

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
    clients: list[FakeClient] = []

    def make(pool: Any, name: str, spec: RunSpec, *, keep: bool, **options: Any) -> FakeClient:
        clients.append(FakeClient(train, name, spec, keep=keep))
        return clients[-1]

    monkeypatch.setattr(lifecycle, "RunClient", make)
    return clients
