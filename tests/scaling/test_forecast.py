"""Forecasts of a large run from small ones: known laws, plans, studies and refused input."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from raybench.commands import cli
from raybench.commands.forecast import large_run, read_runs, runs_of_study
from raybench.report.figures.predictions import forecast_figure
from raybench.results.store import STUDY_FILE, Store
from raybench.results.study import load
from raybench.runs.options import ForecastOptions
from raybench.scaling.forecast import LargeRunModel, OptimumModel, SmallRun
from raybench.search.sampling.default_rates import first_specs
from raybench.spec.documents import read_mapping
from raybench.spec.errors import ErrorCode
from raybench.spec.study import build_study
from tests.factories import evaluation, record
from tests.refusals import refused
from tests.test_json import run_json

LARGE = 2e9, 4e10
CELLS = ((1e8, 2e9), (1e8, 8e9), (2e8, 4e9), (4e8, 8e9))


def optimum(parameters: float, samples: float) -> tuple[float, float, float]:
    """Return the optimal rate and batch, and their loss."""
    rate = 1e-3 * (parameters / 1e8) ** -0.5 * (samples / 1e9) ** 0.2
    batch = 2e5 * (samples / 1e9) ** 0.5
    return rate, batch, 1.5 + 0.4 * (parameters / 1e9) ** -0.34 + 0.5 * (samples / 1e10) ** -0.3


def run(
    parameters: float, samples: float, rate: float, batch: float, noise: float = 0.0
) -> SmallRun:
    best_rate, best_batch, least = optimum(parameters, samples)
    off = 0.5 * 0.02 * (math.log(rate / best_rate) ** 2 + math.log(batch / best_batch) ** 2)
    return SmallRun(parameters, samples, batch, rate, least * math.exp(off + noise))


def runs(seed: int = 0, cells: tuple[tuple[float, float], ...] = CELLS) -> list[SmallRun]:
    rng = np.random.default_rng(seed)
    return [
        run(*cell, rate, batch, 0.002 * rng.standard_normal())
        for cell in cells
        for rate in np.geomspace(2e-4, 6e-3, 6)
        for batch in np.geomspace(5e4, 2e6, 5)
    ]


def test_a_large_run_is_predicted_with_calibrated_intervals():
    true = optimum(*LARGE)
    covered = []
    for seed in range(5):
        forecast = LargeRunModel(runs(seed)).predict(*LARGE)
        intervals = forecast.learning_rate, forecast.batch, forecast.loss
        covered += [
            interval.low <= value <= interval.high
            for interval, value in zip(intervals, true, strict=True)
        ]
        assert forecast.learning_rate.value == pytest.approx(true[0], rel=0.5)
        assert forecast.batch.value == pytest.approx(true[1], rel=0.5)
        assert forecast.loss.value == pytest.approx(true[2], rel=0.02)
        assert forecast.off_by_two["rate"] == pytest.approx(0.0048, rel=0.5)
        assert forecast.doubts == ()
    assert np.mean(covered) >= 0.85


def test_an_outlying_run_changes_little():
    """Without the heavy tails of the errors, it would change the rate twice as much."""
    small = runs()
    before = LargeRunModel(small).predict(*LARGE).learning_rate.value
    index = min(range(len(small)), key=lambda i: small[i].loss + 1e9 * (small[i][:2] != CELLS[-1]))
    small[index] = small[index]._replace(loss=small[index].loss * 1.05)
    after = LargeRunModel(small).predict(*LARGE).learning_rate.value
    assert abs(math.log(after / before)) < 0.06


def test_runs_are_chosen_by_information_per_compute():
    model = OptimumModel(runs(), [(4e8, 8e9), (1.2e9, 8e9)])
    (rate, batch), size = model.position(CELLS[-1]), CELLS[-1]
    near = SmallRun(*size, batch * 2, rate * 2, 1.0)
    far = SmallRun(*size, batch, rate * 30, 1.0)
    costly = near._replace(parameters=1.2e9)
    every = [far, near, costly]
    costs = [run.compute for run in every]
    assert model.choose(every, LARGE, costs, 1e20).runs == [near, far, costly]
    assert model.choose(every, LARGE, costs, 1.2 * near.compute).runs == [near]
    assert model.choose(every, LARGE, [1.0, 900.0, 1.0], 1.0).runs == [far]
    assert model.choose(every, LARGE, costs, 0.0).runs == []


def test_the_rate_of_a_given_batch_equals_that_of_the_best_batch_without_correlation():
    model = LargeRunModel(runs())
    best = model.predict(*LARGE)
    small = model.predict(*LARGE, batch=best.batch.value / 4)
    assert small.learning_rate.value == pytest.approx(best.learning_rate.value, rel=0.3)
    assert small.batch == best.batch


def test_error_rates_with_noise_of_a_tenth_are_predicted_with_wide_intervals():
    """Validation errors of small networks vary more than losses of language models."""
    rng, covered, widths = np.random.default_rng(0), [], []
    for _ in range(5):
        small = [
            run._replace(loss=0.05 * (run.loss / 3) ** 20 * math.exp(0.1 * rng.standard_normal()))
            for run in runs()
        ]
        forecast = LargeRunModel(small).predict(*LARGE)
        covered.append(
            forecast.learning_rate.low <= optimum(*LARGE)[0] <= forecast.learning_rate.high
        )
        widths.append(forecast.loss.high / forecast.loss.low)
    assert np.mean(covered) >= 0.8
    assert np.median(widths) > 1.1


@pytest.mark.parametrize(
    ("known", "word"),
    [
        (runs(cells=CELLS[:2]), "size"),
        (runs(cells=(CELLS[0], (2e8, 2e9))), "length"),
        ([run for run in runs() if run.learning_rate < 5e-4], "learning rate"),
    ],
    ids=["unvaried size", "unvaried length", "optimum at the edge of the tried rates"],
)
def test_doubts_are_reported(known, word):
    assert any(word in doubt for doubt in LargeRunModel(known).predict(*LARGE).doubts)


@pytest.mark.parametrize(
    ("known", "code"),
    [
        (runs()[:5], ErrorCode.TOO_FEW),
        (runs(cells=CELLS[:1]), ErrorCode.TOO_FEW),
        ([*runs()[1:], runs()[0]._replace(loss=-1.0)], ErrorCode.INVALID_DATA),
        ([*runs()[1:], runs()[0]._replace(samples=math.nan)], ErrorCode.INVALID_DATA),
        ([run._replace(loss=4.0 - run.loss) for run in runs()], ErrorCode.INVALID_DATA),
    ],
)
def test_runs_that_cannot_be_extrapolated_are_refused(known, code):
    with refused(code):
        LargeRunModel(known)


@pytest.fixture
def run_forecast(capsys: pytest.CaptureFixture[str]) -> Any:
    """Function that runs the command with --json, and returns its document."""
    return partial(run_json, capsys, "forecast")


def assert_refused(run_forecast: Any, words: list[Any], code: ErrorCode, names: list[str]) -> None:
    error = run_forecast(*words, code=cli.WRONG_INPUT)["error"]
    assert error["code"] == code
    for name in names:
        assert name in error["message"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A CSV file of runs with other column names and a diverged run."""
    names = {"samples": "tokens", "learning_rate": "lr"}
    rows = pd.DataFrame(runs()).rename(columns=names).assign(width=512)
    rows.loc[0, "loss"] = None
    file = tmp_path / "runs.csv"
    rows.to_csv(file, index=False)
    return file


