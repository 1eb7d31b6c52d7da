"""Studies of every outcome: winners and ties, and the text that is printed about them.

Two screens are stored completely (`screens/NAME.txt`): a race to a target, and values at a budget.
After an intended change, run with RAYBENCH_SCREENS=write to rewrite them, and review the diff.
"""

import html
import itertools
import os
import shutil
from pathlib import Path

import pytest

from raybench.report.answer import summary_of
from raybench.report.export import export
from raybench.report.study import load
from raybench.report.words import MOST_NAMED
from raybench.results.store import StudyFiles
from raybench.results.verdict import verdict_of
from raybench.spec.errors import ErrorCode
from raybench.spec.objective import Objective
from tests.made_results import (
    BUDGET,
    COLD,
    NEAR,
    OBJECTIVE,
    RMSE_BUDGET,
    RMSE_LINES,
    at_budget,
    confirmed_trial,
    raced,
    results_folder,
    run_line,
    shown,
)
from tests.refusals import refused

SCREENS = Path(__file__).parent / "screens"
FIXTURES = Path(__file__).parents[1] / "fixtures"
HELD = Objective(target=0.9, max_train_seconds=60.0, hold=2)
FAR = Objective(target=0.9, baseline_value=0.1, max_train_seconds=60.0)
SEARCH = {"search": {"trials": 60}}
CASES = {
    "nothing ran": [],
    "all failed": [run_line(n, failure="oom") for n in ("0000", "0001")],
    "missed": [run_line("0000", best_value=0.5)],
    "nearest": ([run_line("0000", objective=FAR), run_line("0001", best_value=0.7)], FAR),
    "not held": ([run_line("0000", best_value=0.967, train_s=20.0)], HELD, SEARCH),
    "reference reached it": (
        [run_line("r", 12.0, role="reference"), run_line("0000", outer_stop="time_budget")],
        OBJECTIVE,
        SEARCH,
    ),
    "ran again in vain": [*confirmed_trial("0000", [None, None]), run_line("0001", 5.0)],
    "refuted": [run_line("0000", 9.0), *raced("0001", 4.0, [None], [None])],
    "ran once beside confirmed": [
        *confirmed_trial("0000", [3.9, 4.0, 4.1]),
        *(run_line(f"{n:04d}", 2.0 + n) for n in range(3, 9)),
    ],
    "price": (confirmed_trial("0000", [9.0] * 3, num_workers=2), OBJECTIVE, {"price": 4.0}),
    "race decided": [
        *COLD,
        *raced("0001", 2.0, [2.1, 1.9], [2.5, 2.6]),
        *raced("0002", 6.0, [6.1]),
    ],
    "race tied": [*COLD, *NEAR[0], *NEAR[1]],
    "too alike": [*COLD, *raced("0001", 2.0, [2.1, 1.9]), *raced("0002", 2.0, [2.1, 1.91])],
    "cheapest tied": [
        *COLD,
        *raced("0001", 2.0, [2.0] * 8, num_workers=4),
        *raced("0002", 3.0, [3.0] * 4, num_workers=2),
        *raced("0003", 3.0, [3.1] * 4, num_workers=2),
    ],
    "cheapest may be as fast": [
        *COLD,
        *raced("0001", 2.0, [2.1, 1.9], num_workers=2),
        *raced("0002", 2.5, [2.2, 1.95]),
    ],
    "only the search reached it": [*COLD, *raced("0001", 2.0, [None, None])],
    "rate of all runs": [*COLD, *raced("0001", 4.0, [4.0, None], [4.5, None, 4.4])],
    "disturbed": [
        run_line("0000", 4.0, slow={"disturbed": 1.2, "train_cpu": 2.5}),
        run_line("0001", 5.0, learning_rate=0.01),
        run_line("0002", 6.0, learning_rate=0.02, slow={"disturbed": 0.3}),
    ],
    "RMSE at a budget": (RMSE_LINES, RMSE_BUDGET),
    "RMSE, one new seed": (
        [
            *at_budget("0000", 0.5, objective=RMSE_BUDGET),
            *at_budget("0000-race0", 0.6, objective=RMSE_BUDGET, role="race"),
        ],
        RMSE_BUDGET,
    ),
    "best at a budget, once": (at_budget("0000", 0.7) + at_budget("0001", 0.9), BUDGET),
}


