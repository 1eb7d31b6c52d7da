"""Remarks about the winner: first configuration, confidence, edges of ranges, the target."""

import pytest

from raybench.report.answer import summary_of
from raybench.report.confidence import confidence_of, edge_lines, target_warning
from raybench.results.verdict import verdict_of
from tests.made_results import NEAR, raced, results_folder, run_line, study_of

FIRST = {"learning_rate": 0.02, "model": {"n": 2}}
OTHER = {"learning_rate": 0.1, "model": {"n": 1}}


def answer(folder, lines, first=FIRST):
    results = results_folder(folder, lines, study={"space": {}, "search": {"first": [first]}})
    return " ".join(summary_of(results).lines)


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ([run_line("0000", 8.0, **FIRST)], ("4 times", "(trial 0000)", "8.00 s")),
        # A first configuration that was trained again is compared by its new runs.
        (raced("0000", 5.0, [8.0] * 3, **FIRST), ("4 times", "(trial 0000)", "8.00 s")),
        ([run_line("0000", best_value=0.8, **FIRST)], ("(trial 0000)", "accuracy 80.0 %")),
        ([run_line("0000", failure="oom", **FIRST)], ("(trial 0000)", "oom")),
        ([run_line("reference0", 8.0, **FIRST)], ("4 times", "(trial reference0)", "8.00 s")),
    ],
    ids=["one run", "confirmed", "missed", "failed", "by its settings"],
)
def test_the_winner_is_compared_with_the_first_configuration(tmp_path, first, words):
    text = answer(tmp_path, [*first, *raced("0001", 2.0, [2.0] * 3, **OTHER)])
    compared = text[text.index("first configuration") - 30 :]
    assert [word for word in words if word not in compared] == []


def test_a_first_configuration_that_wins_or_has_not_run_is_not_compared(tmp_path):
    other = run_line("0001", 2.0, **OTHER)
    text = answer(tmp_path / "wins", [run_line("0000", 1.0, **FIRST), other])
    assert "first configuration (trial 0000)" in text
    assert "times as" not in text
    assert "your first" not in answer(tmp_path / "not run", [other])


@pytest.mark.parametrize("role", ["trial", "reference"])
def test_the_best_value_is_that_of_the_nearest_run(tmp_path, role):
    failed = run_line("0001", failure="error", best_value=0.85, role=role)
    text = answer(tmp_path, [failed, run_line("0000", best_value=0.8)], {})
    assert "85.0 %" not in text
    assert text.count("80.0 %") == 2


def test_a_scatter_that_was_not_measured_is_called_assumed(tmp_path):
    once = results_folder(tmp_path / "once", [run_line("0001", 2.0)])
    assert "is assumed to be about 30 %" in confidence_of(once, verdict_of(once))
    again = results_folder(tmp_path / "again", NEAR[0])
    assert "assumed" not in confidence_of(again, verdict_of(again))


@pytest.mark.parametrize("stop", ["scheduler", "cap", "interrupted", "time_budget"])
def test_only_runs_that_were_judged_count_as_unpromising(tmp_path, stop):
    stopped = run_line("0000", outer_stop=stop, **FIRST)
    text = answer(tmp_path, [stopped, run_line("0001", 2.0, **OTHER)])
    assert ("(1 of them was stopped early as unpromising)" in text) == (
        stop in ("scheduler", "cap")
    )


def test_more_runs_are_suggested_until_ties_are_equivalent(tmp_path):
    results = study_of(tmp_path / "a", *NEAR)
    verdict = verdict_of(results)
    assert verdict.undecided
    assert f"--more {4 * (1 + len(verdict.undecided))}" in confidence_of(results, verdict)
    alike = [2.0 * 1.3 ** (number % 3) for number in range(30)]
    same = raced("0001", 2.0, alike), raced("0002", 2.0, [1.001 * seconds for seconds in alike])
    results = study_of(tmp_path / "b", *same)
    verdict = verdict_of(results)
    assert verdict.others()
    assert not verdict.undecided
    assert "5 %" in confidence_of(results, verdict)


RATE = {"learning_rate": {"low": 0.0001, "high": 0.03, "log": True}}
BATCH = {"batch_size_per_worker": {"low": 16, "high": 512, "log2": True}}


@pytest.mark.parametrize(
    ("space", "spec", "end"),
    [
        (RATE, {"learning_rate": 0.0299}, ["upper", "learning_rate"]),
        (
            RATE | BATCH,
            {"learning_rate": 0.0001, "batch_size_per_worker": 16},
            ["lower", "learning_rate", "batch_size_per_worker"],
        ),
        ({"num_workers": [1, 2]}, {"num_workers": 2}, None),  # a list has no edges
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
        ({"no_such_key": {}}, {}, None),  # a key of another version
    ],
)
def test_a_winner_at_the_end_of_a_range_is_reported(tmp_path, space, spec, end):
    results = results_folder(tmp_path, [run_line("0000", 2.0, **spec)], study={"space": space})
    lines = edge_lines(results, verdict_of(results))
    assert len(lines) == (end is not None)
    assert all(word in lines[0] for word in end or ())


@pytest.mark.parametrize(
    ("reached", "missed", "advice"),
    [(10, 0, "higher"), (0, 10, "lower"), (5, 5, None), (7, 0, None)],
)
def test_a_target_reached_by_all_or_none_is_reported(tmp_path, reached, missed, advice):
    times = [3.0] * reached + [None] * missed
    lines = [run_line(f"{number:04d}", time) for number, time in enumerate(times)]
    warning = " ".join(target_warning(results_folder(tmp_path, lines)))
    assert advice in warning if advice else not warning