SIZE = "--parameters", "2e9", "--samples", "4e10"


def test_the_command_reads_a_table_with_other_columns(table, tmp_path, run_forecast):
    figure = tmp_path / "figure.png"
    document = run_forecast(table, *SIZE, "--figure", figure)
    details = document["details"]
    for name, value in zip(("learning_rate", "batch", "loss"), optimum(*LARGE), strict=True):
        assert details[name]["low"] <= value <= details[name]["high"]
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_the_figure_shows_every_small_optimum_and_the_large_interval():
    model = LargeRunModel(runs())
    forecast = model.predict(*LARGE)
    axes = forecast_figure(model, forecast, *LARGE).axes
    assert len(axes) == 3
    for axis, interval in zip(
        axes, (forecast.learning_rate, forecast.batch, forecast.loss), strict=True
    ):
        (small,) = (line for line in axis.lines if line.get_gid() == "small")
        assert len(small.get_xdata()) == len(CELLS)
        (_, low), (_, high) = axis.collections[0].get_segments()[0]
        assert (low, high) == pytest.approx((interval.low, interval.high))


def test_a_plan_respects_its_budget_and_its_results_are_read(table, tmp_path, run_forecast):
    out = tmp_path / "next.csv"
    document = run_forecast(table, *SIZE, "--plan", "5%", "--out", out)
    planned = pd.read_csv(out)
    assert len(planned) == len(document["details"]["runs"]) >= 5
    assert planned["share_of_large_run"].sum() <= 0.05 + 1e-9
    cost = planned["parameters"] * planned["samples"] / (LARGE[0] * LARGE[1])
    assert (planned["batch"] % 1 == 0).all()
    assert planned["share_of_large_run"].to_numpy() == pytest.approx(cost.to_numpy())
    results = [
        run(row.parameters, row.samples, row.learning_rate, row.batch)
        for row in planned.itertuples()
    ]
    pd.DataFrame(results).to_csv(out, index=False)
    before = run_forecast(table, *SIZE)["details"]["learning_rate"]
    after = run_forecast(table, out, *SIZE)["details"]["learning_rate"]
    assert after["high"] / after["low"] < before["high"] / before["low"]


