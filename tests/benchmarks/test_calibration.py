"""Every printed probability is simulated, and the documentation has the last results."""

import json
from typing import Any

import pytest

QUICK = 80
"""Factor by which studies are fewer than in the table."""


@pytest.fixture
def calibration(module: Any) -> Any:
    return module("calibration")


def test_promised_rates_hold(calibration):
    """Few studies each, so that only large errors show."""
    rows = list(calibration.results(lambda one: max(one.n // QUICK, 4)))
    assert {row["claim"] for row in rows} == {one.name for one in calibration.CLAIMS}
    printed = [row for row in rows if row["n"]]
    assert len(printed) >= 0.9 * len(rows)
    assert [row for row in printed if not row["is_met"]] == []


def test_the_documentation_has_the_last_results(calibration):
    rows = json.loads(calibration.RESULTS.read_text())["claims"]
    text = calibration.DOC.read_text()
    block = text.partition(calibration.BEGIN)[2].partition(calibration.END)[0]
    assert block.strip().splitlines() == calibration.table(rows)
    assert [(row["claim"], row["world"]) for row in rows] == [
        (one.name, one.world) for one in calibration.CLAIMS
    ]
    assert all(row["is_met"] for row in rows)
