"""Two hosts: the README's job, groups inside a host and over both, an interface without a route,
and measurements over a slow link and with a slow worker."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raybench as package
from raybench.results.verdict import verdict_of
from raybench.spec.documents import read_mapping
from tests.factories import wait_for
from tests.test_readme import CLUSTER_COMMANDS, ROOT

from .commands import RAY, command
from .hosts import Hosts, why_not

pytestmark = [
    pytest.mark.ray,
    pytest.mark.all,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
    pytest.mark.timeout(900),
]
LIMIT_S = 600.0
TOKEN = {"RAY_AUTH_MODE": "token"}
TOKEN_FILE = "$HOME/.ray/auth_token"
NODE = TOKEN | {"RAY_worker_niceness": "0"}
"""Environment of a node, whose workers get the same priority as other tests."""
CPUS = 3
"""CPUs of each host: all three groups of the job stay alive."""
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


def documented(beginning: str) -> list[str]:
    """Return the words of the cluster command of docs/cluster.md with this beginning."""
    (found,) = [line for line in CLUSTER_COMMANDS if line.startswith(beginning)]
    return shlex.split(found)[1:]


def done(ended: "subprocess.CompletedProcess[str]") -> str:
    """Return the stdout of a command; the test fails if the command has failed."""
    assert ended.returncode == 0, f"{ended.args}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def cluster() -> Iterator[Hosts]:
    """Two hosts, the first of which is Ray's head; the other one has the head's token."""
    pytest.importorskip("torch")
    with Hosts(2) as hosts:
        head, node = hosts
        options = {"timeout": LIMIT_S, **NODE}
        done(head.run(RAY, *documented("ray get-auth-token"), **TOKEN))
        done(head.run(RAY, *documented("ray start --head"), f"--num-cpus={CPUS}", **options))
        token = done(head.run("sh", "-c", f"cat {TOKEN_FILE}"))
        keep = f"mkdir -p $HOME/.ray && umask 077 && printf %s '{token}' > {TOKEN_FILE}"
        done(node.run("sh", "-c", keep))
        words = [word.replace("HEAD", head.address) for word in documented("ray start --address")]
        done(node.run(RAY, *words, f"--num-cpus={CPUS}", **options))
        yield hosts


def run_on_head(
    cluster: Hosts, *words: str | Path, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command of raybench on the first host, with `--address auto`."""
    command_words = (*command(*words), "--address", "auto")
    return cluster[0].run(*command_words, cwd=ROOT, timeout=LIMIT_S, **TOKEN, **environment)


def test_job_trains_inside_a_host_and_over_both(cluster, tmp_path):
    pytest.importorskip("tensorflow")
    (tmp_path / "space.yaml").write_text(SPACE)
    # The hosts have the packages, and the space has the numbers of workers.
    line = " ".join(documented("ray job submit")).replace("HEAD", cluster[0].address)
    for left_out in ("--runtime-env deploy/runtime_env.yaml ", "--workers 1,2 "):
        line = line.replace(left_out, "")
    line = line.replace(" python ", f" {sys.executable} ")
    line = line.replace("/shared/results/digits", str(tmp_path / "out"))
    words = line.replace("raybench.tune", f"raybench.tune {tmp_path}/space.yaml").split()

    def submitted() -> "subprocess.CompletedProcess[str] | None":
        ended = cluster[1].run(RAY, *words, cwd=ROOT, timeout=LIMIT_S, **TOKEN)
        has_agent = "No available agent" not in ended.stdout + ended.stderr
        return ended if has_agent else None

    screen = done(wait_for(submitted))
    assert "succeeded" in screen
    results = package.load(tmp_path / "out")
    runs = results.runs
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
    assert verdict_of(results).is_confirmed


def test_an_interface_that_leads_nowhere_is_said_in_a_sentence(cluster, tmp_path):
    words = ("train", *TWO, "--out", tmp_path / "out")
    ended = run_on_head(cluster, *words, RAYBENCH_INTERFACE="lo")
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


def test_a_launched_command_over_unequal_parts_of_two_hosts(cluster, tmp_path):
    (tmp_path / "ranks.py").write_text(RANKS)
    launched = ("--command", f"{sys.executable} {tmp_path}/ranks.py", "--launch", "torchrun")
    three = ("--set", "num_workers=3", *TWO[2:4], "--set", "objective.target=0.9")
    done(run_on_head(cluster, "train", *launched, *three, "--out", tmp_path / "out"))
    (run,) = package.load(tmp_path / "out").runs.values()
    assert (run.failure, run.stop, run.workers_per_node) == (None, "target", [2, 1])
    assert set(run.hosts) == {"host1", "host2"}


def test_a_trainer_over_two_hosts(cluster, tmp_path):
    """Lightning, which has settings of its own for hosts, finds the worker on the other host. Its
    losses are compared with those of its script in `training/test_trainers.py`."""
    pytest.importorskip("lightning", reason="lightning is not installed")
    own = ("--train", "examples/lightning_fit.py:train", "--set", "model.hidden_units=32", *TWO[:4])
    aim = ("objective.kind=best_at_budget", "objective.max_train_seconds=100", "epochs=3")
    settings = [word for change in aim for word in ("--set", change)]
    done(run_on_head(cluster, "train", *own, *settings, "--out", tmp_path / "out"))
    results = package.load(tmp_path / "out")
    (run,) = results.runs.values()
    assert (run.failure, run.workers_per_node) == (None, [1, 1])
    assert set(run.hosts) == {"host1", "host2"}
    (curve,) = results.evaluations.values()
    assert [point.epoch for point in curve] == [1.0, 2.0, 3.0]


LINK = "100mbit"
"""The 1.6 MB of gradients of `mnist_small` take an eighth of a second."""
DIAGNOSED = """
framework: torch
num_workers: 2
batch_size_per_worker: 32
placement_strategy: spread
objective: {kind: best_at_budget}
dataset: {name: digits, image_size: 28, validation_size: 64}
"""


def diagnosed(cluster: Hosts, spec: str, folder: Path) -> dict[str, Any]:
    """Diagnose the run of a spec on the cluster; return `diagnosis.yaml`."""
    (folder / "spec.yaml").write_text(spec)
    words = ("diagnose", folder / "spec.yaml", "--repeats", "3", "--seconds", "0.25")
    printed = done(run_on_head(cluster, *words, "--out", folder / "out"))
    found = read_mapping(folder / "out" / "diagnosis.yaml")
    assert " ".join(found["sentence"].split()) in " ".join(printed.split())
    return found


def test_diagnose_finds_a_slow_link(cluster, tmp_path):
    for host in cluster:
        host.slow(LINK)
    try:
        found = diagnosed(cluster, DIAGNOSED, tmp_path)
    finally:
        for host in cluster:
            host.slow(None)
    assert found["verdict"] == "communication", found["sentence"]
    assert "by 2 workers on 2 hosts" in found["sentence"]
    assert any("batch_size_per_worker" in gain["change"] for gain in found["gains"])


def test_diagnose_names_the_worker_that_the_other_waits_for(cluster, tmp_path):
    own_data = DIAGNOSED.replace("name: digits", "name: workload")
    workload = "workload: tests.e2e.late_reader:LateReader"
    found = diagnosed(cluster, f"{workload}\n{own_data}", tmp_path)
    (slow,) = found["slow_ranks"]
    assert (slow["rank"], slow["kind"]) == (1, "input")
    assert slow["times"] > 1.5
    assert "Worker 1 (host " in found["sentence"]
