"""Runs outside Ray Tune: recorded once, continued, with seeds of their own."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from raybench.runs import single_run as module
from raybench.runs.deadline import Deadline
from raybench.runs.saved_runs import Disturbed
from raybench.runs.single_run import SingleRun
from raybench.search.race_stage import RACE_SEEDS, run_alone
from raybench.search.reference import SEEDS_FROM
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.record import RunRecord
from tests.search.made_up import evaluation, record
from tests.search.stage import FakeSavedRuns

SPEC = RunSpec(objective=Objective(target=0.9), seed=1000)


class Machine:
    """Breaks runs as often as `faults` says; remembers what was run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *faults: str) -> None:
        self.faults = list(faults)
        self.disturbed_s: list[float] = []
        """Of the runs, one after the other; 0 of the rest."""
        self.train_s = 1.0
        self.specs: list[RunSpec] = []
        self.keeps: list[bool] = []
        self.lines: list[dict[str, Any]] = []
        self.saved: Any = FakeSavedRuns()
        monkeypatch.setattr(module, "run_once", self.run)

    def run(self, pool: Any, spec: RunSpec, name: str, **options: Any) -> Any:
        self.specs.append(spec)
        self.keeps.append(options["keep"])
        options["on_refused"](name, "why")
        self.reasons = [options["stopped_by"]()]
        options["on_evaluation"](name, evaluation(3.0, index=2))
        self.reasons.append(options["stopped_by"]())
        failure: Any = self.faults.pop(0) if self.faults else None
        role, source = options["role"], options["source"]
        reason = self.reasons[-1]
        ends = {} if reason is None else {"stop": None, "stopped_by": reason}
        found = record(name, spec, self.train_s, failure=failure, role=role, source=source, **ends)
        taken_s = self.disturbed_s.pop(0) if self.disturbed_s else 0.0
        return replace(found, ledger=found.ledger | {"disturbed": taken_s}), None

    def single_run(self, deadline: Deadline | None = None, **options: Any) -> SingleRun:
        def nothing(*given: Any) -> None:
            pass

        progress: Any = SimpleNamespace(
            started=nothing, finished=nothing, evaluated=nothing, say=nothing
        )
        store: Any = SimpleNamespace(append=self.lines.append)
        session: Any = SimpleNamespace(pool=None)
        deadline = deadline or Deadline(None)
        return SingleRun(session, store, deadline, progress, self.saved, **options)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize("faults", [[], ["timeout"], ["nan"]])
def test_a_run_is_tried_once_here_and_recorded(
    faults: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How often it gets new workers is `run_client`'s to say."""
    machine = Machine(monkeypatch, *faults)
    found = machine.single_run().train(SPEC, "0001-confirm0", "confirm", source="0001")
    assert (found.phase, found.role, found.source) == ("confirm", "confirm", "0001")
    assert len(machine.specs) == 1
    ends = [line for line in machine.lines if line["kind"] == "run"]
    assert [line["failure"] for line in ends] == [found.failure] == (faults or [None])
    assert machine.saved.over_with == ["0001-confirm0"]
    assert machine.saved.put_aside == [("0001-confirm0", "why")]


def test_a_run_that_is_continued_has_its_curve_written_up_to_there(machine: Machine) -> None:
    machine.saved.curve = [evaluation(), evaluation(2.0, index=1)]
    machine.single_run().train(SPEC, "a", "confirm")
    assert [line.get("index") for line in machine.lines] == [0, 1, 2, None]


def test_a_disturbed_run_is_marked_and_not_run_again(machine: Machine) -> None:
    machine.disturbed_s = [0.5, 0.0]
    found = machine.single_run().train(SPEC, "0001-race0", "race", source="0001")
    assert (len(machine.specs), found.is_disturbed) == (1, True)


def test_a_throttled_core_is_told_by_the_processor_s_seconds_of_others_like_it() -> None:
    disturbed = Disturbed()

    def judged(cpu_s: float, seconds: float, **changes: Any) -> RunRecord:
        spec = SPEC.model_copy(update=changes)
        found = record("a", spec, seconds, role="race", samples=1000)
        found = replace(found, ledger=found.ledger | {"train_cpu": cpu_s, "disturbed": 0.0})
        return disturbed.judged(found)

    assert not judged(4.0, 4.0, batch_size_per_worker=8).is_disturbed, "nothing is like it"
    others = [judged(cpu_s, 1.0, seed=number) for number, cpu_s in enumerate((0.9, 1.0, 1.1))]
    assert not any(one.is_disturbed for one in others)
    assert not judged(1.3, 1.3, seed=7, learning_rate=0.5).is_disturbed
    throttled = judged(2.0, 2.2, seed=8)
    assert throttled.is_disturbed
    assert throttled.disturbed_s == pytest.approx(2.2 * (1 - 1.05 / 2.0))


@pytest.mark.parametrize("seed", [1000, 2**32 - 1])
def test_seeds_of_runs_alone_are_never_the_search_s_nor_a_reference_s_nor_a_race_s(
    machine: Machine, seed: int
) -> None:
    spec = SPEC.model_copy(update={"seed": seed})
    run_alone(
        {"0001": spec, "0002": spec},
        caps_s={},
        times=3,
        search_seed=seed,
        already={"0001-confirm1"},
        single_run=machine.single_run(),
    )
    seeds = [spec.seed for spec in machine.specs]
    assert len(seeds) == 5
    ends = [line for line in machine.lines if line["kind"] == "run"]
    runs = [(line["trial"], line["role"], line["source"]) for line in ends]
    order = ["0001-confirm0", "0002-confirm0", "0002-confirm1", "0001-confirm2", "0002-confirm2"]
    assert runs == [(name, "confirm", name[:4]) for name in order]
    assert len(set(seeds)) == 3
    others = {(seed + first + n) % 2**32 for first in (SEEDS_FROM, RACE_SEEDS) for n in range(200)}
    assert not set(seeds) & ({seed} | others)


def test_whoever_judges_a_run_sees_all_its_evaluations_and_may_end_it(machine: Machine) -> None:
    machine.saved.curve = [evaluation(), evaluation(2.0, index=1)]
    seen: list[float] = []

    def judge(point: Any) -> Any:
        seen.append(point.train_s)
        return "cap" if point.train_s > 2.5 else None

    machine.single_run().train(SPEC, "a", "race", source="0001", judge=judge)
    assert (seen, machine.reasons) == ([1.0, 2.0, 3.0], [None, "cap"])


@pytest.mark.parametrize(("cap_s", "reason"), [(3.5, "cap"), (4.0, "time_budget")])
def test_a_run_alone_that_the_budget_ends_has_missed_if_it_took_too_long_by_then(
    machine: Machine, cap_s: float, reason: str
) -> None:
    """By all it has trained: it is cut off between two evaluations, the last at 3 s."""
    machine.train_s = 4.0
    deadline = Deadline(1000.0)

    def resume(name: str, spec: RunSpec) -> tuple[()]:
        deadline.reserve_s = 2000.0  # from the first evaluation on the budget is over
        return ()

    machine.saved.resume = resume
    run_alone(
        {"0001": SPEC},
        caps_s={"0001": cap_s},
        times=1,
        search_seed=0,
        already=set(),
        single_run=machine.single_run(deadline),
    )
    assert machine.lines[-1]["stop"] == reason
