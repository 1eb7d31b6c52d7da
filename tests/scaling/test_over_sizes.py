"""Tune small, train large: best rates of made-up trials, and `raybench transfer` on real ones."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import raybench
from raybench.commands import cli, transfer
from raybench.scaling.over_sizes import SLOPE, BestRate, best_rate, predict
from raybench.spec.documents import read_mapping
from raybench.spec.study import build_study


class Plain(raybench.Workload):
    """A model whose parameters a framework would have to count."""

    name = "plain"
    input_shape = (28, 28, 1)
    num_classes = 10

    def build_torch(self) -> object:
        return None


RACE = Path(__file__).parents[1] / "fixtures" / "digits_race"
LARGE = """
workload: mnist_large
objective: {kind: time_to_target, target: 0.95}
space:
  optimizer: [adam, lamb]
  learning_rate: {low: 1.0e-4, high: 1.0e-1, log: true}
fixed: {num_workers: 2, batch_size_per_worker: 32}
"""


def drawn(seed: int, *, best: float = 3e-3, number: int = 30) -> dict[str, np.ndarray]:
    """Trials whose cost is least at `best` for a batch of 64, and at its root rule for others;
    rates four times as large diverge."""
    rng = np.random.default_rng(seed)
    rates, batches = (
        np.exp(rng.uniform(*np.log([1e-4, 1e-1]), number)),
        2 ** rng.integers(4, 9, number),
    )
    away = np.log(rates / (best * np.sqrt(batches / 64)))
    costs = 9 + 0.3 * away**2 + 0.1 * rng.standard_normal(number)
    return {
        "rates": rates,
        "batches": batches,
        "costs": np.where(away > math.log(4), np.nan, costs),
    }


def test_the_interval_holds_the_best_rate_of_a_size_as_often_as_it_says() -> None:
    found = [best_rate(1e5, **drawn(seed), batch=64) for seed in range(20)]
    held = [one.interval[0] <= 3e-3 <= one.interval[1] for one in found if one is not None]
    assert sum(held) >= 17
    assert np.median([one.rate for one in found if one is not None]) == pytest.approx(3e-3, rel=0.2)


def test_the_best_rate_is_that_of_the_batch_asked_for() -> None:
    few, many = (best_rate(1e5, **drawn(3, number=60), batch=batch) for batch in (16, 256))
    assert few is not None
    assert many is not None
    assert 2 < many.rate / few.rate < 8  # the root of 16


@pytest.mark.parametrize(
    ("best", "bound"), [(1.0, "or more"), (1e-6, "or less"), (3e-3, "")], ids=str
)
def test_a_best_rate_at_an_end_of_those_tried_is_a_bound(best: float, bound: str) -> None:
    rates, rng = np.geomspace(1e-4, 1e-1, 16), np.random.default_rng(0)
    costs = 0.3 * np.log(rates / best) ** 2 + 0.1 * rng.normal(size=16)
    found = best_rate(1e5, rates, np.full(16, 64.0), costs, batch=64)
    assert found is not None
    assert found.bound == bound
    assert predict([found], 1e6).bound == bound
    said = transfer.sentences([found, found], predict([found], 1e6), "adam", 64, {"adam"})
    assert any(bound in line for line in said)


def test_too_few_trials_tell_nothing() -> None:
    assert best_rate(1e5, **drawn(0, number=7), batch=64) is None


def test_rates_on_a_line_are_carried_on_along_it_and_one_alone_along_the_prior() -> None:
    line = [BestRate(size, 1e-2 * (size / 1e4) ** -0.4, 0.05) for size in (1e4, 1e5, 1e6)]
    found = predict(line, 1e7)
    assert found.rate == pytest.approx(1e-2 * 1000**-0.4, rel=0.25)
    alone = predict(line[:1], 1e6)
    assert alone.rate == pytest.approx(1e-2 * 100**SLOPE)
    assert alone.spread > found.spread
    far = predict(line[:1], 1e8)
    assert far.spread > alone.spread


def test_rates_to_try_share_the_interval_the_middle_first() -> None:
    low, high = (one := BestRate(1e6, 1e-3, 0.4)).interval
    rates = one.quantiles(5)
    assert rates[0] == 1e-3
    assert low < min(rates) < max(rates) < high
    assert np.diff(np.log(sorted(rates))) == pytest.approx([math.log(high / low) / 5] * 4, rel=0.02)


def study_of(folder: Path, *, size: int, rate_factor: float, **changes: object) -> Path:
    """Write the recorded search as one of a model of so many parameters, its rates changed."""
    folder.mkdir()
    (folder / "study.yaml").write_bytes((RACE / "study.yaml").read_bytes())
    lines = [json.loads(line) for line in (RACE / "records.jsonl").read_text().splitlines()]
    for line in lines:
        if line.get("num_parameters"):
            line["num_parameters"] = size
        if "spec" in line:
            line["spec"]["learning_rate"] *= rate_factor
            line["spec"] |= changes
    (folder / "records.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return folder


@pytest.fixture
def studies(tmp_path: Path) -> list[str]:
    """The search at two sizes, the rates of the larger at half of those of the smaller."""
    small = study_of(tmp_path / "small", size=10_000, rate_factor=1.0)
    larger = study_of(tmp_path / "larger", size=160_000, rate_factor=0.5)
    return [str(small), str(larger)]


def test_two_studies_make_the_trials_of_a_large_one(studies, tmp_path, capsys) -> None:
    (file := tmp_path / "large.yaml").write_text(LARGE)
    assert cli.main(["transfer", *studies, "--to", str(file), "--trials", "5"]) == cli.DONE
    printed = capsys.readouterr().out
    assert "Best rate of adam at a batch of 64" in printed
    assert "at 2,636,554 parameters" in printed  # counted of its layers
    assert "so it is." in printed
    content = read_mapping(tmp_path / "large-transferred.yaml")
    study, space = build_study(content, "large")
    assert study.search.trials == len(content["space"]["learning_rate"]) == 5
    assert study.fixed["optimizer"] == "adam"
    assert list(space) == ["learning_rate"]


def test_an_optimizer_that_the_large_one_names_is_kept(studies, tmp_path, capsys) -> None:
    (file := tmp_path / "large.yaml").write_text(LARGE.replace("[adam, lamb]", "[lamb]"))
    assert cli.main(["transfer", *studies, "--to", str(file)]) == cli.DONE
    assert "Best rate of lamb" in capsys.readouterr().out
    assert read_mapping(tmp_path / "large-transferred.yaml")["fixed"]["optimizer"] == "lamb"


def test_what_lies_on_no_line_is_said_before_the_large_trials(tmp_path, capsys) -> None:
    sizes = {"a": (10_000, 1.0), "b": (40_000, 1.0), "c": (160_000, 0.02)}
    studies = [
        str(study_of(tmp_path / name, size=size, rate_factor=factor))
        for name, (size, factor) in sizes.items()
    ]
    (file := tmp_path / "large.yaml").write_text(LARGE)
    assert cli.main(["transfer", *studies, "--to", str(file)]) == cli.DONE
    assert "it is not, so do not count on this." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "arguments", "says"),
    [
        (
            {"num_workers: 2": "warmup_epochs: 1", "adam, lamb]": "adam]\n  num_workers: [1, 2]"},
            [],
            "several; fix",
        ),
        ({}, ["--trials", "0"], "--trials: must be from 1"),
        ({}, ["--size", "-5"], "--size: name the parameters"),
        ({}, ["--out", "large.yaml"], "is the file that --to names"),
        ({"[adam, lamb]": "[sgd]"}, [], "has no trials of sgd, as the large one asks for"),
        ({"mnist_large": "tests.scaling.test_over_sizes:Plain"}, [], "--size"),
        ({}, ["same"], "models of one size"),
    ],
)
def test_a_mistake_is_one_sentence(
    changes, arguments, says, studies, tmp_path, capsys, monkeypatch
) -> None:
    text = LARGE
    for old, new in changes.items():
        text = text.replace(old, new)
    (file := tmp_path / "large.yaml").write_text(text)
    if arguments == ["same"]:  # of one size nothing is learnt about others
        studies, arguments = studies[:1] * 2, []
    monkeypatch.chdir(tmp_path)
    code = cli.main(["transfer", *studies, "--to", str(file), *arguments])
    assert code == cli.WRONG_INPUT
    assert says in capsys.readouterr().err
