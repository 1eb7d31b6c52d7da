"""A worker pool that answers at once, on a clock of its own, for one run."""

from types import SimpleNamespace
from typing import Any

from raybench.cluster.protocol import Command, Finish, Finished, Lent, Progress, RunFailed
from raybench.core.clock import WORKER_PHASES
from raybench.core.objective import Objective
from raybench.core.record import Evaluation
from raybench.core.spec import RunSpec

SPEC = RunSpec(objective=Objective(target=0.9))
LOST = RunFailed("worker_lost", "a worker process has died")
BROKEN = RunFailed("error", "ValueError: no", "Traceback ...")


class Clock:
    """Stands for the time module, so that a busy machine changes nothing."""

    def __init__(self) -> None:
        self._now = 100.0

    def perf_counter(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


time = Clock()


class FakePool:
    """Answers after `travel_s`; its workers were busy for `busy_s`, of which they account for all
    but `unaccounted_s`. The run stops at evaluation `last`; `faults` are raised for commands."""

    def __init__(
        self,
        *,
        travel_s: float = 0.0,
        unaccounted_s: float = 0.0,
        busy_s: float = 0.001,
        last: int = 9,
        is_finite: bool = True,
        faults: dict[type | int, RunFailed] | None = None,
    ) -> None:
        self.travel_s, self.unaccounted_s, self.busy_s = travel_s, unaccounted_s, busy_s
        self.last, self.is_finite, self.faults = last, is_finite, faults or {}
        self.heard: list[Any] = []
        self._train, self._index = 0.0, -1
        self.acquire = SimpleNamespace(remote=self._acquire)
        self.command = SimpleNamespace(remote=self._command)
        self.release = SimpleNamespace(remote=self._release)

    def _acquire(self, name: str, placement: Any) -> Lent:
        self.heard.append(placement)
        time.sleep(0.03)
        if Lent in self.faults:
            raise self.faults[Lent]
        return Lent(queue_s=0.02, start_s=0.01, hosts=("here",), devices=("cpu",))

    def _release(self, name: str, **options: bool) -> int:
        self.heard.append((name, options))
        return 3

    def _command(self, name: str, command: Command, timeout_s: float) -> list[Any]:
        self.heard.append(command)
        time.sleep(self.travel_s + self.busy_s)
        self._train += self.busy_s - self.unaccounted_s
        ledger = dict.fromkeys(WORKER_PHASES, 0.0) | {"train": self._train, "input": 0.0}
        if isinstance(command, Finish):
            if Finish in self.faults:
                raise self.faults[Finish]
            weights = b"weights" if command.save else None
            accuracy = 0.5 if command.test else None
            return [
                Finished(ledger=ledger, busy_s=self.busy_s, weights=weights, test_accuracy=accuracy)
            ]
        self._index += 1
        if self._index in self.faults:
            raise self.faults[self._index]
        is_last = self._index == self.last
        evaluation = Evaluation(
            index=self._index,
            epoch=1.0,
            samples=1,
            train_s=self._train,
            train_loss=0.0,
            accuracy=0.0,
            learning_rate=0.1,
            samples_per_s=1.0,
            ledger=ledger,
            stop="epochs" if is_last and self.is_finite else None,
            failure="nan" if is_last and not self.is_finite else None,
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
