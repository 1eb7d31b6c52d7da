"""Runs outside Ray Tune: recorded once, continued, with seeds of their own."""

from types import SimpleNamespace
from typing import Any

import pytest

from raybench.core.objective import Objective
from raybench.core.spec import RunSpec
from raybench.search.deadline import Deadline
from raybench.search.pipeline import single_run as module
from raybench.search.pipeline.confirm import confirm
from raybench.search.pipeline.reference import SEEDS_FROM
from raybench.search.pipeline.single_run import SingleRun
from tests.search.made_up import evaluation, record

SPEC = RunSpec(objective=Objective(target=0.9), seed=1000)


class Machine:
    """Breaks runs as often as `faults` says; remembers what was run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *faults: str) -> None:
        self.faults = list(faults)
        self.specs: list[RunSpec] = []
        self.keeps: list[bool] = []
        self.lines: list[dict[str, Any]] = []
        self.curve: list[Any] = []
        self.over: list[str] = []
        self.refused: list[str] = []
        self.saved: Any = SimpleNamespace(
            resume=lambda name, spec: self.curve,
            save=None,
            refused=lambda name, why: self.refused.append(name),
            over=lambda record: self.over.append(record.trial),
        )
        monkeypatch.setattr(module, "run_once", self.run)

    def run(self, pool: Any, spec: RunSpec, name: str, **options: Any) -> Any:
        self.specs.append(spec)
        self.keeps.append(options["keep"])
        options["on_refused"](name, "why")
        failure: Any = self.faults.pop(0) if self.faults else None
        role, source = options["role"], options["source"]
        return record(name, spec, failure=failure, role=role, source=source), None

    def single_run(self, **options: Any) -> SingleRun:
        def nothing(*given: Any) -> None:
            pass

        progress: Any = SimpleNamespace(started=nothing, finished=nothing, evaluated=nothing)
        store: Any = SimpleNamespace(append=self.lines.append)
        session: Any = SimpleNamespace(pool=None)
        return SingleRun(session, store, Deadline(None), progress, self.saved, **options)


@pytest.mark.parametrize("faults", [[], ["timeout"], ["nan"]])
def test_a_run_is_tried_once_here_and_recorded(
    faults: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How often it gets new workers is `run_client`'s to say."""
    machine = Machine(monkeypatch, *faults)
    found = machine.single_run().train(SPEC, "0001-confirm0", "confirm", source="0001")
    assert (found.phase, found.role, found.source) == ("confirm", "confirm", "0001")
    assert len(machine.specs) == 1
    assert [line["failure"] for line in machine.lines] == [found.failure] == (faults or [None])
    assert machine.over == machine.refused == ["0001-confirm0"]


def test_a_run_that_is_continued_has_its_curve_written_up_to_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch)
    machine.curve = [evaluation(), evaluation(2.0, index=1)]
    machine.single_run().train(SPEC, "a", "confirm")
    assert [line.get("index") for line in machine.lines] == [0, 1, None]


@pytest.mark.parametrize("keep", [True, False])
def test_isolation_holds_for_these_runs_too(keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.single_run(keep_groups=keep).train(SPEC, "a", "confirm")
    assert machine.keeps == [keep]


@pytest.mark.parametrize("seed", [0, 1000, 2000, 2**32 - 1])
def test_confirming_seeds_are_never_the_search_s_nor_a_reference_s(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch)
    spec = SPEC.model_copy(update={"seed": seed})
    confirm(
        {"0001": spec, "0002": spec},
        repeats=3,
        search_seed=seed,
        already={"0001-confirm1"},
        single_run=machine.single_run(),
    )
    seeds = [spec.seed for spec in machine.specs]
    assert len(seeds) == 5
    runs = [(line["trial"], line["role"], line["source"]) for line in machine.lines]
    order = ["0001-confirm0", "0002-confirm0", "0002-confirm1", "0001-confirm2", "0002-confirm2"]
    assert runs == [(name, "confirm", name[:4]) for name in order]
    assert len(set(seeds)) == 3
    reference = {(seed + SEEDS_FROM + number) % 2**32 for number in range(3)}
    assert not set(seeds) & ({seed} | reference)
