import math

import pytest

from raybench.report.answer import summary_of, tried_words
from raybench.report.export import export
from raybench.report.words import target_sentence
from raybench.results.ranking import result_of
from raybench.results.store import Store
from raybench.results.verdict import verdict_of
from raybench.search.tune import exit_code
from raybench.spec.errors import ErrorCode
from raybench.spec.objective import TIME, Objective
from tests.made_results import (
    BUDGET,
    OBJECTIVE,
    at_budget,
    confirmed_trial,
    curve,
    raced,
    results_folder,
    run_line,
)
from tests.refusals import refused


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([run_line("0000", 3.0)], 0),
        ([run_line("0000", failure="oom")], 1),
        ([run_line("0000"), run_line("0001", failure="nan")], 3),
    ],
)
def test_the_exit_code_tells_whether_the_target_was_reached(tmp_path, lines, code):
    assert exit_code(results_folder(tmp_path, lines)) == code


def judged(folder, *groups, objective=OBJECTIVE, **more):
    lines = [line for group in groups for line in group]
    results = results_folder(folder, lines, objective=objective, **more)
    return results, verdict_of(results)


NO_MISSES = [
    *({"outer_stop": stop, "train_s": 0.5} for stop in ("interrupted", "time_budget")),
    {"failure": "worker_lost"},
]


@pytest.mark.parametrize(
    ("times", "median", "hits"),
    [
        ([4.0, None, 6.0], 6.0, 2),
        ([4.0, None, None], math.inf, 1),
        ([None, None, None], math.inf, 0),
        ([2.0, 4.0], 3.0, 2),
        ([7.0], 7.0, 1),
    ],
)
def test_a_miss_counts_as_infinite(tmp_path, times, median, hits):
    """Runs that were interrupted or lost their workers are no misses."""
    no_misses = [
        run_line(f"0000-confirm{7 + number}", role="confirm", **end)
        for number, end in enumerate(NO_MISSES)
    ]
    results, verdict = judged(tmp_path, confirmed_trial("0000", times), no_misses)
    row = results.confirmed.iloc[0]
    assert (row["median_s"], row["hits"], row["runs"]) == (median, hits, len(times))
    assert not hits or verdict.is_confirmed


LUCKY = [run_line("0000", 0.5), *confirmed_trial("0000", [8.0, 9.0, 10.0])[1:]]
WIDE = confirmed_trial("0000", [3.0] * 3, num_workers=2)
AT_ONCE = confirmed_trial("0000", [0.5, None, 0.5, None], missed_s=0.02)
MISSES = confirmed_trial("0000", [1.0, 1.2, None], missed_s=55.0)
CHEAP_MISSES = confirmed_trial("0001", [3.0, 3.0, None], missed_s=1.0)
STEADY = confirmed_trial("0001", [4.0, 4.5, 5.0])


@pytest.mark.parametrize(
    ("first", "second", "fastest", "cheapest"),
    [
        (LUCKY, confirmed_trial("0001", [4.0, 4.0, 4.0]), "0001", "0001"),
        # At equal cost, the configuration with fewer workers is the cheapest.
        (WIDE, confirmed_trial("0001", [6.0] * 3), "0000", "0001"),
        # Cheap misses are better than slow hits; a faster median does not offset expensive misses.
        (confirmed_trial("0000", [20.0] * 3), CHEAP_MISSES, "0001", "0001"),
        (MISSES, STEADY, "0001", "0001"),
        # Early divergence in every other run costs 5 s of setup and compilation each.
        (AT_ONCE, confirmed_trial("0001", [1.5] * 4), "0001", "0001"),
        # Two hits of two do not rank below three of three.
        (confirmed_trial("0000", [1.0, 1.2]), STEADY, "0000", "0000"),
        # A confirmation run without its search run is left out.
        (confirmed_trial("0000", [5.0]), confirmed_trial("0001", [4.0, 4.0])[1:], "0000", "0000"),
    ],
)
def test_the_winner_of_two_confirmed_configurations(tmp_path, first, second, fastest, cheapest):
    results, verdict = judged(tmp_path, first, second)
    assert (verdict.fastest, verdict.cheapest, verdict.is_confirmed) == (fastest, cheapest, True)
    assert results.confirmed["trial"].iloc[0] == fastest
    assert len(results.confirmed) == 1 + (second[0]["role"] == "trial")
    assert first is not MISSES or verdict.ties == ("0001", "0000"), "the other candidate is tied"


