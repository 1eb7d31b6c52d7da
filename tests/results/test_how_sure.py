"""What a verdict stands on, in words; and winners at the end of a searched range."""

import pytest
from made_results import OBJECTIVE, results_folder, run_line
from test_repeated import COLD, raced
from test_tables import write_space
from test_verdict import again

from raybench.results.edges import edge_lines
from raybench.results.how_sure import how_sure_lines, runs_to_tell
from raybench.results.load import load
from raybench.results.repeated import noise_of
from raybench.results.verdict import judge


def sure(folder, *groups, **study):
    results = results_folder(folder, [line for group in groups for line in group])
    results.study.update(study)
    lines = how_sure_lines(results, judge(results))
    return lines[0] if lines else None


def test_a_decided_race_names_its_runs_and_the_scatter(tmp_path):
    text = sure(tmp_path, COLD, raced("0001", 2.0, [2.1, 1.9]), raced("0002", 6.0, [6.1, 5.9]))
    assert text.startswith("How sure: 2 configurations ran again (6 runs with those of the search, 3 of trial 0001); ")
    assert "; runs of one configuration scatter by about 20 %." in text
    assert text.endswith(
        "the truly best of them is it. All others that ran are told apart from it."
    )


def test_a_tie_says_how_many_more_runs_would_tell(tmp_path):
    near = raced("0002", 2.5, [2.6, 2.4])
    text = sure(tmp_path, COLD, raced("0001", 2.0, [2.1, 1.9]), near)
    assert "is it or the one not told apart. About 4 more runs (--more) would tell, if" in text


def test_what_is_too_alike_is_not_promised_to_be_told(tmp_path):
    near = raced("0002", 2.0, [2.1, 1.91])
    text = sure(tmp_path, COLD, raced("0001", 2.0, [2.1, 1.9]), near)
    assert "They are too alike to be told apart by 100 more runs; --more 20 makes them" in text


def test_the_number_of_runs_is_what_the_gap_and_the_scatter_ask_for(tmp_path):
    groups = raced("0001", 2.0, [2.0] * 3), raced("0002", 2.2, [2.2] * 3)
    results = results_folder(tmp_path, [line for group in (COLD, *groups) for line in group])
    noise = noise_of(results.repeated, results)
    number = runs_to_tell(list(results.repeated.values()), noise, results)
    of_each = 2 * (1.645 * noise.sigma / 0.0953) ** 2
    assert number == pytest.approx(2 * (of_each - 4), abs=1)


def test_single_runs_are_said_to_say_little(tmp_path):
    text = sure(tmp_path, [run_line("0000", 4.0), run_line("0001", 5.0), run_line("0002", 30.0)])
    assert text == (
        "How sure: runs of one configuration usually scatter by about 30 %, every configuration "
        "ran once, and 1 other trial cannot be excluded."
    )


def test_nothing_is_said_of_a_single_run(tmp_path):
    study = {"objective": OBJECTIVE.model_dump(mode="json"), "run": True}
    assert sure(tmp_path, [run_line("0000", 4.0)], study=study) is None


def test_what_ran_again_in_vain_is_not_said_to_have_run_once(tmp_path):
    text = sure(tmp_path, again("0000", [None, None]), [run_line("0001", 5.0)])
    assert (
        "what ran again did not reach the target with new seeds, and trial 0001 ran once." in text
    )


def test_old_studies_and_those_without_a_result(tmp_path):
    text = sure(tmp_path / "one", again("0000", [4.0, 4.1, 4.2]))
    assert "no configuration but trial 0000 ran again (3 runs); runs of one" in text
    assert sure(tmp_path / "none", [run_line("0000")]) is None


RATE = {"learning_rate": {"low": 0.0001, "high": 0.03, "log": True}}
BATCH = {"batch_size_per_worker": {"low": 16, "high": 512, "log2": True}}


@pytest.mark.parametrize(
    ("space", "spec", "sentence"),
    [
        (RATE, {"learning_rate": 0.0299}, "learning_rate of trial 0000 lies at the upper end of"),
        (RATE, {"learning_rate": 0.01}, None),
        (RATE | BATCH, {"learning_rate": 0.0001, "batch_size_per_worker": 16}, "lie at the lower"),
        (BATCH, {"batch_size_per_worker": 32}, None),
        ({"num_workers": [1, 2]}, {"num_workers": 2}, None),  # a list has no ends
        ({"num_workers": {"low": 1, "high": 4}}, {"num_workers": 1}, None),  # nothing is below
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
    results_folder(tmp_path, [run_line("0000", 2.0, **spec)])
    write_space(tmp_path, space)
    results = load(tmp_path)
    lines = edge_lines(results, judge(results))
    assert len(lines) == (sentence is not None)
    assert sentence is None or sentence in lines[0]
