"""Every figure is drawn legibly, has a table, and shows the numbers of the study."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from looks import look_at, words

from raybench.commands import cli
from raybench.report.export import to_csv
from raybench.report.figures import FIGURES, outcomes, parts
from raybench.report.figures.parts import svg
from raybench.report.figures.predictions import surface_of
from raybench.report.figures.runs import MOST_ROWS, phases, race_figure, race_rows, spans
from raybench.report.page.tables import trials_of
from raybench.report.study import StudyResults, load
from raybench.results.analyses import pareto_front
from raybench.results.store import RECORDS_FILE, STUDY_FILE
from raybench.results.study import load as load_study
from raybench.results.verdict import reached_target, verdict_of
from tests.factories import read_lines
from tests.made_results import RMSE_BUDGET, curve, results_folder, run_line

RECORDED = Path(__file__).parents[2] / "fixtures" / "digits_race"
PAUSE_S = 4000.0


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    """A recorded race, changed as if it had been interrupted in the middle."""
    folder, lines = tmp_path_factory.mktemp("study"), read_lines(RECORDED / RECORDS_FILE)
    for line in [line for line in lines if line["kind"] == "run"][70:]:
        later = datetime.fromisoformat(line["finished"]) + timedelta(seconds=PAUSE_S)
        line["finished"] = later.isoformat()
    (folder / RECORDS_FILE).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (folder / STUDY_FILE).write_text((RECORDED / STUDY_FILE).read_text())
    return load(folder)


def test_runs_of_a_lane_do_not_overlap_and_pauses_are_cut(study):
    timeline = spans(study)
    assert set(timeline.runs["trial"]) == set(study.trials["trial"])
    for lane, runs in timeline.runs.groupby("lane"):
        assert (runs["begin"].to_numpy()[1:] >= runs["end"].to_numpy()[:-1] - 1.0).all()
        assert set(runs["group"]) == {timeline.lanes[lane]}
    ((at, seconds),) = timeline.pauses.items()
    assert 0 < at < timeline.total_s < PAUSE_S
    assert seconds == pytest.approx(PAUSE_S, rel=0.05)
    order = ["trial", "placement_check", "race", "confirm"]
    assert list(phases(timeline.runs)["role"]) == order
    figure = FIGURES["timeline"].draw(study)
    look_at("timeline", figure)
    assert "interrupted" in words(figure)


def test_the_race_figure_shows_every_run_and_the_ties(study):
    figure, verdict = race_figure(study), verdict_of(study)
    repeated = study.trials[study.trials["role"].isin(["race", "confirm"])]
    rows = race_rows(study)
    assert set(repeated["trial"]) <= set(rows["run"])
    drawn = {line.get_gid() for line in figure.axes[0].lines} - {None}
    shown = [*dict.fromkeys(rows["trial"])][:MOST_ROWS]
    assert drawn == set(rows[rows["trial"].isin(shown)]["run"])
    labels = [text.get_text() for text in figure.axes[0].texts]
    assert labels[0].startswith(verdict.fastest)
    tied = {text.split()[0] for text in labels if text.endswith("· tied")}
    assert tied == (set(verdict.ties) & set(shown)) - {verdict.fastest}


def test_the_plateau_holds_the_best_similar_values_and_ties(study):
    rows, near = (
        outcomes.outcome(study).with_outcome,
        outcomes.plateau(study, outcomes.outcome(study)),
    )
    best = rows.iloc[0]
    is_near = (rows["outcome"] <= 1.1 * best["outcome"]) | rows["trial"].isin(
        verdict_of(study).ties
    )
    assert near == {*rows["trial"][is_near]}
    table = outcomes.plateaus(study).set_index("key")
    assert set(table.index) == set(study.searched)
    rates = rows["learning_rate"][is_near]
    ends = [best["learning_rate"], rates.min(), rates.max()]
    assert table.loc["learning_rate", ["best", "from", "to"]].tolist() == ends


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([None, "relu"], "null, relu"),
        (["1", 1, 1.0, True], "'1', 1, 1.0, true"),
        ([0.5, None], "0.5, null"),
        ([64, [64, 32], {"kernel": 3}], "64, [64,32], {kernel:3}"),
        (["", "None", None], "'', 'None', null"),
    ],
)
def test_choices_of_mixed_types_have_a_plateau_and_a_column(tmp_path, values, names):
    """Null, '', 'None', '1', 1, 1.0 and true stay distinct in figures, the table and the CSV."""
    lines = []
    for number, value in enumerate(values * 2):
        name = f"{number:04d}"
        lines += [*curve(name, [0.5, 0.95]), run_line(name, 2.0, model={"act": value})]
    results = results_folder(tmp_path, lines, study={"space": {"model.act": values}})
    (row,) = outcomes.plateaus(results).to_dict("records")
    assert row["from"] == names
    assert outcomes.values_of("model.act", outcomes.outcome(results).rows)[1]
    outcomes.slices_figure(results)
    assert {row[0] for row in trials_of(results, "s1").rows["rows"]} == set(results.runs)
    assert len(set(results.trials["config"])) == len(values)
    cells = to_csv(results.trials[["model.act"]]).split("\n")[1:-1]
    assert len(set(cells)) == len(values)


def test_the_surface_is_lowest_near_the_fastest_trials():
    results = load_study(RECORDED)
    surface = surface_of(results)
    assert surface is not None
    trials = [trial for trial in surface.trials if trial.time_to_target_s is not None]
    fastest = min(trials, key=lambda trial: trial.time_to_target_s or 0.0)
    least = surface.seconds
    batch, rate = np.unravel_index(least.argmin(), least.shape)
    assert 0.5 <= surface.batches[batch] / fastest.spec.global_batch_size <= 2.0
    assert 0.5 <= surface.rates[rate] / fastest.spec.learning_rate <= 2.0
    assert 0.7 <= least.min() / (fastest.time_to_target_s or 0.0) <= 1.6


MOST_BYTES = 150_000
BEGIN = datetime(2026, 11, 23, 9, tzinfo=UTC)


def runs_of(number: int, points: int = 12, **changes: Any) -> list[dict[str, Any]]:
    """Return lines of runs with different rates, seconds and values."""
    lines = []
    for n in range(number):
        name, best = f"{n:04d}", 0.5 + n % 97 / 250
        values = [best * (1 - 0.6 ** (step + 1)) for step in range(points)]
        searched: dict[str, Any] = {"learning_rate": 1e-5 * (n + 1), "num_workers": 1 + n % 2}
        seconds = 5.0 + n % 97 if n % 3 else None
        run = run_line(name, seconds, **(searched | changes))
        run["finished"] = (BEGIN + timedelta(seconds=20 * n)).isoformat()
        lines += [*curve(name, values), run]
    return lines


def many_rmse(folder: Path) -> StudyResults:
    lines = runs_of(40, best_value=0.4, objective=RMSE_BUDGET)
    return results_folder(folder, lines, objective=RMSE_BUDGET)


def silent(folder: Path) -> StudyResults:
    """Return a study of runs that failed before they had workers."""
    run = run_line("0000", failure="worker_lost") | {"best_value": None, "samples": 0}
    run |= {"wall_s": 1.0, "ledger": dict.fromkeys(run["ledger"], 0.0) | {"queue": 1.0}}
    return results_folder(folder, [run, run | {"trial": "0001"}])


# What an earlier test left unclosed may be collected while figures are drawn.
@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("make", "applies"),
    [
        (lambda folder: load(RECORDED), [*FIGURES]),
        (lambda folder: results_folder(folder, []), []),
        (
            lambda folder: results_folder(folder, runs_of(5, failure="nan")),
            ["curves", "timeline", "ledger"],
        ),
        (silent, ["curves", "timeline", "ledger"]),
        pytest.param(many_rmse, None, marks=pytest.mark.all),
        pytest.param(
            lambda folder: results_folder(folder, [*curve("0", [0.5, 0.8]), run_line("0")]),
            None,
            marks=pytest.mark.all,
        ),
    ],
    ids=["race", "empty", "failed", "silent", "rmse", "missed"],
)
def test_figures_that_apply_are_drawn_legibly_and_have_a_table(make, applies, tmp_path):
    results = make(tmp_path)
    kinds = {name: kind for name, kind in FIGURES.items() if kind.applies(results)}
    assert applies is None or [*kinds] == applies
    for name, kind in kinds.items():
        look_at(name, kind.draw(results))
        table = kind.table(results)
        assert 0 < len(table) <= 60 or (results.trials["state"] == "failed").all(), name
        assert not [column for column in table if "_" in str(column)]


@pytest.mark.all
def test_figures_of_many_runs_stay_small_and_say_how_many_are_drawn(tmp_path):
    space = {"learning_rate": {"low": 1e-5, "high": 0.1, "log": True}, "num_workers": [1, 2]}
    results = results_folder(tmp_path, runs_of(600, points=20), study={"space": space})
    assert len(results.curves) == 12_000
    for name, kind in FIGURES.items():
        if kind.applies(results):
            text = svg(kind.draw(results), name, kind.title)
            assert len(text) < MOST_BYTES, name
            words_drawn = "".join(ElementTree.fromstring(text).itertext())
            are_all_drawn = name not in ("curves", "slices", "surface", "timeline")
            assert "drawn" in words_drawn or are_all_drawn, name


def test_pareto_figure_distinguishes_confirmed_from_search():
    results = load(RECORDED.with_name("digits_study"))
    figure, reached = outcomes.pareto_figure(results), reached_target(results)
    lines = {line.get_gid(): line for line in figure.axes[0].lines}
    for row in reached.itertuples():
        marker = lines[row.trial]
        assert marker.get_ydata()[0] == row.time_to_target_s
        assert marker.get_xdata()[0] == pytest.approx(row.num_workers * row.time_to_target_s)
        assert (marker.get_markerfacecolor() != parts.PAPER) == row.is_confirmed
    assert list(lines["front"].get_ydata()) == list(pareto_front(reached)["time_to_target_s"])
    text = words(figure)
    for part in (
        "confirmed (expected, 3 runs)",
        "0016  torch 2x64 adam 0.0109: 1.35 s, 2.71 worker-seconds",
    ):
        assert part in text


def test_text_is_never_a_formula(tmp_path):
    lines = [*curve("0000", [0.5, 0.95]), run_line("0000", 2.0)]
    lines[-1]["spec"]["workload"] = r"$\frac{$ $x_1$ \udce9"
    results = results_folder(tmp_path, lines, study={"space": {"workload": {}}})
    for name in ("curves", "pareto", "slices", "timeline", "ledger"):
        if FIGURES[name].applies(results):
            text = words(FIGURES[name].draw(results))  # an invalid formula would raise here
            assert r"\frac{" in text or name not in ("curves", "pareto")


@pytest.mark.usefixtures("one_picture")
def test_a_report_of_a_running_study_does_not_change_its_records(tmp_path, capsys):
    results_folder(tmp_path, [run_line("0000", 2.0)])
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"kind": "eval", "tri')  # an incomplete line that the search is writing
    before = (tmp_path / "records.jsonl").read_bytes()
    assert cli.main(["report", str(tmp_path), "--png"]) == 0
    assert (tmp_path / "records.jsonl").read_bytes() == before
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"results: {tmp_path}"
    assert any(line.endswith(str(tmp_path / "report.html")) for line in lines)
    for name in ("curves.png", "pareto.png", "ledger.png", "report.html"):
        assert (tmp_path / name).is_file()
