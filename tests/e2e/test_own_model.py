"""The README's class of a user's own model, searched for real."""

from pathlib import Path

import pytest

import raybench
from tests.test_readme import block

from .commands import raybench as run

pytestmark = [pytest.mark.ray, pytest.mark.apart]


@pytest.mark.all
def test_search_with_the_model_of_the_readme(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "my_model.py").write_text(block("python", "class MyModel"))
    printed = run(
        *("tune", "--workload", "my_model:MyModel", "--set", "space.framework=[torch]"),
        *("--set", "num_workers=1", "--trials", "3", "--set", "confirm.race=0"),
        *("--target", "auto", "--set", "objective.max_train_seconds=20"),
        *("--isolation", "process"),
        cwd=tmp_path,
    )
    assert "unconfirmed" in printed
    results = raybench.load(tmp_path / "results" / "digits")
    trials = results.trials
    is_reference = trials["trial"].str.startswith("reference")
    assert set(trials["trial"][is_reference]) == {"reference0", "reference1", "reference2"}
    assert sorted(trials["role"][is_reference]) == ["reference", "reference", "trial"]
    assert 0.1 < results.target < trials["best_accuracy"][is_reference].max()
    assert "auto: median of " in results.study["target_set_by"]
    trials = trials[trials["phase"] == "search"]
    assert len(trials) == 3
    assert (trials["start_s"] > 0).all(), "new workers for each"
    assert set(trials["num_parameters"]) == {784 * 128 + 128 + 128 * 10 + 10}
    assert set(trials["workload"]) == {"my_model:MyModel"}