@pytest.mark.parametrize(
    ("times", "is_tie"),
    [
        ([4.2, 4.2, 4.2], True),
        ([4.4, 4.6, 4.8], True),
        ([6.0, 6.1, 6.2], False),
        ([3.0, 5.0, 9.0], True),  # a larger scatter makes the gap less significant
        ([4.11, 9.0, 12.0], False),
        ([6.0], True),  # the gap of a single run is less significant
        ([9.0], False),
    ],
)
def test_ties_depend_on_the_scatter_of_all_runs(tmp_path, times, is_tie):
    first = confirmed_trial("0000", [3.9, 4.0, 4.1])
    _, verdict = judged(
        tmp_path, first, confirmed_trial("0001", times)[1:], [run_line("0001", 60.0)]
    )
    assert verdict.fastest == "0000"
    assert "0001" in (verdict.ties if len(times) > 1 else verdict.once) or not is_tie
    assert [*verdict.ties[1:], *verdict.once] == (["0001"] if is_tie else [])


def test_with_a_price_the_cheapest_has_the_lowest_bill(tmp_path):
    """All workers are billed for 14 s of startup, setup and compilation."""
    alone = confirmed_trial("0000", [20.0] * 3)
    results, verdict = judged(tmp_path, alone, confirmed_trial("0001", [9.0] * 3, num_workers=2))
    assert (verdict.fastest, verdict.cheapest) == ("0001", "0001")
    results.study["study"]["price"] = 4.0
    results.cache.clear()
    verdict = verdict_of(results)
    assert (verdict.fastest, verdict.cheapest) == ("0001", "0000")
    assert f"trial {verdict.cheapest}" in summary_of(results).lines[1]


def test_accuracy_at_a_budget_is_judged_by_the_median_of_confirmation_runs(tmp_path):
    lucky = at_budget("0000", 0.99, [0.80, 0.81, 0.82])
    good = at_budget("0001", 0.95, [0.90, 0.92, 0.94])
    results, verdict = judged(tmp_path, lucky, good, objective=BUDGET)
    assert (verdict.fastest, verdict.cheapest, verdict.is_confirmed) == ("0001", "0001", True)
    assert verdict.ties == ("0001",)
    row = results.confirmed.iloc[0]
    assert (row["trial"], row["runs"], row["hits"]) == ("0001", 3, 3)
    assert row["median_accuracy"] == 0.92
    assert (row["low_accuracy"], row["high_accuracy"]) == (0.90, 0.94)
    assert row["search_accuracy"] == 0.95
    assert list(results.configurations["trial"]) == ["0001", "0000"]
    assert list(results.configurations["best_accuracy"]) == [0.92, 0.81]


@pytest.mark.parametrize(
    ("role", "failure", "fastest"), [("race", "nan", "0000"), ("confirm", "worker_lost", "0001")]
)
def test_failed_and_lost_runs_confirm_nothing(tmp_path, role, failure, fastest):
    """A configuration that only failed again is no winner, but lost runs are no evidence."""
    keys = {"role": role, "failure": failure, "objective": BUDGET}
    again = [run_line(f"0001-{role}{number}", **keys) for number in range(2)]
    once = at_budget("0000", 0.8), at_budget("0001", 0.9)
    verdict = judged(tmp_path, *once, again, objective=BUDGET)[1]
    assert (verdict.fastest, verdict.is_confirmed) == (fastest, False)


