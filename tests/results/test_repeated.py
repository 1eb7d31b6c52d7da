"""Ranking and printed values of candidates with race and solo runs."""

import pytest

from raybench.report.answer import summary_of, tried_words
from raybench.report.export import export
from raybench.results.ranking import noise_of, result_of
from raybench.results.store import StudyFiles
from raybench.results.verdict import verdict_of
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.record import RunOutcome
from tests.made_results import (
    COLD,
    OBJECTIVE,
    PHASE_SECONDS,
    curve,
    raced,
    results_folder,
    run_line,
    shown,
    study_of,
)
from tests.refusals import numbers_in


def row_of(results, trial):
    return results.confirmed.set_index("trial").loc[trial]


def test_search_and_race_runs_rank_and_solo_runs_are_printed(tmp_path):
    results = study_of(
        tmp_path, raced("0001", 2.0, [3.0, 4.0], [6.0, 5.0, 7.0]), raced("0002", 5.0, [4.0, 4.5])
    )
    row = row_of(results, "0001")
    assert (row["runs"], row["hits"], row["expected_s"]) == (3, 3, 3.0)
    assert (row["new_runs"], row["new_hits"], row["is_alone"]) == (3, 3, True)
    assert (row["median_s"], row["low_s"], row["high_s"]) == (6.0, 5.0, 7.0)
    assert row["interval_low_s"] < 6.0 < row["interval_high_s"]
    assert row["printed_s"] == row["worker_seconds_to_target"] == 6.0
    other = row_of(results, "0002")
    assert (other["runs"], other["new_runs"], other["is_alone"]) == (3, 2, False)
    assert other["median_s"] == 4.25, "without the search run it was selected by"
    assert verdict_of(results).fastest == "0001", (
        "although its solo runs are slower than the race runs of the other"
    )
    assert results.configurations.set_index("trial").loc["0001", "expected_s"] == 3.0


def test_the_cold_run_of_the_first_trial_does_not_rank(tmp_path):
    results = study_of(tmp_path, raced("0000", 0.0, [4.0, 4.0])[1:])
    assert (row_of(results, "0000")["runs"], row_of(results, "0000")["expected_s"]) == (2, 4.0)


def test_solo_runs_that_all_missed_are_combined_with_the_race(tmp_path):
    results = study_of(tmp_path, raced("0001", 2.0, [3.0, 4.0], [None, None]))
    row = row_of(results, "0001")
    assert (row["new_runs"], row["new_hits"], row["is_alone"]) == (4, 2, False)
    assert row["printed_s"] == (3.0 + 4.0 + 25.0 + 25.0) / 2  # and two failed starts


def test_solo_runs_change_the_winner_only_if_they_contradict_the_race(tmp_path):
    groups = raced("0001", 3.0, [3.0, 3.2]), raced("0002", 3.3, [3.1, 3.4])
    before = study_of(tmp_path / "before", *groups)
    studies = {
        name: study_of(tmp_path / name, *groups, raced("0001", 3.0, [], alone)[1:])
        for name, alone in (("like", [3.2, 3.4, 3.3]), ("slow", [6.0, 6.2, 6.1]))
    }
    for results, first in ((before, "0001"), (studies["like"], "0001"), (studies["slow"], "0002")):
        assert verdict_of(results).fastest == first
        assert results.configurations["trial"].iloc[0] == first
        assert noise_of(before.repeated, before) == noise_of(results.repeated, results)


def test_a_candidate_that_misses_alone_ranks_below_one_that_always_hits(tmp_path):
    wide = raced("0001", 4.0, [4.0, 4.2], [4.5, None, None], num_workers=2)
    narrow = raced("0002", 5.0, [5.0, 5.2, 4.9], [5.1, 4.8, 5.0])
    results = study_of(tmp_path, wide, narrow)
    verdict = verdict_of(results)
    assert verdict.fastest == verdict.cheapest == "0002"
    assert list(results.configurations["trial"])[:2] == ["0002", "0001"]
    export(results, StudyFiles(tmp_path))
    assert "num_workers: 1" in (tmp_path / "best.yaml").read_text()
    assert "0001" not in summary_of(results).lines[0]


def test_interpolated_times_rank_and_are_marked(tmp_path):
    far = Objective(target=0.9, baseline_value=0.1, max_train_seconds=60.0)
    lines = []
    for name, values, role in (
        ("0001", [0.5, 1.0], "trial"),
        ("0002", [0.85, 1.0], "trial"),
        ("0002-race0", [0.8, 1.0], "race"),
        ("0002-confirm0", [0.86, 0.9], "confirm"),
    ):
        lines += [*curve(name, values), run_line(name, 2.0, role=role, objective=far)]
    results = results_folder(tmp_path, lines, objective=far)
    trials = results.trials.set_index("trial")
    assert trials["time_to_target_s"].eq(2.0).all(), "as recorded"
    crossed = [1.8, 1 + 1 / 3, 1.5, 2.0]
    assert trials["crossed_s"].tolist() == pytest.approx(crossed)
    assert trials["is_interpolated"].tolist() == [True] * 4
    assert row_of(results, "0002")["expected_s"] == pytest.approx((1 + 1 / 3 + 1.5) / 2)
    assert result_of(results, verdict_of(results).fastest, is_confirmed=True).is_interpolated
    text = shown(results)
    assert "1.33*" in text
    assert text.count("* interpolated") == 2


def test_a_stopped_trial_that_succeeds_with_another_seed_is_not_counted_as_stopped(tmp_path):
    """One of three stopped configurations reached the target with another seed."""
    stopped = [
        run_line(f"000{number}", train_s=1.0, learning_rate=0.01 * number) for number in (1, 2, 3)
    ]
    before = results_folder(tmp_path / "before", [*COLD, *stopped])
    assert numbers_in(tried_words(before)) == [4, 3]
    look = raced("0004", 2.0, [2.1], learning_rate=0.01, seed=5)
    after = results_folder(tmp_path / "after", [*COLD, *stopped, *look])
    assert numbers_in(tried_words(after)) == [4, 2]


def unreported(trial, **ended):
    """Return the record of a run that ended before its first report."""
    spec = RunSpec(objective=OBJECTIVE, learning_rate=0.01 * (int(trial) + 1))
    outcome = RunOutcome(is_over=True, ledger=PHASE_SECONDS, wall_s=30.0, **ended)
    return outcome.record(trial, spec, role="trial", source=None, stopped_by="time_budget").line()


def test_runs_without_a_report_at_the_end_of_the_budget_do_not_count_as_tried(tmp_path):
    silent = unreported("0002")
    results = results_folder(tmp_path / "one", [*COLD, unreported("0001"), silent])
    assert numbers_in(tried_words(results)) == [1, 2]
    failed = unreported("0001", failure="error", message="no such thing")
    (line,) = summary_of(results_folder(tmp_path / "none", [failed, silent])).lines
    assert numbers_in(line)[:2] == [1, 2]
    assert "failed" in line
