"""The order of a scaling study, and what of it is left when it goes on."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from raybench.cluster.signals import Interrupt
from raybench.results.store import Store
from raybench.runs import scale as study_runner
from raybench.runs import single_run
from raybench.runs.deadline import Deadline
from raybench.runs.scale import run_order, run_study
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import ScalingStudy, study_cells
from tests.runs.made_up import study_of, write
from tests.search.made_up import record

STUDY = study_of(num_workers=[1, 2, 4], batch_sizes=[64, 128], axes={"precision": ["fp32", "bf16"]})
CELLS = study_cells(STUDY)


def orders(repeats: int, *, seed: int = 0) -> list[tuple[str, ...]]:
    found = [(cell.name, number) for cell, number in run_order(CELLS, repeats, seed=seed)]
    assert [number for _, number in found] == sorted(number for _, number in found)
    return [tuple(name for name, number in found if number == repeat) for repeat in range(repeats)]


def test_every_cell_runs_once_a_repeat_and_repeats_follow_one_another() -> None:
    for order in orders(5):
        assert Counter(order) == Counter(cell.name for cell in CELLS)


def test_every_repeat_has_an_order_of_its_own_and_another_seed_others() -> None:
    assert len(set(orders(5))) == 5
    assert orders(3) == orders(3)
    assert orders(3) != orders(3, seed=1)
    assert orders(5)[:3] == orders(3), "more repeats leave the first ones as they were"
    assert any(order != tuple(sorted(order)) for order in orders(3))


def test_a_worker_group_is_asked_for_once_a_repeat() -> None:
    groups = {cell.name: cell.spec.placement.group for cell in CELLS}
    first = []
    for order in orders(8):
        row = [group for group, _ in groupby(groups[name] for name in order)]
        assert len(row) == len(set(row)) == 3
        first.append(row[0])
    assert len(set(first)) > 1, "it is not always the same group that comes first"


class Machine:
    """Stands where Ray would: notes what runs, interrupts after so many runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, stops_after: int | None = None) -> None:
        self.ran: list[tuple[str, RunSpec, str | None]] = []
        self.interrupt, self.stops_after = Interrupt(), stops_after
        monkeypatch.setattr(single_run, "run_once", self.run_once)
        saved = nullcontext(Mock(resume=lambda *given: ()))
        monkeypatch.setattr(study_runner, "SavedRuns", lambda *given, **options: saved)

    def run_once(self, pool: Any, spec: RunSpec, name: str, **options: Any) -> Any:
        assert options["keep"], "warm groups are used again"
        self.ran.append((name, spec, options["source"]))
        if len(self.ran) == self.stops_after:
            self.interrupt.is_set = True
            return record(name, spec, stop=None, stopped_by="interrupted", role="scaling"), None
        return record(name, spec, role=options["role"], source=options["source"]), None

    def run(self, folder: Path, study: ScalingStudy) -> list[int]:
        """Run what is left; return what the screen was told of how much that is."""
        progress = Mock()
        with Store(folder) as store:
            run_study(
                study,
                session=Mock(),
                store=store,
                progress=progress,
                deadline=Deadline(None, interrupt=self.interrupt),
            )
        return [begun.args[1] for begun in progress.begin.call_args_list]


def test_a_study_runs_every_repeat_of_every_cell(monkeypatch, tmp_path) -> None:
    machine = Machine(monkeypatch)
    assert machine.run(tmp_path, STUDY) == [len(CELLS) * 2]
    assert [(name, cell) for name, _, cell in machine.ran] == [
        (cell.repeat(number)[0], cell.name) for cell, number in run_order(CELLS, 2, seed=STUDY.seed)
    ]
    by_name = {cell.name: cell.spec for cell in CELLS}
    for name, spec, cell in machine.ran:
        assert cell is not None
        assert spec == by_name[cell].model_copy(update={"seed": int(name[-1])})


def test_an_interrupted_study_goes_on_where_it_stopped(monkeypatch, tmp_path) -> None:
    machine = Machine(monkeypatch, stops_after=5)
    machine.run(tmp_path, STUDY)
    assert len(machine.ran) == 5
    again = Machine(monkeypatch)
    assert again.run(tmp_path, STUDY) == [len(CELLS) * 2 - 4]
    order = [cell.repeat(number)[0] for cell, number in run_order(CELLS, 2, seed=STUDY.seed)]
    assert [name for name, _, _ in machine.ran[:4] + again.ran] == order
    assert Machine(monkeypatch).run(tmp_path, STUDY) == [0]
    more = Machine(monkeypatch)
    assert more.run(tmp_path, STUDY.model_copy(update={"repeats": 3})) == [len(CELLS)]
    assert {name[-1] for name, _, _ in more.ran} == {"2"}, "more repeats: the new ones alone"


def test_what_the_machine_lost_runs_again_and_what_failed_does_not(monkeypatch, tmp_path) -> None:
    study = study_of(scaling="weak", num_workers=[1], repeats=3)
    runs = {
        f"0000-r{number}": replace(
            record(f"0000-r{number}", role="scaling", source="0000", failure=failure),
            spec=study_cells(study)[0].repeat(number)[1],
        )
        for number, failure in enumerate(("worker_lost", "oom"))
    }
    write(tmp_path, study, runs, {name: [] for name in runs})  # type: ignore[arg-type]
    machine = Machine(monkeypatch)
    machine.run(tmp_path, study)
    assert [name for name, _, _ in machine.ran] == ["0000-r0", "0000-r2"]