def beside_guessing(folder, rows, *, test, validation=0.6, kind=TIME):
    """Return a study of a confirmed configuration on balanced splits of `rows` samples; without a
    value on the test split, there is no such split."""
    known = {"value": 0.51, "rows": rows, "error": (0.25 / rows) ** 0.5, "square": None}
    aim = {"target": 0.55} if kind == TIME else {"kind": kind, "max_train_seconds": 60.0}
    keys = {"best_value": validation, "objective": Objective(**aim)}
    runs = [run_line("0000", 2.0, **keys)]
    runs += [
        run_line(f"0000-confirm{number}", 2.0, role="confirm", test_value=test, **keys)
        for number in range(3)
    ]
    baseline = {"validation": known, "test": None if test is None else known}
    return results_folder(folder, runs, objective=Objective(**aim), baseline=baseline)


@pytest.mark.parametrize("kind", [TIME, "best_at_budget"])
def test_the_exit_code_tells_that_the_best_is_no_better_than_guessing(tmp_path, kind):
    assert exit_code(beside_guessing(tmp_path, 300, test=0.477, kind=kind)) == 3


@pytest.mark.parametrize(
    ("rows", "test", "wins"), [(300, 0.477, False), (100, 0.58, False), (300, 0.58, True)]
)
def test_a_configuration_no_better_than_guessing_on_the_test_split_does_not_win(
    tmp_path, rows, test, wins
):
    """Runs of three seeds share the rows, so their sampling error equals that of one."""
    results = beside_guessing(tmp_path, rows, test=test)
    assert (verdict_of(results) is not None) == wins
    if not wins:
        with refused(ErrorCode.NO_RESULT, results.place):
            _ = results.best
        for name in ("best.yaml", "cheapest.yaml"):
            (results.folder / name).write_text("of an earlier session")
        with Store(results.folder) as store:
            assert not [path for path in export(results, store) if path.suffix == ".yaml"]
        assert not [*results.folder.glob("*est.yaml")]


GUESSING = {"value": 0.5, "rows": 300, "error": 0.0289}
NEAR_GUESSING = {
    "objective": Objective(target=0.59),
    "baseline": {"validation": GUESSING, "test": GUESSING},
}
"""Keys of `results_folder` for a target that a lucky guess may reach."""


def test_a_winner_with_solo_misses_is_not_replaced_by_an_untested_one(tmp_path):
    """The other candidate was never tested, so its validation value must exceed luck."""
    runs = [*raced("0000", 2.0, [2.0], best_value=0.6), *raced("0001", 3.0, [2.0], best_value=0.6)]
    missed = {"stop": "max_train_seconds", "best_value": 0.5, "test_value": 0.5}
    solo_run = run_line("0000-confirm0", role="confirm", **missed)
    before = results_folder(tmp_path / "before", runs, **NEAR_GUESSING)
    assert verdict_of(before) is not None, "it has not been tested yet"
    after = results_folder(tmp_path / "after", [*runs, solo_run], **NEAR_GUESSING)
    assert verdict_of(after) is None


def test_a_candidate_awaits_its_test_if_others_beat_guessing(tmp_path):
    lines = [run_line("0000", 9.0, best_value=0.595)]
    lines += raced("0001", 4.0, [4.0] * 3, [4.0, 4.1, None], best_value=0.605, test_value=0.61)
    lines += raced("0002", 4.2, [4.2] * 3, best_value=0.605)
    verdict = verdict_of(results_folder(tmp_path, lines, **NEAR_GUESSING))
    assert verdict is not None
    assert verdict.fastest == "0002"


@pytest.mark.parametrize(("validation", "wins"), [(0.6, False), (0.65, True)])
def test_without_a_test_split_validation_must_exceed_selection_luck(tmp_path, validation, wins):
    results = beside_guessing(tmp_path, 300, test=None, validation=validation)
    assert (verdict_of(results) is not None) == wins


