"""What only a GPU can show (`make gpu`); all but the search (one is in tests/e2e/test_search.py)
runs on the CPU too, as far as that goes.

A process a framework and device: what TensorFlow sees is settled before its first use.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raybench
from raybench.results.verdict import judge
from raybench.training.machine import nvml_sees
from tests.e2e.commands import raybench as run

GPU = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not nvml_sees().names, reason=f"no GPU: {nvml_sees().problem}"),
    ],
)
LONG = pytest.param("cpu", marks=pytest.mark.all)
ON = pytest.mark.parametrize("device", [LONG, GPU])
IN = pytest.mark.parametrize("framework", ["torch", "tensorflow"])
PARITY = Path(__file__).parents[2] / "benchmarks" / "speed" / "parity_loops.py"
EXCHANGES = {
    ("torch", "cpu"): "gloo",
    ("torch", "cuda"): "nccl",
    ("tensorflow", "cpu"): "AUTO",
    ("tensorflow", "cuda"): "NCCL",
}
"""What summed over workers: in torch a sum was taken by it, TensorFlow was told it."""
BAR = 0.98
"""Least samples by second, over a plain script's."""
TRAIN = """
import json, sys
import numpy as np
from raybench.training.base import find_backend
from raybench.training.run import run
from raybench.stats.clock import Ledger
from raybench.spec.run import RunSpec
from raybench.models.find import load_workload_dataset

framework, device, file = sys.argv[1:]
gpus = int(device != "cpu")
objective = {"kind": "best_at_budget", "max_train_seconds": 1e6}
spec = RunSpec(framework=framework, gpus_per_worker=gpus, epochs=1, optimizer="sgd",
               learning_rate=0.05, dataset={"name": "digits", "image_size": 28, "limit": 512},
               objective=objective, record_steps=True)
backend = find_backend(framework)
world = backend.join(rank=0, num_workers=1, device=device, num_threads=1, num_gpus=gpus)
workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
trainer = backend.Trainer(spec, workload, dataset, world)
curve = list(run(spec, dataset, trainer, world, Ledger("setup")))
said = {"device": world.device, "loss": curve[-1].train_loss, "gpus": world.gpus,
        "memory": curve[-1].memory_peak_bytes}
if framework == "torch":
    from raybench.training.torch.world import meet_in_file
    weights = [one.detach().cpu().numpy() for one in trainer._model.parameters()]
    backend = "nccl" if gpus else "gloo"
    meet_in_file(backend=backend, member=0, size=1, file=file + ".meet", timeout_s=60)
    assert len(world.time_all_reduce(2**20, 3)) == 3
    said["exchange"] = world.through
else:
    weights = [one.numpy() for one in trainer._model.trainable_variables]
    said["exchange"] = world.strategy.extended._communication_options.implementation.value
np.savez(file, *weights)
print(json.dumps(said))
"""


def trained(framework: str, device: str, folder: Path) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Return what a run on a device said, and its weights."""
    pytest.importorskip(framework)
    file = folder / f"{device}.npz"
    words = [sys.executable, "-c", TRAIN, framework, device, str(file)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    with np.load(file) as arrays:
        return json.loads(done.stdout.splitlines()[-1]), [arrays[name] for name in arrays.files]


@ON
@IN
def test_a_run_there_trains_the_weights_of_a_cpu(
    framework: str, device: str, tmp_path: Path
) -> None:
    said, weights = trained(framework, device, tmp_path)
    assert (said["device"] == "cpu") == (device == "cpu")
    assert said["gpus"] == ([] if device == "cpu" else [0])
    assert said["exchange"] == EXCHANGES[framework, device]
    assert said["memory"] > 0
    if device != "cpu":
        expected = trained(framework, "cpu", tmp_path)[1]
        for one, other in zip(weights, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@ON
@IN
def test_a_run_there_is_as_fast_as_a_plain_script(
    framework: str, device: str, tmp_path: Path
) -> None:
    """An epoch each in turns; how fast it is on the CPU `benchmarks/speed/parity.py` measures."""
    pytest.importorskip(framework)
    rounds, model = (15, "mnist_large") if device == "cuda" else (1, "mnist_small")
    words = [sys.executable, PARITY, framework, model, str(rounds), tmp_path, device]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    speeds = json.loads(done.stdout.splitlines()[-1])["speeds"]
    pairs = zip(speeds["raybench"], speeds["plain"], strict=True)
    ratio = statistics.median(own[0] / peer[0] for own, peer in pairs)
    print(f"{framework} on {device}: {ratio:.3f} times a plain script's samples/s (n={rounds})")
    assert ratio >= BAR or device == "cpu"


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("device", [GPU])
@IN
def test_a_search_there_ends_with_an_answer(framework: str, device: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    words = ["tune", "--trials", "10", "--workers", "1", "--out", tmp_path / "found"]
    words += ["--set", "confirm.race=4", "--set", "objective.target=0.8"]
    words += ["--set", f"space.framework=[{framework}]"]
    run(*words, "--gpus-per-worker", "1", cwd=tmp_path)
    study = raybench.load(tmp_path / "found")
    assert judge(study).fastest is not None
    assert all(one.accelerators for one in study.runs.values())
