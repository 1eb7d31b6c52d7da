"""The ledger seen by the owner: every phase measured by itself, and what is left shown."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from raybench.cluster import lease as lease_module
from raybench.cluster.protocol import Finish, Finished, Lent, Progress
from raybench.cluster.run_client import RunClient
from raybench.core.clock import PHASES, WORKER_PHASES
from raybench.core.objective import Objective
from raybench.core.record import Evaluation
from raybench.core.spec import RunSpec

SPEC = RunSpec(objective=Objective(target=0.9))


class FakeHub:
    """Answers after `travel_s`; its workers were busy for `busy_s`, of which they account for all
    but `unaccounted_s`."""

    def __init__(self, *, travel_s: float, unaccounted_s: float = 0.0) -> None:
        self.travel_s, self.unaccounted_s, self.busy_s = travel_s, unaccounted_s, 0.05
        self._train = 0.0
        self.acquire = SimpleNamespace(remote=self._acquire)
        self.command = SimpleNamespace(remote=self._command)
        self.release = SimpleNamespace(remote=lambda *given, **more: 0)

    def _acquire(self, *given: Any) -> Lent:
        time.sleep(0.03)
        return Lent(group=0, queue_s=0.02, start_s=0.01)

    def _command(self, trial: str, command: Any, timeout_s: float) -> list[Any]:
        time.sleep(self.travel_s + self.busy_s)
        self._train += self.busy_s - self.unaccounted_s
        ledger = dict.fromkeys(WORKER_PHASES, 0.0) | {"train": self._train, "input": 0.0}
        if isinstance(command, Finish):
            return [Finished(ledger=ledger, busy_s=self.busy_s)]
        evaluation = Evaluation(
            index=0,
            epoch=1.0,
            samples=1,
            train_s=self._train,
            train_loss=0.0,
            accuracy=0.0,
            learning_rate=0.1,
            samples_per_s=1.0,
            ledger=ledger,
        )
        return [
            Progress(
                evaluation=evaluation,
                num_parameters=1,
                batch_statistics=False,
                num_classes=10,
                busy_s=self.busy_s,
            )
        ]


def run(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, float], float]:
    monkeypatch.setattr(lease_module.ray, "get", lambda answer: answer)
    lease = RunClient(hub, "a", SPEC)
    lease.acquire()
    lease.start()
    time.sleep(0.04)  # the owner thinks
    lease.advance()
    lease.finish()
    found = lease.ledger()
    lease.close()
    return found


def test_travel_and_the_owner_s_own_time_are_report(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, wall = run(FakeHub(travel_s=0.02), monkeypatch)
    assert ledger["report"] == pytest.approx(3 * 0.02 + 0.04, abs=0.02)
    assert ledger["train"] == pytest.approx(0.15)
    assert abs(ledger["other"]) < 0.01
    assert sum(ledger[phase] for phase in PHASES) + ledger["other"] == pytest.approx(wall)


def test_what_no_phase_accounts_for_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger can fail: a phase that is not counted is not absorbed by another."""
    ledger, _ = run(FakeHub(travel_s=0.0, unaccounted_s=0.02), monkeypatch)
    assert ledger["other"] == pytest.approx(3 * 0.02, abs=0.01)


def test_a_run_that_never_got_workers_has_only_waited() -> None:
    lease = RunClient(FakeHub(travel_s=0.0), "a", SPEC)
    time.sleep(0.02)
    ledger, wall = lease.ledger()
    assert ledger == {"queue": pytest.approx(wall, abs=0.01), "other": 0.0}