WIDTHS = {
    "workload": "own:Net",
    "dataset": {"name": "workload"},
    "objective": {"kind": "best_at_budget", "metric": "loss", "max_train_seconds": 60.0},
    "space": {
        "model": {"width": [1000, 2000]},
        "learning_rate": [3e-4, 1e-3, 3e-3],
        "batch_size_per_worker": [100_000, 300_000, 900_000],
        "epochs": [1, 2],
    },
    "fixed": {"framework": "torch", "optimizer": "adam", "schedule": "cosine", "num_workers": 2},
}


def train(
    content: dict[str, Any], configurations: list[dict[str, Any]] | None, folder: Path
) -> str:
    """Write the results of a made-up search (by default of the configurations of `search.first`);
    models have 100 parameters per squared width, epochs have 4e9 samples."""
    study, space = build_study(content, "made")
    specs = [study.run_spec(values) for values in configurations or []]
    specs = specs or list(first_specs(study, space).values())
    store = Store(folder)
    store.write_yaml(STUDY_FILE, {"study": study.document(), "is_over": True})
    for number, spec in enumerate(specs):
        parameters = 100 * int(spec.model["width"]) ** 2
        # A run ends with a full batch.
        samples = math.ceil(spec.epochs * 4e9 / spec.global_batch_size) * spec.global_batch_size
        loss = run(parameters, samples, spec.learning_rate, spec.global_batch_size).loss
        name, end = f"{number:04d}", {"samples": samples, "epoch": samples / 4e9, "value": loss}
        store.append(evaluation(**end).line(name))
        ended = record(name, spec, stop="epochs", **end)
        store.append(replace(ended, num_parameters=parameters).line())
    store.close()
    return str(folder)


def test_results_of_a_planned_space_narrow_the_forecast(tmp_path, run_forecast):
    configurations = [
        {"model.width": width, "learning_rate": rate, "batch_size_per_worker": batch, "epochs": n}
        for width, batch, n in ((1000, 100_000, 1), (1000, 300_000, 2), (2000, 300_000, 1))
        for rate in (3e-4, 1e-3, 3e-3)
    ]
    small = train(WIDTHS, configurations, tmp_path / "small")
    (file := tmp_path / "next.yaml")
    document = run_forecast(small, *SIZE, "--plan", "5%", "--out", file)
    rows = document["details"]["runs"]
    planned = [SmallRun(*(run.get(name, 1.0) for name in SmallRun._fields)) for run in rows]
    content = read_mapping(file)
    study, space = build_study(content, "next")
    specs = list(first_specs(study, space).values())
    assert study.search.trials == len(specs) == len(planned) >= 5
    assert not study.needs_reference
    assert not study.search.early_stopping
    within_budget = run_forecast(small, *SIZE, "--plan", "30s")["details"]["runs"]
    assert 18 < sum(run["train_s"] for run in within_budget) <= 30
    for run, spec in zip(planned, specs, strict=True):
        assert spec.learning_rate == run.learning_rate
        assert spec.global_batch_size == pytest.approx(run.batch, abs=2)
        assert 100 * spec.model["width"] ** 2 == run.parameters
        assert math.ceil(spec.epochs * 4e9) == run.samples
    results = train(content, None, tmp_path / "results")
    sizes = {measured.run.size for measured in read_runs([small, results], None)}
    assert sizes == {measured.run.size for measured in read_runs([small], None)} | {
        run.size for run in planned
    }
    assert len(sizes) <= 4, "lengths of a whole number of epochs agree between studies"
    before = run_forecast(small, *SIZE)["details"]["learning_rate"]
    after = run_forecast(small, results, *SIZE)["details"]["learning_rate"]
    factor = math.sqrt(after["high"] / after["low"])
    assert factor < math.sqrt(before["high"] / before["low"])
    assert factor == pytest.approx(document["details"]["expected"]["rate_factor"], rel=0.3)
    # The plan ends once the interval is narrow enough.
    enough = run_forecast(small, *SIZE, "--plan", "5%", "--within", "5")["details"]["runs"]
    assert len(enough) < len(planned)


