"""What a verdict stands on, in words; and winners at the end of a searched range."""

import pytest
from test_repeated import COLD
from test_verdict import at_budget, judged_at_budget

from raybench.report.how_sure import how_sure
from raybench.report.remarks import edge_lines
from raybench.results.verdict import judge
from tests.made_results import raced, results_folder, run_line

NEAR = raced("0001", 2.0, [2.1, 1.9]), raced("0002", 2.5, [2.6, 2.4])


def test_more_runs_are_proposed_until_what_is_tied_is_shown_not_to_matter(tmp_path):
    results = results_folder(tmp_path / "a", [line for each in (COLD, *NEAR) for line in each])
    verdict = judge(results)
    assert verdict.undecided
    assert f"--more {4 * (1 + len(verdict.undecided))}" in how_sure(results, verdict)
    alike = [2.0 * 1.3 ** (number % 3) for number in range(30)]
    same = raced("0001", 2.0, alike), raced("0002", 2.0, [1.001 * one for one in alike])
    results = results_folder(tmp_path / "b", [line for each in (COLD, *same) for line in each])
    verdict = judge(results)
    assert verdict.others()
    assert not verdict.undecided
    assert "5 %" in how_sure(results, verdict)


def test_the_scatter_of_a_winner_whose_runs_lie_further_apart_is_its_own(tmp_path):
    steady = [at_budget(f"000{n}", 0.55, [0.55, 0.551, 0.549, 0.552]) for n in (0, 2, 3)]
    wild = at_budget("0001", 0.6, [0.54, 0.61, 0.54, 0.60])
    results, verdict = judged_at_budget(tmp_path, wild, *steady)
    assert verdict.ties[0] == "0001"
    assert len(verdict.ties) > 1, "its own runs do not tell it from the others"
    text = how_sure(results, verdict)
    assert "points, those of trial 0001 by 3." in text
    low, high = (results.confirmed[f"interval_{end}_accuracy"].iloc[0] for end in ("low", "high"))
    assert high - low > 0.05


RATE = {"learning_rate": {"low": 0.0001, "high": 0.03, "log": True}}
BATCH = {"batch_size_per_worker": {"low": 16, "high": 512, "log2": True}}


@pytest.mark.parametrize(
    ("space", "spec", "sentence"),
    [
        (
            RATE,
            {"learning_rate": 0.0299},
            "At the upper end of what was searched: learning_rate of",
        ),
        (RATE | BATCH, {"learning_rate": 0.0001, "batch_size_per_worker": 16}, "lower end of"),
        (RATE, {"learning_rate": 0.06}, None),  # the search went there, and further
        ({"num_workers": [1, 2]}, {"num_workers": 2}, None),  # a list has no ends
        ({"weight_decay": {"low": 0.0, "high": 0.1}}, {"weight_decay": 0.0}, None),
        (
            {
                "optimizer": ["adam", "lars"],
                "learning_rate": [
                    {"when": {"optimizer": "adam"}, "low": 1e-4, "high": 0.03, "log": True},
                    {"when": {"optimizer": "lars"}, "low": 0.01, "high": 10.0, "log": True},
                ],
            },
            {"optimizer": "lars", "learning_rate": 0.029},
            None,
        ),
        ({"no_such_key": {}}, {}, None),  # of another version
    ],
)
def test_a_winner_at_the_end_of_a_range_is_said(tmp_path, space, spec, sentence):
    results = results_folder(tmp_path, [run_line("0000", 2.0, **spec)], study={"space": space})
    lines = edge_lines(results, judge(results))
    assert len(lines) == (sentence is not None)
    assert sentence is None or sentence in lines[0]
