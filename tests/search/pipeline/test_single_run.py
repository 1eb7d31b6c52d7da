"""Runs outside Ray Tune: repeated where the machine broke them, with seeds of their own."""

from types import SimpleNamespace
from typing import Any

import pytest

from raybench.core.objective import Objective
from raybench.core.outcome import run_record
from raybench.core.spec import RunSpec
from raybench.search import alone as module
from raybench.search.deadline import Deadline
from raybench.search.pipeline.confirm import confirm
from raybench.search.pipeline.reference import SEEDS_FROM
from raybench.search.pipeline.single_run import ATTEMPTS, SingleRun

SPEC = RunSpec(objective=Objective(target=0.9), seed=1000)


class Machine:
    """Breaks runs as often as `faults` says; remembers what was run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *faults: str) -> None:
        self.faults, self.specs, self.keeps, self.lines = list(faults), [], [], []
        monkeypatch.setattr(module, "run_once", self.run)

    def run(self, hub: Any, spec: RunSpec, name: str, phase: Any, **options: Any) -> Any:
        self.specs.append(spec)
        self.keeps.append(options["keep"])
        failure = self.faults.pop(0) if self.faults else None
        result = {"failure": failure, "stop": "target"}
        return run_record(name, spec.document(), result, spec.objective, "", phase=phase), None

    def alone(self, **options: Any) -> SingleRun:
        def nothing(*given: Any) -> None:
            pass

        screen: Any = SimpleNamespace(started=nothing, finished=nothing, evaluated=nothing)
        store: Any = SimpleNamespace(append=self.lines.append)
        session: Any = SimpleNamespace(hub=None)
        return SingleRun(session, store, Deadline(None), screen, **options)


@pytest.mark.parametrize("fault", ["timeout", "worker_lost"])
def test_a_run_that_the_machine_broke_is_repeated_and_recorded_once(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, fault, fault)
    record = machine.alone().train(SPEC, "0001-confirm0", "confirm")
    assert record.failure is None
    assert len(machine.specs) == 3
    assert [line["failure"] for line in machine.lines] == [None]


def test_repetitions_are_bounded_and_other_failures_are_the_run_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch, *["timeout"] * 10)
    assert machine.alone().train(SPEC, "a", "confirm").failure == "timeout"
    assert len(machine.specs) == ATTEMPTS
    machine = Machine(monkeypatch, "nan")
    assert machine.alone().train(SPEC, "b", "confirm").failure == "nan"
    assert len(machine.specs) == 1


@pytest.mark.parametrize("keep", [True, False])
def test_isolation_holds_for_these_runs_too(keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.alone(keep_groups=keep).train(SPEC, "a", "confirm")
    assert machine.keeps == [keep]


@pytest.mark.parametrize("seed", [0, 1000, 2000, 2**32 - 1])
def test_confirming_seeds_are_never_the_search_s_nor_a_reference_s(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch)
    document = SPEC.model_copy(update={"seed": seed}).document()
    confirm(
        {"0001": document, "0002": document},
        repeats=3,
        search_seed=seed,
        already={"0001-confirm1"},
        alone=machine.alone(),
    )
    seeds = [spec.seed for spec in machine.specs]
    assert len(seeds) == 5
    assert len(set(seeds)) == 3
    reference = {(seed + SEEDS_FROM + number) % 2**32 for number in range(3)}
    assert not set(seeds) & ({seed} | reference)
