"""Every sentence with a probability is simulated, and the documentation has what was found."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
QUICK = 80
"""Times fewer studies than the table has."""


@pytest.fixture
def calibration(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("calibration")


def test_no_sentence_promises_more_than_it_holds(calibration: ModuleType) -> None:
    """With few studies each, so that only what is far off is seen."""
    rows = list(calibration.results(lambda one: max(one.n // QUICK, 4)))
    assert {row["claim"] for row in rows} == {one.name for one in calibration.CLAIMS}
    said = [row for row in rows if row["n"]]
    assert len(said) >= 0.9 * len(rows)
    assert [row for row in said if not row["is_met"]] == []


def test_the_table_is_what_was_simulated_last(calibration: ModuleType) -> None:
    rows = json.loads(calibration.RESULTS.read_text())["claims"]
    text = calibration.DOC.read_text()
    block = text.partition(calibration.BEGIN)[2].partition(calibration.END)[0]
    assert block.strip().splitlines() == calibration.table(rows)
    assert [(row["claim"], row["world"]) for row in rows] == [
        (one.name, one.world) for one in calibration.CLAIMS
    ]
    assert all(row["is_met"] for row in rows)