@pytest.mark.parametrize(
    ("rows", "low", "high", "test"),
    [
        (None, 0.9005, 0.9395, None),
        (100, 0.871, 0.969, (0.733, 0.867)),
        (10_000, 0.9, 0.94, (0.793, 0.807)),
    ],
)
def test_intervals_of_values_include_the_sampling_error(tmp_path, rows, low, high, test):
    """Ties do not include it, because configurations share the rows."""
    groups = at_budget("0000", 0.95, [0.90, 0.92, 0.94]), at_budget("0001", 0.9, [0.80, 0.81, 0.82])
    baseline = {"value": 0.1, "rows": rows}
    options = {} if rows is None else {"baseline": {"validation": baseline, "test": baseline}}
    results, verdict = judged(tmp_path, *groups, objective=BUDGET, **options)
    fastest = result_of(results, verdict.fastest, is_confirmed=True)
    assert (fastest.interval_low, fastest.interval_high) == pytest.approx((low, high), abs=0.003)
    ends = pytest.approx(test or (math.nan, math.nan), abs=0.001, nan_ok=True)
    assert (fastest.test_low, fastest.test_high) == ends
    assert verdict.ties == ("0000",)


def test_a_target_not_yet_set_by_reference_runs_is_none(tmp_path):
    results = results_folder(tmp_path, [run_line("reference0", role="reference")])
    results.study["study"] |= {"auto": ["target"], "is_set": False}
    assert (results.target, results.is_timed) == (None, True)
    (line,) = summary_of(results).lines
    assert "92.0 %" in line or "80.0 %" in line, "the best value"
    assert "100 %" not in " ".join(results._repr_html_().split())
    assert target_sentence(results) == "Not set yet: reference runs set the target."
    results.study["study"]["is_set"] = True
    results.study["target_set_by"] = "target 0.9 (auto: HOW)"
    assert results.target == 0.9
    assert target_sentence(results).endswith("Set automatically: target 0.9 (auto: HOW).")


def test_intervals_of_other_metrics_include_the_recorded_error(tmp_path):
    budget = Objective(kind="best_at_budget", metric="rmse", direction="min")
    names = ("0000", "0000-confirm0", "0000-confirm1")
    lines = [line | {"value_error": 0.02} for name in names for line in curve(name, [0.5])]
    lines += at_budget("0000", 0.5, [0.5, 0.5], objective=budget)
    baselines = {"validation": {"value": 1.0, "rows": 100}, "test": {"value": 1.0, "rows": 400}}
    results = results_folder(tmp_path, lines, objective=budget, baseline=baselines)
    reach = 1.645 * 0.02
    fastest = result_of(results, verdict_of(results).fastest, is_confirmed=True)
    ends = pytest.approx((0.5 - reach, 0.5 + reach), abs=1e-3)
    assert (fastest.interval_low, fastest.interval_high) == ends
    test_ends = pytest.approx((0.8 - reach / 2, 0.8 + reach / 2), abs=1e-3)
    assert (fastest.test_low, fastest.test_high) == test_ends, (
        "the test split has 4 times as many rows"
    )


def test_a_custom_metric_has_no_known_baseline(tmp_path):
    budget = Objective(kind="best_at_budget", metric="mean_error", direction="min")
    lines = at_budget("0000", 0.5, [0.5, 0.51, 0.52], objective=budget)
    results = results_folder(tmp_path, lines, objective=budget)
    assert any("baseline" in caveat for caveat in summary_of(results).caveats)


def test_repeated_trials_count_as_one_configuration(tmp_path):
    """Repeats with other seeds count as the same configuration, also those of the winner."""
    winners_own = raced("0001", 4.0, [4.0, 4.1], learning_rate=0.01)
    winners_own.append(run_line("0002", 4.1, seed=5, learning_rate=0.01))
    same = [run_line(f"000{n}", 4.3, seed=n, learning_rate=0.02) for n in (3, 4)]
    results, verdict = judged(tmp_path, winners_own, same)
    assert (verdict.fastest, verdict.once) == ("0001", ("0003",))
    assert tried_words(results).startswith("2 configurations")
