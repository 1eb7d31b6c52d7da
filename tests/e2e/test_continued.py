"""A driver that is killed during a run; the same command resumes the run from its checkpoint."""

from pathlib import Path

import pytest

from raybench.models.find import load_workload_dataset
from raybench.results.records import read_records
from raybench.spec.run import RunSpec
from raybench.stats.clock import Ledger
from raybench.stats.record import Evaluation
from raybench.training.base import find_backend
from raybench.training.run import run as train
from tests.factories import read_lines

from .commands import raybench as run
from .watched import Watched

pytestmark = [pytest.mark.ray, pytest.mark.all, pytest.mark.timeout(900)]
SPACE = """
dataset: {name: digits}
objective: {kind: best_at_budget, max_train_seconds: 1000}
search: {trials: 1, early_stopping: false}
confirm: {race: 0}
space:
  learning_rate: [1.0e-3, 3.0e-3]
fixed:
  {num_workers: 1, schedule: cosine, epochs: 12, batch_size_per_worker: 16,
   eval_every_samples: 1437, checkpoint_every_s: 1.0e-9}
"""


def test_the_run_of_a_killed_driver_resumes_and_equals_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "file.yaml").write_text(SPACE)
    folder = tmp_path / "killed"
    with Watched("tune", "file.yaml", "--out", folder, cwd=tmp_path) as search:
        search.wait_for(lambda: has_checkpoint(folder / "checkpoints" / "0000"))
        search.process.kill()
        search.wait()
    first = read_lines(folder / "records.jsonl")
    run("tune", "file.yaml", "--out", folder, cwd=tmp_path)
    (record,) = read_records(folder).runs.values()
    assert (record.state, record.restarts) == ("complete", 0)
    assert facts(read_records(folder).curves["0000"]) == facts(undisturbed(record.spec))
    lines = read_lines(folder / "records.jsonl")
    end = [line["kind"] for line in lines].index("run")
    # A resumed run records its earlier evaluations again, with the seconds of the first session.
    seconds = list({line["index"]: line["train_s"] for line in lines[:end]}.values())
    assert seconds[:3] == [line["train_s"] for line in first[:3]]
    assert seconds == sorted(seconds)
    assert lines[end]["ledger"]["train"] == pytest.approx(seconds[-1])
    assert lines[end]["ledger"]["other"] > -0.1 * sum(lines[end]["ledger"].values())
    assert lines[end]["ledger"]["lost"] == 0
    assert not (folder / "checkpoints" / "0000").exists()


def has_checkpoint(folder: Path) -> bool:
    """Whether the folder has a checkpoint of the third evaluation or a later one."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return any(name.isdecimal() and int(name) >= 3 for name in names)


def facts(curve: list[Evaluation]) -> list[tuple[object, ...]]:
    """Return the values of every evaluation that must be equal, bit by bit."""
    return [(p.index, p.samples, p.value, p.train_loss, p.learning_rate) for p in curve]


def undisturbed(spec: RunSpec) -> list[Evaluation]:
    """Return the curve of a run, trained in this process without Ray."""
    backend = find_backend(spec.framework)
    world = backend.join(rank=0, num_workers=1, device="cpu", num_threads=1, num_gpus=0)
    workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
    trainer = backend.Trainer(spec, workload, dataset, world)
    return list(train(spec, dataset, trainer, world, Ledger("setup")))
