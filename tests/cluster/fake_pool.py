"""Fake worker pool for a single run: answers immediately, on a simulated clock."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from raybench.cluster.protocol import (
    Allocation,
    Command,
    Finish,
    Finished,
    Progress,
    RunFailed,
    Start,
)
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.checkpoint import RunState
from raybench.stats.clock import WORKER_PHASES
from raybench.stats.record import Evaluation
from tests.factories import evaluation

SPEC = RunSpec(objective=Objective(target=0.9))
SAVING_S = 0.5
LOST = RunFailed("worker_lost", "a worker process has died")
BROKEN = RunFailed("error", "ValueError: no", "Traceback ...")


class Clock:
    """Stand-in for the time module, so that the load of the machine has no influence."""

    def __init__(self) -> None:
        self._now = 100.0

    def perf_counter(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


time = Clock()


class FakePool:
    """Fake worker pool whose timing and failures are chosen by the test.

    Args:
        travel_s: Seconds between the driver and the workers, per command.
        unaccounted_s: Busy seconds of each command that no ledger phase contains.
        busy_s: Seconds that the workers are busy with a command.
        last: Index of the evaluation at which the run stops.
        is_finite: Whether the last evaluation is finite; otherwise the run fails with NaN.
        faults: Failure by command type or evaluation index; a list is raised one by one.
        saves: Indices of the evaluations followed by a checkpoint, which takes `SAVING_S`.
        resume: Checkpoint that the run starts from.
    """

    def __init__(
        self,
        *,
        travel_s: float = 0.0,
        unaccounted_s: float = 0.0,
        busy_s: float = 0.001,
        last: int = 9,
        is_finite: bool = True,
        faults: dict[type | int, RunFailed | list[RunFailed]] | None = None,
        saves: tuple[int, ...] = (),
        resume: RunState | None = None,
    ) -> None:
        self.travel_s, self.unaccounted_s, self.busy_s = travel_s, unaccounted_s, busy_s
        self.last, self.is_finite, self.faults = last, is_finite, faults or {}
        self.saves, self.resume = saves, resume
        self.heard: list[Any] = []
        self.waits_s: list[float] = []
        self._curve: list[Evaluation] = []
        self.acquire = SimpleNamespace(remote=self._acquire)
        self.command = SimpleNamespace(remote=self._command)
        self.release = SimpleNamespace(remote=self._release)

    def _acquire(self, name: str, request: Any) -> Allocation:
        self.heard.append(request)
        time.sleep(0.03)
        self._raise(Allocation)
        return Allocation(
            queue_s=0.02,
            start_s=0.01,
            hosts=("here",),
            devices=("cpu",),
            resume=self.resume,
        )

    def _raise(self, when: type | int) -> None:
        fault = self.faults.get(when)
        if isinstance(fault, list):
            fault = fault.pop(0) if fault else None
        if fault is not None:
            raise fault

    def _release(self, name: str, **options: bool) -> int:
        self.heard.append((name, options))
        return 3

    def _command(self, name: str, command: Command, timeout_s: float) -> list[Any]:
        self.heard.append(command)
        self.waits_s.append(timeout_s)
        time.sleep(self.travel_s + self.busy_s)
        if isinstance(command, Start):
            self._curve = list(self.resume.evaluations) if self.resume else []
        ledger = dict.fromkeys((*WORKER_PHASES, "input"), 0.0)
        ledger |= self._curve[-1].ledger if self._curve else {}
        ledger["train"] += self.busy_s - self.unaccounted_s
        if isinstance(command, Finish):
            self._raise(Finish)
            weights = Path("weights") if command.save else None
            accuracy = 0.5 if command.test else None
            return [
                Finished(ledger=ledger, busy_s=self.busy_s, weights=weights, test_value=accuracy)
            ]
        index = len(self._curve)
        self._raise(index)
        is_last = index == self.last
        ends = {"stop": "epochs" if self.is_finite else None}
        ends |= {"failure": None if self.is_finite else "nan"}
        point = evaluation(
            ledger["train"], index=index, samples=1, ledger=ledger, **(ends if is_last else {})
        )
        self._curve.append(point)
        if index in self.saves:
            time.sleep(SAVING_S)
            ledger_with_checkpoint = ledger | {"checkpoint": ledger["checkpoint"] + SAVING_S}
            self._curve[-1] = replace(point, ledger=ledger_with_checkpoint)
            self.resume = RunState.after(SPEC, self._curve)
        return [
            Progress(
                evaluation=point,
                num_parameters=1,
                batch_statistics=False,
                num_classes=10,
                busy_s=self.busy_s + SAVING_S * (index in self.saves),
                saved=index + 1 if index in self.saves else None,
            )
        ]
