"""`deploy/slurm.sbatch`, run with fakes of the commands of Slurm."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import raybench as package
from tests.e2e.commands import raybench
from tests.e2e.hosts import Hosts, why_not
from tests.factories import wait_for

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy/slurm.sbatch"
SCONTROL = """#!/bin/sh
echo "$@" >> "$FOLDER/scontrol"
"""
RAYBENCH = """#!/bin/sh
printf '%s\\n' "$@" > "$FOLDER/raybench"
env > "$FOLDER/environment"
sleep "${SLEEPS:-0}"
exit 4
"""
SRUN_ON_ONE_NODE = """#!/bin/sh
case "$*" in *hostname*) echo 10.0.0.1 10.1.0.1; exit;; esac
printf '%s\\n' "$@" > "$FOLDER/srun"
while [ "$1" != -- ]; do shift; done
shift
"$@"
until [ -e "$FOLDER/over" ]; do sleep 0.1; done
"""
"""Its other nodes run until the file `over` exists."""
SRUN = """#!{python}
import json, os, subprocess, sys
words = sys.argv[1:]
while words[0].startswith("--"):
    words.pop(0)
hosts = json.load(open(os.environ["FOLDER"] + "/hosts"))
if words[0] == "ray":
    words[0] = {ray!r}
else:
    hosts = hosts[:1]
tasks = [
    subprocess.Popen([*enter, *words], env=os.environ | {{"SLURM_PROCID": str(number)}})
    for number, enter in enumerate(hosts)
]
sys.exit(max([task.wait() for task in tasks]))
"""
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NODELIST": "host[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_CPUS_PER_TASK": "2",
}


def environment_with_fakes(folder: Path, **commands: str) -> dict[str, str]:
    """Write fake commands of Slurm; return the environment of a job that finds them."""
    (folder / "bin").mkdir()
    for name, text in {"scontrol": SCONTROL, **commands}.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    path = f"{folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    return inherited | SLURM | {"PATH": path, "FOLDER": str(folder)}


def job(environment: dict[str, str], *words: str) -> "subprocess.Popen[bytes]":
    """Start the script; its output goes to a file, because processes of other nodes outlive it."""
    with Path(environment["FOLDER"], "output").open("w") as file:
        return subprocess.Popen(
            ["bash", str(SCRIPT), *words], env=environment, cwd=ROOT, stdout=file, stderr=file
        )


def test_job_ends_with_the_command_on_the_first_node(tmp_path):
    environment = environment_with_fakes(tmp_path, srun=SRUN_ON_ONE_NODE, raybench=RAYBENCH)
    process = job(environment | {"SLURM_GPUS_ON_NODE": "8"}, "tune", "a space.yaml")
    assert process.wait(60) == 4, (tmp_path / "output").read_text()
    (tmp_path / "over").touch()
    words = (tmp_path / "srun").read_text().splitlines()
    assert words[:3] == ["--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=2"]
    start = words[3 : words.index("--")]
    assert start[:2] == ["ray", "symmetric-run"]
    assert {"10.0.0.1:6379", "--min-nodes", "--num-cpus=2", "--num-gpus=8"} <= set(start)
    command = (tmp_path / "raybench").read_text().splitlines()
    assert command == ["tune", "a space.yaml", "--address", "10.0.0.1:6379"]
    exported = (tmp_path / "environment").read_text()
    assert "RAY_AUTH_MODE=token\n" in exported
    assert re.search(r"^RAY_AUTH_TOKEN=[0-9a-f]{64}$", exported, re.MULTILINE)


def test_job_fails_if_ray_does_not_start(tmp_path):
    """`ray symmetric-run` then exits with code 0."""
    environment = environment_with_fakes(tmp_path, srun="#!/bin/sh\nexit 0\n")
    assert job(environment, "tune").wait(60) == 1


def test_job_near_its_time_limit_is_requeued(tmp_path):
    environment = environment_with_fakes(tmp_path, srun=SRUN_ON_ONE_NODE, raybench=RAYBENCH)
    process = job(environment | {"SLEEPS": "1"}, "tune")
    wait_for((tmp_path / "environment").exists)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(60) == 4, "the command goes on"
    (tmp_path / "over").touch()
    assert (tmp_path / "scontrol").read_text() == "requeue 77\n"


SPACE = f"""
workload: {ROOT}/tests/e2e/own_loops.py:plain
objective: {{kind: best_at_budget, max_train_seconds: 2}}
search: {{trials: 3, sampler: random, early_stopping: false}}
confirm: {{race: 0}}
space: {{learning_rate: {{low: 0.001, high: 0.01, log: true}}}}
fixed: {{framework: python, model: {{slowness: 20}}, cpus_per_worker: 2}}
"""
"""Study whose runs each use all CPUs of a node, so that two concurrent runs use both nodes."""


@pytest.mark.ray
@pytest.mark.all
@pytest.mark.apart
@pytest.mark.timeout(900)
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_job_resumes_a_study_on_two_nodes(tmp_path):
    (tmp_path / "space.yaml").write_text(SPACE)
    words = ("tune", str(tmp_path / "space.yaml"), "--out", str(tmp_path / "out"))
    raybench(*words, "--trials", "1", cwd=ROOT)
    (first,) = package.load(tmp_path / "out").runs
    ray = shutil.which("ray", path=str(Path(sys.executable).parent))
    environment = environment_with_fakes(tmp_path, srun=SRUN.format(python=sys.executable, ray=ray))
    with Hosts(2) as hosts:
        (tmp_path / "hosts").write_text(json.dumps([host.command() for host in hosts]))
        host_environment = hosts[0].environment()
        environment |= {key: host_environment[key] for key in ("HOME", "TMPDIR", "RAY_TMPDIR")}
        process = job(environment, *words)
        assert process.wait(600) == 0, (tmp_path / "output").read_text()[:20_000]
    runs = package.load(tmp_path / "out").runs
    assert len(runs) == 3
    new_runs = [run for name, run in runs.items() if name != first]
    assert {host for run in new_runs for host in run.hosts} == {"host1", "host2"}
