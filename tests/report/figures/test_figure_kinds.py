"""Every figure of every kind of study can be drawn, read and told in numbers."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from looks import look_at

import raybench
from raybench.report.figures.kinds import FIGURES
from raybench.report.figures.svg import svg
from raybench.report.study import StudyResults
from raybench.spec.objective import Objective
from tests.made_results import curve, results_folder, run_line

FIXTURES = Path(__file__).parents[2] / "fixtures"
MOST_BYTES = 150_000
BEGIN = datetime(2026, 11, 23, 9, tzinfo=UTC)
RMSE: dict[str, Any] = {"kind": "best_at_budget", "metric": "rmse", "direction": "min"}


def runs_of(number: int, points: int = 12, **given: Any) -> list[dict[str, Any]]:
    """Runs whose rates, seconds and values lie apart."""
    lines = []
    for n in range(number):
        name, best = f"{n:04d}", 0.5 + n % 97 / 250
        values = [best * (1 - 0.6 ** (step + 1)) for step in range(points)]
        own: dict[str, Any] = {"learning_rate": 1e-5 * (n + 1), "num_workers": 1 + n % 2}
        seconds = 5.0 + n % 97 if n % 3 else None
        run = run_line(name, seconds, **(own | given))
        run["finished"] = (BEGIN + timedelta(seconds=20 * n)).isoformat()
        lines += [*curve(name, values), run]
    return lines


def rmse(folder: Path) -> StudyResults:
    objective = Objective(baseline_value=2.0, **RMSE)
    return results_folder(
        folder, runs_of(40, best_value=0.4, objective=objective), objective=objective
    )


def silent(folder: Path) -> StudyResults:
    """A run that failed before its first evaluation."""
    run = run_line("0000", failure="oom") | {"best_value": None, "samples": 0}
    run["ledger"] = dict.fromkeys(run["ledger"], 0.0)
    return results_folder(folder, [run])


@pytest.mark.parametrize(
    ("make", "applies"),
    [
        (lambda folder: raybench.load(FIXTURES / "digits_race"), [*FIGURES]),
        (lambda folder: results_folder(folder, []), []),
        (
            lambda folder: results_folder(folder, runs_of(5, failure="nan")),
            ["curves", "timeline", "ledger"],
        ),
        (silent, ["curves", "ledger"]),
        pytest.param(
            lambda folder: raybench.load(FIXTURES / "digits_study"), None, marks=pytest.mark.all
        ),
        pytest.param(rmse, None, marks=pytest.mark.all),
        pytest.param(
            lambda folder: results_folder(folder, [*curve("0", [0.5, 0.8]), run_line("0")]),
            None,
            marks=pytest.mark.all,
        ),
        pytest.param(
            lambda folder: results_folder(folder, runs_of(2)[-13:]), None, marks=pytest.mark.all
        ),
    ],
    ids=["race", "empty", "failed", "silent", "digits", "rmse", "missed", "one"],
)
def test_figures_that_apply_can_be_drawn_and_read_and_have_a_table(
    make: Callable[[Path], StudyResults], applies: list[str] | None, tmp_path: Path
) -> None:
    results = make(tmp_path)
    kinds = {name: kind for name, kind in FIGURES.items() if kind.applies(results)}
    assert applies is None or [*kinds] == applies
    for name, kind in kinds.items():
        look_at(name, kind.draw(results))
        table = kind.table(results)
        assert 0 < len(table) <= 60 or make is silent, name
        assert not [column for column in table if "_" in str(column)]


@pytest.mark.all
def test_of_many_runs_some_are_drawn_and_figures_stay_small_and_say_so(tmp_path: Path) -> None:
    space = {"learning_rate": {"low": 1e-5, "high": 0.1, "log": True}, "num_workers": [1, 2]}
    results = results_folder(tmp_path, runs_of(5000, points=40), study={"space": space})
    assert len(results.curves) == 200_000
    for name, kind in FIGURES.items():
        if kind.applies(results):
            text = svg(kind.draw(results), name)
            assert len(text) < MOST_BYTES, name
            said = "".join(ElementTree.fromstring(text).itertext())
            assert "drawn" in said or name not in ("curves", "slices", "timeline"), name
