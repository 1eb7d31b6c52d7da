"""Two hosts: the README's job, groups inside a host and over both, an interface without a route."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import raybench as package
from raybench.results.verdict import judge

from .host_cluster import done, job_line, raybench, start_head, start_node, submit
from .hosts import Hosts, why_not

pytestmark = [
    pytest.mark.ray,
    pytest.mark.all,
    pytest.mark.apart,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
    pytest.mark.timeout(900),
]
CPUS = 3
"""Of each: all three groups of the job stay alive."""
SPACE = """
dataset: {name: digits}
objective: {kind: best_at_budget, max_train_seconds: 1}
search: {sampler: grid, early_stopping: false, factorise: false}
confirm: {race: 2, fresh: 1}
space:
  framework: [torch, tensorflow]
  placement_strategy:
    - {when: {framework: torch}, values: [pack, spread]}
    - {when: {framework: tensorflow}, values: [spread]}
fixed: {num_workers: 2, batch_size_per_worker: 64, eval_every_samples: 512}
"""
TWO = ("--set", "num_workers=2", "--set", "placement_strategy=spread", "--set", "epochs=2")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Hosts]:
    """Two hosts, the first of them Ray's head."""
    pytest.importorskip("torch")
    with Hosts(2) as hosts:
        start_head(hosts[0], CPUS)
        start_node(hosts[1], hosts[0], CPUS)
        yield hosts


def test_job_trains_inside_a_host_and_over_both(cluster: Hosts, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    other = cluster[1]
    (tmp_path / "space.yaml").write_text(SPACE)
    words = job_line(tmp_path / "out")
    words.insert(words.index("raybench.tune") + 1, str(tmp_path / "space.yaml"))
    screen = done(submit(other, words))
    assert "succeeded" in screen
    runs = package.load(tmp_path / "out").runs
    trials = [run for run in runs.values() if run.role == "trial"]
    assert {run.failure for run in trials} == {None}, screen
    on = {(run.spec.framework, run.spec.placement_strategy): run for run in trials}
    assert on["torch", "pack"].workers_per_node == [2]
    for framework in ("torch", "tensorflow"):
        assert on[framework, "spread"].workers_per_node == [1, 1]
        assert sorted(on[framework, "spread"].hosts) == ["host1", "host2"]
    raced = [run for run in runs.values() if run.role == "race"]
    assert len({run.source for run in raced} & {run.trial for run in trials}) >= 2
    assert all(run.workers_per_node == runs[run.source or ""].workers_per_node for run in raced)
    verdict = judge(package.load(tmp_path / "out"))
    assert verdict is not None
    assert verdict.is_confirmed


def test_an_interface_that_leads_nowhere_is_said_in_a_sentence(
    cluster: Hosts, tmp_path: Path
) -> None:
    ended = raybench(
        *(cluster[0], "train", *TWO, "--out", tmp_path / "out"), RAYBENCH_INTERFACE="lo"
    )
    assert ended.returncode == 2, ended.stdout + ended.stderr
    (sentence,) = [line for line in ended.stderr.splitlines() if "reach each other" in line]
    assert "RAYBENCH_INTERFACE" in sentence
    assert " lo (127.0.0.1)" in sentence
    assert "Traceback" not in ended.stdout + ended.stderr


RANKS = """
import json, os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
own = torch.tensor([float(os.environ[name]) for name in ("LOCAL_RANK", "NODE_RANK")])
dist.all_reduce(own)  # 0 + 1 + 0 and 0 + 0 + 1
for number in range(3):
    if dist.get_rank() == 0:
        told = {"accuracy": 0.3 * (number + own[1].item()), "samples": 10, "train_s": 0.01}
        print(json.dumps(told), flush=True)
    dist.barrier()
assert own[0] == 1
"""


def test_a_launched_command_over_unequal_parts_of_two_hosts(cluster: Hosts, tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    command = ("--command", f"{sys.executable} {tmp_path}/ranks.py", "--launch", "torchrun")
    three = ("--set", "num_workers=3", *TWO[2:4], "--set", "objective.target=0.9")
    ended = raybench(*(cluster[0], "train", *command, *three, "--out", tmp_path / "out"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (run,) = package.load(tmp_path / "out").runs.values()
    assert (run.failure, run.stop, run.workers_per_node) == (None, "target", [2, 1])
    assert set(run.hosts) == {"host1", "host2"}


TRAINERS = {"hugging_face": ("transformers", "accelerate"), "lightning_fit": ("lightning",)}


@pytest.mark.parametrize("script", TRAINERS)
def test_a_trainer_over_two_hosts(cluster: Hosts, tmp_path: Path, script: str) -> None:
    """The library's trainer finds the worker on the other host. Its losses are compared with those
    of its script in `training/test_trainers.py`."""
    for library in TRAINERS[script]:
        pytest.importorskip(library, reason=f"{library} is not installed")
    own = ("--train", f"examples/{script}.py:train", "--set", "model.hidden_units=32", *TWO[:4])
    aim = ("objective.kind=best_at_budget", "objective.max_train_seconds=100", "epochs=3")
    settings = [word for change in aim for word in ("--set", change)]
    done(raybench(cluster[0], "train", *own, *settings, "--out", tmp_path / "out"))
    (run,) = package.load(tmp_path / "out").runs.values()
    assert (run.failure, run.workers_per_node) == (None, [1, 1])
    assert set(run.hosts) == {"host1", "host2"}
    (curve,) = package.load(tmp_path / "out").evaluations.values()
    assert [point.epoch for point in curve] == sorted({point.epoch for point in curve})
    assert len(curve) == 3
