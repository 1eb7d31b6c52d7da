"""Figures of a scaling study: their curves, panels and tables."""

import pandas as pd
import pytest

from raybench.report.figures import scaling_plots as plots
from raybench.report.figures.scaling_plots import (
    MODEL_FILE,
    SCALING_FIGURES,
    model_frame,
    plan_figure,
    read_model,
)
from raybench.report.study import StudyResults, load
from raybench.spec.run import RunSpec
from tests.runs.made_up import run_of, study_of, write


def step(spec: RunSpec, repeat: int) -> float:
    together = 0.0 if spec.num_workers == 1 else 0.02
    return (spec.batch_size_per_worker / 1000 + together) * (1 + 0.05 * repeat)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    study = study_of(num_workers=[1, 2, 4], batch_sizes=[64, 128], repeats=2)
    return load(write(tmp_path_factory.mktemp("made_up"), study, *run_of(study, step)))


@pytest.mark.parametrize("draw", [plots.speedup_figure, plots.efficiency_figure])
def test_weak_and_strong_scaling_have_a_panel_with_the_ideal_line(draw, results):
    figure = draw(results)
    titles = [axes.get_title("left").partition(":")[0] for axes in figure.axes]
    assert titles == ["weak scaling", "strong scaling"]
    for axes in figure.axes:
        assert "ideal" in [line.get_gid() for line in axes.lines]
        assert len(axes.containers) == 2, "a curve for each batch size, with its spread"


def test_shares_of_a_step_are_those_of_its_steps(results):
    cells = results.scaling
    two = cells[(cells["num_workers"] == 2) & (cells["batch_size_per_worker"] == 64)].iloc[0]
    shares = plots.step_shares(two)
    assert shares["more than one worker"] == pytest.approx(0.02 / 0.084)
    assert shares["as one worker alone"] == pytest.approx(0.064 / 0.084)


def test_indistinguishable_parts_are_combined():
    nan = float("nan")
    row = {"input_share": 0.25, "alone_share": nan, "communication_share": nan, "num_workers": 2}
    assert plots.step_shares(row) == {"input wait": 0.25, "not distinguishable": 0.75}
    row |= {"alone_share": 0.375, "communication_share": 0.3}
    assert plots.step_shares(row) == pytest.approx(
        {
            "input wait": 0.25,
            "as one worker alone": 0.375,
            "exchange of gradients": 0.3,
            "more than one worker": 0.075,
        }
    )


def made_model() -> tuple[pd.DataFrame, pd.DataFrame]:
    cells = {"series": "torch, cnn", "num_workers": [1, 2, 4, 8], "batch_size_per_worker": 64}
    curve = pd.DataFrame(cells | {"samples_per_s": [100.0, 190.0, 350.0, 600.0]})
    columns = {"low": [90.0, 170.0, 250.0, 300.0], "high": [110.0, 210.0, 450.0, 900.0]}
    return curve.head(2), curve.assign(**columns, extrapolated=[False, False, True, True])


def test_a_study_without_runs_has_no_figure(tmp_path):
    empty = load(write(tmp_path / "empty", study_of(), {}, {}))
    assert not [name for name, kind in SCALING_FIGURES.items() if kind.applies(empty)]


def test_predictions_are_read_back_and_drawn(results):
    model, plan = SCALING_FIGURES["predicted"], SCALING_FIGURES["plan"]
    assert not model.applies(results)
    assert not plan.applies(results)
    measured, predicted = made_model()
    path = results.folder / MODEL_FILE
    path.write_text(model_frame(measured, predicted).to_csv(index=False))
    assert model.applies(results)
    points, lines = read_model(results)
    pd.testing.assert_frame_equal(points[measured.columns], measured)
    lines = lines[predicted.columns].reset_index(drop=True)
    pd.testing.assert_frame_equal(lines, predicted)
    assert len(model.draw(results).axes) == 1
    assert list(model.table(results)["beyond what was measured"]) == ["no", "no", "yes", "yes"]


def test_the_plan_figure_distinguishes_predictions_from_measurements():
    nan = float("nan")
    rows = {"series": "a", "unit": "money", "offer": "p4"}
    rows |= {"num_workers": [1, 1, 2, 2], "global_batch_size": [64, 128] * 2}
    rows |= {"seconds": [4.0, 3.0, 2.5, 2.0], "cost": [4.0, 3.0, 5.0, 4.0]}
    for end, factor in (("low", 0.5), ("high", 1.5)):
        for column, name in (("seconds", "s"), ("cost", "cost")):
            rows[f"{end}_{name}"] = [factor * value for value in rows[column]]
    rows |= {"measured_s": [4.2, float("inf"), nan, 2.2], "measured_cost": [4.2, nan, nan, 4.4]}
    (axes,) = plan_figure(pd.DataFrame(rows)).axes
    hollow = [line for line in axes.lines if line.get_gid() == "extrapolated"]
    assert [list(line.get_ydata()) for line in hollow] == [[4.0, 3.0], [2.5, 2.0]]
    (front,) = [line for line in axes.lines if line.get_gid() == "front"]
    assert list(front.get_xydata().ravel()) == [3.0, 3.0, 4.0, 2.0]
    intervals = [line for line in axes.lines if line.get_alpha() == 0.25]
    filled = [line for line in axes.lines if line not in (*hollow, front, *intervals)]
    assert [list(line.get_ydata()) for line in filled] == [[4.2], [2.2]]


def test_every_figure_of_measurements_is_drawn_and_has_a_table(results):
    for name in ("speedup", "efficiency", "step_shares", "values"):
        kind = SCALING_FIGURES[name]
        assert kind.applies(results)
        assert kind.draw(results).axes
        assert len(kind.table(results))
    shares = SCALING_FIGURES["step_shares"].table(results)
    parts_of_it = [column for column in shares if str(column).endswith("[%]")]
    assert list(shares[parts_of_it].sum(axis=1)) == pytest.approx([100.0] * len(shares))