FOUND = {
    "ran again in vain": ("0001", "0001", False, (), ()),
    "refuted": ("0000", "0000", False, (), ()),
    "ran once beside confirmed": ("0000", "0000", True, (), ("0003", "0004", "0005")),
    "price": ("0000", "0000", True, (), ()),
    "race decided": ("0001", "0001", True, (), ()),
    "race tied": ("0001", "0001", True, ("0002",), ()),
    "too alike": ("0001", "0001", True, ("0002",), ()),
    "cheapest tied": ("0001", "0002", True, (), ()),
    "cheapest may be as fast": ("0001", "0002", True, ("0002",), ()),
    "only the search reached it": ("0001", "0001", True, (), ("0000",)),
    "rate of all runs": ("0001", "0001", True, (), ("0000",)),
    "disturbed": ("0000", "0000", False, (), ("0001", "0002")),
    "RMSE at a budget": ("0001", "0001", True, ("0002",), ()),
    "RMSE, one new seed": ("0000", "0000", True, (), ()),
    "best at a budget, once": ("0001", "0001", False, (), ("0000",)),
}
"""Fastest, cheapest, is confirmed, ties, ran once, by case; other cases have no winner."""


def everything_said(results, width=100, *, verbose=False):
    """Return all printed text of a study, the comments of its files, and its repr."""
    parts = [shown(results, width=width, verbose=verbose)]
    for file in export(results, StudyFiles(results.folder)):
        if file.suffix == ".yaml":
            comment = [line for line in file.read_text().splitlines() if line.startswith("#")]
            parts += [f"--- {file.name}", *comment]
    parts += ["--- Python", repr(results)]
    assert results.answer[0] in html.unescape(results._repr_html_())
    text = "\n".join(parts).replace(str(results.folder), "FOLDER")
    assert not {"inf", "nan", "None"} & set(text.split())
    return text.replace(results.folder.name, "NAME") + "\n"


def check_screen(name, text):
    file = SCREENS / f"{name.replace(' ', '_')}.txt"
    if os.environ.get("RAYBENCH_SCREENS") == "write":
        file.write_text(text)
    assert text == file.read_text()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A relative folder of constant length, because printed lines contain it and wrap."""
    monkeypatch.chdir(tmp_path)
    return Path("studies/a-study")


def check_sentences(results):
    """Check that every sentence is complete, and that the trials of the verdict are named."""
    summary = summary_of(results)
    for sentence in (*itertools.chain.from_iterable(summary.conclusions), *summary.caveats):
        assert sentence.endswith("."), sentence
        assert sentence == " ".join(sentence.split())
    verdict = verdict_of(results)
    if verdict is not None:
        for trial in {verdict.fastest, verdict.cheapest}:
            assert f"trial {trial}" in " ".join(summary.lines)
        for trial in verdict.others()[:MOST_NAMED]:
            assert trial in " ".join(summary.caveats)


@pytest.mark.parametrize("name", CASES)
def test_winners_and_ties_of_every_kind_of_study(folder, name):
    case = CASES[name] if isinstance(CASES[name], tuple) else (CASES[name],)
    lines, objective, more = (*case, *(OBJECTIVE, {})[len(case) - 1 :])
    results = results_folder(folder, lines, objective=objective, study=more)
    verdict = None if results.trials.empty else verdict_of(results)
    assert (verdict is None) == (name not in FOUND)
    if verdict is not None:
        first = verdict.fastest, verdict.cheapest, verdict.is_confirmed
        assert (*first, verdict.others(), verdict.once) == FOUND[name]
    for winner in ("best", "cheapest"):
        if verdict is None:
            with refused(ErrorCode.NO_RESULT, results.place):
                getattr(results, winner)
        else:
            assert getattr(results, winner).spec in results.specs.values()
    assert len(results.winners) == (
        0 if verdict is None else len({*first[:2], *verdict.ties, *verdict.once})
    )
    for table in (results.ledger(), results.best_at_every_budget(), results.importance):
        assert not table.columns.empty
    check_sentences(results)
    text = everything_said(results)
    if name == "RMSE at a budget":
        check_screen(name, text)


def test_the_screen_of_a_recorded_study_in_eighty_columns(folder):
    shutil.copytree(FIXTURES / "digits_race", folder)
    results = load(folder)
    check_sentences(results)
    check_screen("digits_race", everything_said(results, width=80, verbose=True))