def test_seconds_of_runs_come_from_the_table(table, run_forecast):
    assert_refused(run_forecast, [table, *SIZE, "--plan", "2h"], ErrorCode.MISSING, [])
    rows = pd.read_csv(table)
    rows.assign(train_s=rows["tokens"] / 1e6).to_csv(table, index=False)
    planned = run_forecast(table, *SIZE, "--plan", "2h")["details"]["runs"]
    assert [run["train_s"] for run in planned] == [run["samples"] / 1e6 for run in planned]
    assert 3600 < sum(run["train_s"] for run in planned) <= 7200


def test_the_parameters_of_a_torch_model_are_counted(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.syspath_prepend(str(examples))
    (tmp_path / "large.yaml").write_text((examples / "tiny_lm_large.yaml").read_text())
    large = large_run(ForecastOptions(to=tmp_path / "large.yaml"))
    width = 96
    per_block = 12 * width**2 + 13 * width
    ends = 2 * 128 * width + 128 + 64 * width + 2 * width
    assert large.parameters == 2 * per_block + ends
    assert large.samples == 3000
    assert torch.get_default_device() == torch.device("cpu")


def test_the_loss_is_predicted_without_learning_rates(table, tmp_path, run_forecast):
    file = tmp_path / "sizes.csv"
    rows = pd.DataFrame(
        [(*cell, optimum(*cell)[2]) for cell in CELLS], columns=["parameters", "tokens", "loss"]
    )
    rows.to_csv(file, index=False)
    document = run_forecast(file, "--loss", *SIZE)
    details, (*_, least) = document["details"], optimum(*LARGE)
    assert details["loss"]["low"] <= least <= details["loss"]["high"]
    assert details["compute"] == pytest.approx(6 * LARGE[0] * LARGE[1])
    by_compute = run_forecast(file, "--loss", "--compute", "4.8e20")["details"]
    assert by_compute["parameters"] == details["parameters"]


@pytest.mark.parametrize(
    ("words", "code", "names"),
    [
        (["none.csv", *SIZE], ErrorCode.NOT_FOUND, ["none.csv"]),
        (["text.csv", *SIZE], ErrorCode.INVALID_FILE, ["text.csv", "learning_rate"]),
        ([*SIZE], ErrorCode.MISSING, ["RUNS"]),
        (["runs.csv"], ErrorCode.MISSING, ["--parameters", "--to"]),
        (["runs.csv", *SIZE, "--figure", "no/x.png"], ErrorCode.NOT_WRITABLE, ["--figure"]),
        (["runs.csv", *SIZE, "--figure", "x.docx"], ErrorCode.NOT_WRITABLE, ["x.docx"]),
        (["runs.csv", *SIZE, "--plan", "0.001%"], ErrorCode.TOO_FEW, ["--plan"]),
        (["runs.csv", *SIZE, "--plan", "150%"], ErrorCode.INVALID_VALUE, ["--plan", "150%"]),
        (["runs.csv", *SIZE, "--plan", "soon"], ErrorCode.INVALID_VALUE, ["--plan", "soon"]),
        # A space needs model settings, which a table does not have.
        (["runs.csv", *SIZE, "--plan", "5%", "--out", "n.yaml"], ErrorCode.CONFLICT, ["n.yaml"]),
    ],
)
def test_invalid_arguments_are_refused(words, code, names, table, monkeypatch, run_forecast):
    monkeypatch.chdir(table.parent)
    (table.parent / "text.csv").write_text("a,b\n1,2\n")
    assert_refused(run_forecast, words, code, names)


RACE = Path(__file__).parents[1] / "fixtures" / "digits_race"
SPACE = """
workload: mnist_large
objective: {kind: time_to_target, target: 0.95}
space:
  optimizer: [adam, lamb]
  learning_rate: {low: 1.0e-4, high: 1.0e-1, log: true}
fixed: {num_workers: 2, batch_size_per_worker: 32}
"""


def study_of(
    folder: Path, *, size: int | None, rate_factor: float = 1.0, error: float = 1.0, **changes: Any
) -> Path:
    """Write a study: the fixture with another model size, other rates, errors and run-spec keys."""
    folder.mkdir()
    (folder / "study.yaml").write_bytes((RACE / "study.yaml").read_bytes())
    lines = [json.loads(line) for line in (RACE / "records.jsonl").read_text().splitlines()]
    for line in lines:
        if line.get("num_parameters"):
            line["num_parameters"] = size
        if "spec" in line:
            line["spec"]["learning_rate"] *= rate_factor
            line["spec"] |= changes
        if line["kind"] == "eval":
            line["value"] = 1 - error * (1 - line["value"])
    (folder / "records.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return folder


def test_studies_give_the_space_of_a_large_model(tmp_path, run_forecast):
    small = study_of(tmp_path / "small", size=10_000)
    larger = study_of(tmp_path / "larger", size=160_000, rate_factor=0.5, error=0.8)
    (file := tmp_path / "large.yaml").write_text(SPACE)
    document = run_forecast(small, larger, "--to", file, "--samples", "20000")
    rate = document["details"]["learning_rate"]
    content = read_mapping(tmp_path / "large-forecast.yaml")
    study, space = build_study(content, "large")
    rates = content["space"]["learning_rate"]
    assert study.search.trials == len(rates) == 6
    assert study.fixed["optimizer"] == "adam"
    assert list(space) == ["learning_rate"]
    assert rates[0] == pytest.approx(rate["value"], rel=0.01)
    assert study.search.first == [{"learning_rate": rates[0]}]
    best = round(document["details"]["batch"]["value"] / 32)
    assert any(f" {best} worker" in sentence for sentence in document["answer"])
    assert all(rate["low"] < tried < rate["high"] for tried in rates)


def test_runs_of_a_study_are_read_at_one_length(tmp_path):
    study = load(study_of(tmp_path / "small", size=10_000))
    small = [measured.run for measured in runs_of_study(study, "adam")]
    (length,) = {run.samples for run in small}
    lengths = [
        run.samples
        for run in study.runs.values()
        if run.spec.optimizer == "adam" and run.stop == "target" and run.phase == "search"
    ]
    assert length == min(lengths)
    assert {run.parameters for run in small} == {10_000}
    assert all(0.03 < run.loss < 0.9 for run in small)


def test_runs_with_a_decaying_schedule_count_only_at_their_end(tmp_path):
    """Earlier values depend on the end of the schedule."""
    constant = runs_of_study(load(study_of(tmp_path / "constant", size=10_000)), "adam")
    study = load(study_of(tmp_path / "cosine", size=10_000, schedule="cosine"))
    decaying = [measured.run for measured in runs_of_study(study, "adam")]
    assert 0 < len(decaying) < len(constant)
    as_long = [run for run in study.runs.values() if run.samples <= 1.05 * decaying[0].samples]
    assert {run.learning_rate for run in decaying} <= {run.spec.learning_rate for run in as_long}


def test_a_study_whose_runs_cannot_be_used_is_refused(tmp_path):
    unknown = load(study_of(tmp_path / "unknown", size=None))
    with refused(ErrorCode.NO_RESULT, unknown.place):
        runs_of_study(unknown, "adam")
    with refused(ErrorCode.NO_RESULT, unknown.place, "sgd"):
        runs_of_study(unknown, "sgd")
    file = tmp_path / "unknown" / "study.yaml"
    file.write_text(file.read_text().replace("metric: accuracy", "metric: r2", 1))
    with refused(ErrorCode.UNSUPPORTED, "r2"):
        runs_of_study(load(tmp_path / "unknown"), "adam")


@pytest.mark.parametrize(
    ("space", "words", "code", "names"),
    [
        (SPACE, [], ErrorCode.MISSING, ["--samples"]),
        (SPACE.replace("adam, lamb", "sgd"), ["--samples", "2e4"], ErrorCode.TOO_FEW, ["sgd"]),
        (SPACE, ["--samples", "2e4", "--out", "large.yaml"], ErrorCode.CONFLICT, ["--out"]),
        (SPACE, ["--samples", "2"], ErrorCode.INVALID_VALUE, []),
    ],
)
def test_a_space_that_does_not_match_the_studies_is_refused(
    space, words, code, names, tmp_path, monkeypatch, run_forecast
):
    monkeypatch.chdir(tmp_path)
    study_of(tmp_path / "small", size=10_000)
    study_of(tmp_path / "larger", size=160_000, error=0.8)
    Path("large.yaml").write_text(space)
    words = ["small", "larger", "--to", "large.yaml", *words]
    assert_refused(run_forecast, words, code, names)
