"""The table of faults: what a try counts as, and what the table says of it."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import faults

    yield faults
    for name in ("faults", "fault_study"):
        sys.modules.pop(name)


GOOD = {
    "fault": "worker",
    "wanted": 3,
    "finished": 3,
    "exit": 0,
    "lost": 0,
    "doubled": 0,
    "torn_curves": 0,
    "went_on_s": 9.5,
    "said": ["trial 0000 goes on | elsewhere"],
}


@pytest.mark.parametrize(
    "change", [{"finished": 2, "lost": 1}, {"exit": 1}, {"doubled": 1}, {"torn_curves": 1}]
)
def test_one_that_is_not_whole_is_not_good(faults, change) -> None:
    assert faults.is_good(GOOD)
    assert not faults.is_good(GOOD | change)
    assert not faults.is_good({"fault": "worker", "broken": "AssertionError: "})


def test_the_table_counts_every_try(faults) -> None:
    late = GOOD | {"went_on_s": 20.5, "finished": 2, "lost": 1}
    *_, row = faults.report([GOOD, late, {"fault": "worker", "broken": "AssertionError"}])
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        *("worker", "3", "1", "5 of 9", "4", "0", "15.0 (9.5 - 20.5)"),
        *("2", "trial 0000 goes on / elsewhere"),
    ]
