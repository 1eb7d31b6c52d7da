"""`raybench plan`: machines to rent, from folders of scaling studies."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import raybench
from raybench.report.study import load
from raybench.scaling.plan import CHEAPEST, FASTEST, IN_TIME, KEYS, WITHIN, measured_runs
from raybench.spec.documents import read_mapping
from raybench.spec.errors import ErrorCode
from raybench.spec.scaling_study import read_prices
from raybench.spec.text import seconds_of
from tests.fitted_once import fitted_once as fitted_once
from tests.fitted_once import without_pollux as without_pollux
from tests.refusals import refused
from tests.runs.made_up import law, reaching, run_of, study_of, write
from tests.test_json import run_json

pytestmark = pytest.mark.usefixtures("fitted_once", "without_pollux")
ROOT = Path(__file__).parents[1]
SIZES = [32, 64, 128, 256]
PRICES = """
small: {workers: 2, price: 0.36, startup_s: 0.5}
big:
  accelerator: A100
  workers: 4
  price: 36
  billing_step_s: 60
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A study with a target on CPUs, and a short run of two cells on A100s, five times as fast."""
    cpus = reaching(tmp_path_factory.mktemp("cpus"), batch_sizes=SIZES, epoch=1100).folder
    base = {"gpus_per_worker": 1, "accelerator_type": "A100"}
    study = study_of(num_workers=[1, 2], batch_sizes=[64], scaling="weak", base=base)
    runs, curves = run_of(study, lambda spec, repeat: law(spec, repeat) / 5)
    runs = {name: replace(run, accelerators=["A100"]) for name, run in runs.items()}
    return cpus, write(tmp_path_factory.mktemp("gpus") / "a100", study, runs, curves)


@pytest.fixture
def prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prices.yaml").write_text(PRICES)
    return tmp_path / "prices.yaml"


def test_two_machine_types_are_combined_in_one_plan(folders, prices, capsys):
    words = ("--prices", prices, "--budget", "0.5", "--deadline", "3s")
    document = run_json(capsys, "plan", *folders, *words)
    (plan,) = document["details"]["plans"]
    by_answer = {row["answer"]: row for row in plan["answers"]}
    assert len(by_answer) == 4
    assert by_answer[FASTEST]["offer"] == "big"
    assert by_answer[CHEAPEST]["offer"] == "small"
    for row in by_answer.values():
        assert row["low_s"] < row["seconds"] < row["high_s"]
        assert 0 <= row["keeps_budget"] <= 1
    assert by_answer[WITHIN]["cost"] <= 0.5
    assert by_answer[IN_TIME]["seconds"] <= 3
    assert any(line.startswith("Fastest: ") and "A100" not in line for line in document["answer"])
    page = Path("plan.html").read_text()
    assert "<svg" in page


def test_plan_is_a_python_function(folders, prices):
    report = raybench.plan(*folders, prices=read_mapping(prices), deadline="1h", predict=[4, 8])
    assert set(report.table["offer"]) == {"small", "big"}
    assert set(report.table["num_workers"]) == {1, 2, 4, 8}
    small = report.table[report.table["offer"] == "small"]
    assert (small["num_nodes"] == -(-small["num_workers"] // 2)).all()
    assert small["fixed_s"].unique().tolist() == [1.5], "start-up, and a second to compile"
    assert report.answers["keeps_deadline"].between(0, 1).all()
    assert len(report.plot().axes) == 1


def test_an_impossible_budget_is_reported(folders, prices):
    words = raybench.plan(*folders, prices=prices, budget=1e-6).words
    assert any(line.startswith(f"No {WITHIN}") for line in words)


def test_a_plan_of_a_recorded_study_is_near_its_measurements(prices):
    """A recorded study; the billed time besides training comes from its ledgers."""
    folder = ROOT / "tests/fixtures/batch_size_vs_workers"
    report = raybench.plan(folder, prices=prices)
    measured_rows = report.table[report.table["measured_s"].notna()]
    assert len(measured_rows) >= 4
    runs = load(folder).runs.values()
    ready = [run.ledger["setup"] + run.ledger["compile"] for run in runs]
    assert measured_rows["fixed_s"].between(0.5 + min(ready), 60).all()
    finite = measured_rows[np.isfinite(measured_rows["measured_s"])]
    assert finite["within"].all()
    by_run = (
        measured_runs(load(folder)).dropna(subset=["work_s"]).merge(finite, on=["series", *KEYS])
    )
    inside = by_run["work_s_x"].between(by_run["low_work_s"], by_run["high_work_s"])
    assert len(by_run) >= 18
    assert inside.mean() >= 0.85, "the interval is that of a single run"
    assert by_run["stalls"].median() > 1.03, "stalled steps are billed"
    assert finite["cost"].to_numpy() == pytest.approx(
        0.36 * np.ceil(finite["seconds"]) / 3600, rel=1e-6
    )
    assert report.answers["loss"].dropna().lt(0.1).all()


@pytest.mark.parametrize(
    ("content", "code", "key"),
    [
        ({"p4": 33}, ErrorCode.INVALID_VALUE, "p4"),
        ({"p4": {"price": 33}}, ErrorCode.MISSING, "workers"),
        ({"p4": {"workers": 8, "prise": 33}}, ErrorCode.UNKNOWN_KEY, "prise"),
        ({"p4": {"workers": 1, "price": 3, "spot": {"price": 1}}}, ErrorCode.REMOVED, "spot"),
    ],
)
def test_invalid_prices_are_refused(content, code, key):
    with refused(code, "prices", key):
        read_prices(content)


def test_durations_are_read_with_units():
    texts = ("90", "90s", "1.5min", "2h", "1d", "8w", "0", "-3s", "soon")
    seconds = [90, 90, 90, 7200, 86400, 8 * 7 * 86400, None, None, None]
    assert list(map(seconds_of, texts)) == seconds


def test_studies_without_a_target_are_refused(folders, capsys):
    error = run_json(capsys, "plan", folders[1], code=2)["error"]
    assert error["code"] == ErrorCode.MISSING
    assert "base.objective.target" in error["message"]
