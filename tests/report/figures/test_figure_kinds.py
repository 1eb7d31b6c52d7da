"""Every figure of every kind of study can be drawn, read and told in numbers."""

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


MAKERS: dict[str, Any] = {
    "digits": lambda folder: raybench.load(FIXTURES / "digits_study"),
    "race": lambda folder: raybench.load(FIXTURES / "digits_race"),
    "rmse": lambda folder: results_folder(
        folder,
        runs_of(40, best_value=0.4, objective=Objective(baseline_value=2.0, **RMSE)),
        objective=Objective(baseline_value=2.0, **RMSE),
    ),
    "missed": lambda folder: results_folder(folder, [*curve("0", [0.5, 0.8]), run_line("0")]),
    "failed": lambda folder: results_folder(folder, runs_of(5, failure="nan")),
    "one": lambda folder: results_folder(folder, runs_of(2)[-13:]),
    "empty": lambda folder: results_folder(folder, []),
}


@pytest.fixture(scope="module")
def study_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, StudyResults] = {}

    def study(name: str) -> StudyResults:
        if name not in made:
            made[name] = MAKERS[name](tmp_path_factory.mktemp(name))
        return made[name]

    return study


def studies(*fast: str) -> list[Any]:
    """All studies, of which a usual run of the tests takes but `fast`."""
    return [name if name in fast else pytest.param(name, marks=pytest.mark.all) for name in MAKERS]


@pytest.mark.parametrize("study", studies("race"))
def test_figures_are_drawn_inside_their_frames_and_no_text_hides_another(
    study: str, study_of: Any
) -> None:
    results = study_of(study)
    for name, kind in FIGURES.items():
        if kind.applies(results):
            look_at(name, kind.draw(results))


@pytest.mark.parametrize("study", studies("race", "failed"))
def test_every_figure_has_its_numbers_in_words(study: str, study_of: Any) -> None:
    results = study_of(study)
    for name, kind in FIGURES.items():
        if kind.applies(results):
            table = kind.table(results)
            assert len(table), name
            assert len(table) <= 60, name
            assert not [column for column in table if "_" in str(column)]
            assert kind.title
            assert kind.reading.endswith(".")


def test_what_has_nothing_to_draw_does_not_apply(study_of: Any) -> None:
    assert not [name for name, kind in FIGURES.items() if kind.applies(study_of("empty"))]
    drawn = [name for name, kind in FIGURES.items() if kind.applies(study_of("failed"))]
    assert drawn == ["curves", "timeline", "ledger"]
    assert [name for name, kind in FIGURES.items() if kind.applies(study_of("race"))] == [*FIGURES]


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
