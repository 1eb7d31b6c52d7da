"""The recipe "tune small, train large" of docs/recipes.md, trained for real in this process: what
`tune` would run of each file, without Ray."""

import contextlib
import io
import json
import math
import shlex
from pathlib import Path
from typing import Any

import pytest

from raybench.commands import cli
from raybench.models.find import load_workload_dataset
from raybench.results.store import STUDY_FILE, Store
from raybench.search.sampling.first import first_specs
from raybench.spec.run import RunSpec
from raybench.spec.space import values_of
from raybench.spec.study import build_study, load_content
from raybench.stats.clock import Ledger
from raybench.stats.record import Evaluation, RunOutcome
from raybench.training.base import find_backend
from raybench.training.run import run
from tests.test_readme import ROOT, block

SMALL = [
    {"model.width": width, "epochs": epochs, "learning_rate": rate, "batch_size_per_worker": batch}
    for width, epochs, batch in ((16, 0.5, 8), (16, 1.0, 8), (32, 0.5, 4), (32, 0.5, 16))
    for rate in (0.006, 0.02, 0.06)
]


def train(spec: RunSpec) -> tuple[list[Evaluation], int]:
    """Train one run in this process; return its evaluations and the parameters of the model."""
    workload, dataset = load_workload_dataset(spec.workload, spec.dataset, spec.model)
    backend = find_backend(spec.framework)
    world = backend.join(rank=0, num_workers=1, device="cpu", num_threads=1)
    trainer = backend.Trainer(spec, workload, dataset, world)
    found = list(run(spec, dataset, trainer, world, Ledger("setup")))
    parameters = trainer.num_parameters
    trainer.close()
    return found, parameters


def search(file: Path, out: Path, settings: dict[str, Any], given: list[dict[str, Any]]) -> None:
    """Write the study of a file: runs of the `given` configurations, by default those of its
    `search.first`, then one for each other learning rate, up to its number of trials."""
    study, space = build_study(load_content(file, settings), str(file))
    specs = [study.run_spec(one) for one in given] or list(first_specs(study, space).values())
    if len(specs) < (study.search.trials or 0) and not given:
        known = {one.learning_rate for one in specs}
        others = [one for one in values_of("learning_rate", space, study.fixed) if one not in known]
        specs += [study.run_spec({"learning_rate": one}) for one in others]
    store = Store(out)
    store.write_yaml(
        STUDY_FILE, {"study": study.document(), "is_over": True, "num_trials": len(specs)}
    )
    for number, spec in enumerate(specs):
        evaluations, parameters = train(spec)
        outcome = RunOutcome(
            evaluation=evaluations[-1],
            is_over=True,
            num_parameters=parameters,
            hosts=("laptop",),
            devices=("cpu",),
        )
        record = outcome.record(
            f"{number:04d}", spec, role="trial", source=None, stopped_by="scheduler"
        )
        for one in evaluations:
            store.append(one.line(record.trial))
        store.append(record.line())
    store.close()


@pytest.mark.all
def test_tune_small_train_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    for example in ROOT.glob("examples/tiny_lm*"):
        # A fifth of the samples: a minute of training in place of five.
        text = example.read_text().replace("limit: 1500", "limit: 300")
        (tmp_path / example.name).write_text(text.replace("limit: 3000", "limit: 600"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    predicted = list[dict[str, Any]]()
    for line in block("bash", "raybench tune tiny_lm.yaml").splitlines():
        _, command, *words = shlex.split(line)
        if command == "tune":
            file, out = words[0], words[words.index("--out") + 1]
            given = SMALL if file == "tiny_lm.yaml" else []
            settings = {"objective.max_train_seconds": 3600.0}
            search(Path(file), Path(out), settings, given)
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            assert cli.main(["forecast", *words, "--json"]) == cli.DONE
        predicted.append(json.loads(printed.getvalue())["details"])
    planned, found = predicted
    rate, loss = found["learning_rate"], found["loss"]
    large = [
        json.loads(line) for line in Path("results/large/records.jsonl").read_text().splitlines()
    ]
    losses = [one["best_value"] for one in large if one["kind"] == "run"]
    rates = [one["spec"]["learning_rate"] for one in large if one["kind"] == "run"]
    assert len(rates) == 6
    assert all(rate["low"] <= one <= rate["high"] for one in rates)
    assert len(planned["runs"]) >= 1
    assert loss["low"] <= min(losses) <= loss["high"]
    assert math.isfinite(sum(losses))
