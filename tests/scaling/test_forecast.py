"""Prediction of a large run from small ones: laws that are known, and what is refused."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from raybench.commands import cli
from raybench.scaling.forecast import LargeRunModel, SmallRun
from raybench.spec.errors import UserError

LARGE = 2e9, 4e10
CELLS = ((1e8, 2e9), (1e8, 8e9), (2e8, 4e9), (4e8, 8e9))


def optimum(parameters: float, samples: float) -> tuple[float, float, float]:
    """Return the best rate and batch, and the loss there."""
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


def test_a_large_run_is_predicted_with_intervals_that_hold() -> None:
    true = optimum(*LARGE)
    held = []
    for seed in range(8):
        found = LargeRunModel(runs(seed)).predict(*LARGE)
        intervals = found.learning_rate, found.batch, found.loss
        held += [one.low <= value <= one.high for one, value in zip(intervals, true, strict=True)]
        assert found.learning_rate.value == pytest.approx(true[0], rel=0.5)
        assert found.batch.value == pytest.approx(true[1], rel=0.5)
        assert found.loss.value == pytest.approx(true[2], rel=0.02)
        assert found.off_by_two["rate"] == pytest.approx(0.0048, rel=0.5)
        assert found.doubts == ()
    assert np.mean(held) >= 0.85


def test_one_run_far_off_changes_little() -> None:
    known = runs()
    before = LargeRunModel(known).predict(*LARGE).learning_rate.value
    at = min(
        range(len(known)), key=lambda one: known[one].loss + 1e9 * (known[one][:2] != CELLS[-1])
    )
    broken = [*known[:at], known[at]._replace(loss=known[at].loss * 1.01), *known[at + 1 :]]
    after = LargeRunModel(broken).predict(*LARGE).learning_rate.value
    assert abs(math.log(after / before)) < 0.3


def test_a_run_near_the_optimum_of_a_large_cell_tells_most() -> None:
    model = LargeRunModel(runs())
    rate, batch, _ = optimum(*CELLS[-1])
    side, far = run(*CELLS[-1], rate * 2, batch * 2), run(*CELLS[-1], rate * 30, batch)
    gains = model.gains([side, far], *LARGE)
    assert gains[0] > gains[1] > 0


@pytest.mark.parametrize(
    ("cells", "word"), [((CELLS[0], CELLS[1]), "size"), ((CELLS[0], (2e8, 2e9)), "length")]
)
def test_what_the_runs_do_not_vary_is_doubted(
    cells: tuple[tuple[float, float], ...], word: str
) -> None:
    assert any(word in one for one in LargeRunModel(runs(cells=cells)).predict(*LARGE).doubts)


def test_an_optimum_at_the_end_of_the_tried_rates_is_doubted() -> None:
    known = [one for one in runs() if one.learning_rate < 5e-4]
    doubts = LargeRunModel(known).predict(*LARGE).doubts
    assert any("learning rate" in one for one in doubts)


@pytest.mark.parametrize(
    "known",
    [
        runs()[:5],
        runs(cells=CELLS[:1]),
        [*runs()[1:], runs()[0]._replace(loss=-1.0)],
        [*runs()[1:], runs()[0]._replace(samples=math.nan)],
        [one._replace(loss=4.0 - one.loss) for one in runs()],
    ],
)
def test_what_cannot_be_extrapolated_is_refused(known: list[SmallRun]) -> None:
    with pytest.raises(UserError):
        LargeRunModel(known)


def test_a_large_run_that_is_small_is_refused() -> None:
    with pytest.raises(UserError):
        LargeRunModel(runs()).predict(1e8, 1e9)


def test_the_command_reads_a_table_with_other_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"samples": "tokens", "batch": "batch_tokens", "learning_rate": "lr"}
    table = pd.DataFrame(runs()).rename(columns=names).assign(width=512)
    table.loc[0, "loss"] = None
    file = tmp_path / "runs.csv"
    table.to_csv(file, index=False)
    asked = ["forecast", str(file), "--parameters", "2e9", "--samples", "4e10", "--json"]
    assert cli.main(asked) == 0
    found = json.loads(capsys.readouterr().out)["details"]
    rate, batch, least = optimum(*LARGE)
    for name, value in (("learning_rate", rate), ("batch", batch), ("loss", least)):
        assert found[name]["low"] <= value <= found[name]["high"]
    assert (found["next_run"]["parameters"], found["next_run"]["samples"]) in CELLS
    table.drop(columns="lr").to_csv(file, index=False)
    assert cli.main(asked) == 2
    assert cli.main([*asked[:1], str(tmp_path / "none.csv"), *asked[2:]]) == 2
