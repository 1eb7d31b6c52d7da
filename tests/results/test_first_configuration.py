"""The answer compares the winner with the user's first configuration (`search.first`)."""

import pytest

from raybench.report.answer import said
from tests.made_results import raced, results_folder, run_line

FIRST = {"learning_rate": 0.02, "model": {"n": 2}}
OWN = {"learning_rate": 0.02, "model": {"n": 2}}
OTHER = {"learning_rate": 0.1, "model": {"n": 1}}


def answer(folder, lines, first=FIRST):
    results = results_folder(folder, lines, study={"space": {}, "search": {"first": [first]}})
    return " ".join(said(results).lines)


@pytest.mark.parametrize(("seconds", "words"), [(8.0, "4 times as fast as"), (1.0, "It is")])
def test_the_winner_is_compared_with_it(tmp_path, seconds, words):
    lines = [run_line("0000", seconds, **OWN), run_line("0001", 2.0, **OTHER)]
    lines.append(run_line("0002", 9.0, learning_rate=0.02, model={"n": 2.0}))
    found = answer(tmp_path, lines)
    assert f"{words} your first configuration (trial 0000)" in found
    assert ("8.00 s, one run" in found) == (seconds == 8.0)


def test_one_that_was_confirmed_is_compared_by_its_new_runs(tmp_path):
    first = raced("0000", 5.0, [6.0, 6.0, 6.0], **OWN)
    found = answer(tmp_path, [*first, *raced("0001", 2.5, [3.0, 3.0, 3.0], **OTHER)])
    assert "2 times as fast as your first configuration (trial 0000), 6.00 s." in found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (run_line("0000", best_value=0.8, **OWN), "short of the target, at accuracy 80.0 %"),
        (run_line("0000", failure="oom", **OWN), "failed (oom)"),
    ],
)
def test_one_without_a_time_is_told_by_what_it_reached(tmp_path, line, words):
    assert words in answer(tmp_path, [line, run_line("0001", 2.0, **OTHER)])


def test_nothing_is_said_where_it_has_not_run(tmp_path):
    assert "your first" not in answer(tmp_path, [run_line("0001", 2.0, **OTHER)])
