import io

import pandas as pd
import pytest
from rich.console import Console
from test_load import OBJECTIVE, results_folder, run_line

from raybench.core.spec import Objective
from raybench.results.show import show
from raybench.results.tables import (
    best_per_framework,
    failures,
    ledger_totals,
    ranked,
    to_rich,
    top,
)

LINES = [
    run_line("0000", best_accuracy=0.5),
    run_line("0001", 4.0, num_workers=2, batch_size_per_worker=128),
    run_line("0002", failure="oom", best_accuracy=0.99),
    run_line("0003", 3.0, framework="tensorflow"),
    run_line("0004", best_accuracy=0.7, framework="tensorflow"),
    run_line("0005", failure="oom"),
    run_line("0006", failure="nan"),
    run_line("0003-confirm0", 1.0, phase="confirm"),
]


def printed(thing, width=200):
    console = Console(file=io.StringIO(), width=width)
    console.print(thing)
    return console.file.getvalue()


@pytest.fixture
def trials(tmp_path):
    return results_folder(tmp_path, LINES).trials


def test_ranked_is_by_score_without_failures_and_other_phases(trials):
    assert list(ranked(trials)["trial"]) == ["0003", "0001", "0004", "0000"]
    assert list(ranked(trials, phase="confirm")["trial"]) == ["0003-confirm0"]


def test_equal_scores_keep_the_order_they_finished_in(tmp_path):
    names = ["b", "a", "c"]
    results = results_folder(tmp_path, [run_line(name, 2.0) for name in names])
    assert list(ranked(results.trials)["trial"]) == names


def test_top_is_the_first_of_the_ranking(trials):
    table = top(trials, number=2)
    assert list(table["trial"]) == ["0003", "0001"]
    row = table.iloc[1]
    assert (row["batch per worker"], row["global batch"], row["workers"]) == (128, 256, 2)
    assert (row["target after s"], row["worker s"]) == (4.0, 8.0)
    assert row["end to end s"] > row["target after s"]
    assert len(top(trials)) == 4


def test_best_per_framework(trials):
    table = best_per_framework(trials)
    assert dict(zip(table["framework"], table["trial"], strict=True)) == {
        "tensorflow": "0003",
        "torch": "0001",
    }


def test_ledger_totals_are_all_runs_and_sum_to_their_walls(trials):
    table = ledger_totals(trials).set_index("phase")
    assert table.loc["start", "seconds"] == 8 * len(LINES)
    assert table.loc["sum", "seconds"] == pytest.approx(trials["wall_s"].sum())
    assert table.loc["sum", "share"] == pytest.approx(1.0)
    assert "input" not in table.index, "input is a part of train"
    assert table["share"].drop("sum").sum() == pytest.approx(1.0)


def test_failures_by_cause_with_a_message(trials):
    table = failures(trials).set_index("failure")
    assert table["runs"].to_dict() == {"oom": 2, "nan": 1}
    assert table.loc["nan", "for example"] == "it was nan"


def test_no_failures_is_an_empty_table_with_its_columns(tmp_path):
    table = failures(results_folder(tmp_path, [run_line("0000", 1.0)]).trials)
    assert table.empty
    assert list(table.columns) == ["failure", "runs", "for example"]


def test_missing_values_are_a_dash():
    frame = pd.DataFrame(
        {"trial": ["a", "b"], "target after s": [1.234, None], "note": ["x", None]}
    )
    assert printed(to_rich(frame, "T")).count("-") == 2
    assert "1.23" in printed(to_rich(frame, "T"))
    assert "nan" not in printed(to_rich(frame, "T")).lower()


def test_numbers_are_shown_in_their_unit():
    frame = pd.DataFrame(
        {
            "best accuracy": [0.98765],
            "samples/s": [12345.6],
            "learning rate": [0.000123456],
            "share": [0.5],
        }
    )
    text = printed(to_rich(frame, "T"))
    for shown in ("98.8%", "12,346", "0.000123", "50%"):
        assert shown in text


def shown(results):
    console = Console(file=io.StringIO(), width=300)
    show(console, results)
    return console.file.getvalue()


def test_the_verdict_is_the_end_of_what_is_printed(tmp_path):
    text = shown(results_folder(tmp_path, LINES))
    assert text.index("Failed runs") < text.index("Best ten") < text.index("Fastest and ")
    assert "(trial 0003) reaches 90 % after 1.00 s" in text
    assert text.rstrip().endswith(f"results: {tmp_path}")


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "no run has finished"),
        ([run_line("0000", best_accuracy=0.5)], "No run reached the target of 90 %: the best was"),
        ([run_line("0000", failure="oom")], "No run reached the target of 90 %"),
        ([run_line("0000", 2.0)], "unconfirmed: one search trial"),
    ],
)
def test_poor_studies_are_shown_too(tmp_path, lines, sentence):
    assert sentence in shown(results_folder(tmp_path, lines, objective=OBJECTIVE))


def test_accuracy_at_budget_has_a_winner_too(tmp_path):
    budget = Objective(kind="accuracy_at_budget", max_train_seconds=60.0)
    lines = [
        run_line("0000", best_accuracy=0.7, stop="max_train_seconds", objective=budget),
        run_line("0001", best_accuracy=0.9, stop="max_train_seconds", objective=budget),
    ]
    text = shown(results_folder(tmp_path, lines, objective=budget))
    assert "no target" not in text
    assert "0001" in text.splitlines()[-2]


@pytest.mark.parametrize(
    ("beside_s", "words"),
    [(3.0, "took 50 % longer per sample"), (1.9, "took no longer per sample")],
)
def test_the_sentinel_tells_what_a_neighbour_costs(tmp_path, beside_s, words):
    lines = [
        run_line("0000", 4.0),
        run_line("sentinel-beside", train_s=beside_s, phase="reference"),
        run_line("sentinel-alone", train_s=2.0, phase="reference"),
    ]
    assert words in shown(results_folder(tmp_path, lines))
