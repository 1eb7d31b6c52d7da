"""Tests that need a GPU (`make gpu`). One run is also trained on the CPU (`make test-all`).

Each framework and device has a process of its own: TensorFlow fixes its devices at first use.
"""

import functools
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import raybench
from raybench.cluster.protocol import Measure
from raybench.cluster.run_client import RunClient
from raybench.cluster.session import Session
from raybench.results.verdict import verdict_of
from raybench.spec.run import RunSpec
from raybench.stats.record import RunOutcome
from raybench.training.machine import gpus_of_driver
from tests.e2e.commands import raybench as run

GPU = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(
            not gpus_of_driver().names, reason=f"no GPU: {gpus_of_driver().problem}"
        ),
    ],
)
ON = pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.all), GPU])
IN = pytest.mark.parametrize("framework", ["torch", "tensorflow"])
PARITY = Path(__file__).parents[2] / "benchmarks" / "speed" / "parity_loops.py"
EXCHANGES = {
    ("torch", "cpu"): "gloo",
    ("torch", "cuda"): "nccl",
    ("tensorflow", "cpu"): "AUTO",
    ("tensorflow", "cuda"): "NCCL",
}
"""Library that sums over workers: used for a sum in torch, configured in TensorFlow."""
HALF = ("bf16", "fp16")
MIN_SPEED_RATIO = 0.98
"""Lower bound of samples per second, relative to a plain script."""
RUN = {
    **{"epochs": 1, "optimizer": "sgd", "learning_rate": 0.05},
    "dataset": {"name": "digits", "image_size": 28, "limit": 512},
    "objective": {"kind": "best_at_budget", "max_train_seconds": 1e6},
}
TRAIN = """
import json, sys
import numpy as np
from raybench.training.base import find_backend
from raybench.training.run import run
from raybench.stats.clock import Ledger
from raybench.spec.run import RunSpec
from raybench.models.find import load_workload_dataset

content, device, file = sys.argv[1:]
spec = RunSpec.model_validate_json(content)
framework, gpus = spec.framework, int(spec.gpus_per_worker)
backend = find_backend(framework)
world = backend.join(rank=0, num_workers=1, device=device, num_threads=1, num_gpus=gpus)
workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
trainer = backend.Trainer(spec, workload, dataset, world)
curve = list(run(spec, dataset, trainer, world, Ledger("setup")))
report = {"device": world.device, "loss": curve[-1].train_loss, "gpus": world.gpus,
          "memory": curve[-1].memory_peak_bytes}
if framework == "torch":
    from raybench.training.torch.world import meet_in_file
    weights = [parameter.detach().cpu().numpy() for parameter in trainer._model.parameters()]
    backend = "nccl" if gpus else "gloo"
    meet_in_file(backend=backend, member=0, size=1, file=file + ".meet", timeout_s=60)
    assert len(world.time_all_reduce(2**20, 3)) == 3
    report["exchange"] = world.through
else:
    weights = [variable.numpy() for variable in trainer._model.trainable_variables]
    report["exchange"] = world.strategy.extended._communication_options.implementation.value
np.savez(file, *weights)
print(json.dumps(report))
"""


def trained(
    framework: str, device: str, folder: Path, **changes: str
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Return the report and the weights of a run on a device."""
    pytest.importorskip(framework)
    file = folder / f"{device}{''.join(changes.values())}.npz"
    content = RUN | {"framework": framework, "gpus_per_worker": int(device != "cpu")}
    content |= {"record_steps": True} | changes
    command = [sys.executable, "-c", TRAIN, json.dumps(content), device, str(file)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert completed.returncode == 0, completed.stderr
    with np.load(file) as arrays:
        return json.loads(completed.stdout.splitlines()[-1]), [
            arrays[name] for name in arrays.files
        ]


@pytest.fixture(scope="module")
def plain(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, str], tuple[dict[str, Any], list[np.ndarray]]]:
    """`trained` without changes, cached by framework and device."""

    @functools.cache
    def train(framework: str, device: str) -> tuple[dict[str, Any], list[np.ndarray]]:
        return trained(framework, device, tmp_path_factory.mktemp(framework))

    return train


@ON
@IN
def test_run_on_a_gpu_trains_the_weights_of_a_cpu(framework, device, plain):
    report, weights = plain(framework, device)
    assert (report["device"] == "cpu") == (device == "cpu")
    assert report["gpus"] == ([] if device == "cpu" else [0])
    assert report["exchange"] == EXCHANGES[framework, device]
    assert report["memory"] > 0
    if device != "cpu":
        expected = plain(framework, "cpu")[1]
        for array, expected_array in zip(weights, expected, strict=True):
            np.testing.assert_allclose(array, expected_array, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", [GPU])
@pytest.mark.parametrize(
    ("framework", "changes"),
    [
        *(
            (framework, {"precision": precision})
            for framework in ("torch", "tensorflow")
            for precision in HALF
        ),
        ("torch", {"compile": "default"}),
        ("tensorflow", {"compile": "xla"}),
    ],
)
def test_low_precision_and_compilation_train_nearly_equal_weights(
    device, framework, changes, plain, tmp_path
):
    report, weights = trained(framework, device, tmp_path, **changes)
    assert report["device"] != "cpu"
    found = np.concatenate([array.ravel() for array in weights])
    expected = np.concatenate([array.ravel() for array in plain(framework, device)[1]])
    assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)


TWO_GPUS = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(len(gpus_of_driver().names) < 2, reason="fewer than two GPUs"),
    ],
)


@pytest.mark.ray
@pytest.mark.parametrize("device", [TWO_GPUS])
@IN
def test_two_workers_sum_gradients_and_are_reused_by_the_next_trial(
    framework, device, tmp_path, monkeypatch
):
    pytest.importorskip(framework)
    monkeypatch.chdir(tmp_path)
    content = {"framework": framework, "gpus_per_worker": 1, "batch_size_per_worker": 64}
    one_worker = RunSpec.model_validate(RUN | content)
    two_workers = one_worker.model_copy(update={"num_workers": 2, "batch_size_per_worker": 32})
    with Session() as session:
        first, weights = trained_on(session, "first", two_workers)
        second, second_weights = trained_on(session, "again", two_workers)
        request, command = two_workers.resources, Measure((2**20,), 3)
        ray.get(session.pool.acquire.remote("sums", request))
        measured = ray.get(session.pool.command.remote("sums", command, 120.0))
        ray.get(session.pool.release.remote("sums"))
        _, weights_of_one = trained_on(session, "alone", one_worker)
    assert first.ledger["start"] > 0
    assert second.ledger["start"] == 0, "the same processes"
    assert {reply.through.lower() for reply in measured} == {"nccl"}
    assert len(set(second.devices)) == 2 or framework == "tensorflow"
    for other_weights in (second_weights, weights_of_one):
        assert weights.keys() == other_weights.keys()
        for name, array in weights.items():
            np.testing.assert_allclose(
                array, other_weights[name], rtol=1e-3, atol=1e-4, err_msg=name
            )


def trained_on(
    session: Session, name: str, spec: RunSpec
) -> tuple[RunOutcome, dict[str, np.ndarray]]:
    """Train a run to its end; return its outcome and its weights."""
    client = RunClient(session.pool, name, spec)
    while not client.step().is_over:
        pass
    outcome = client.finish(save=True)
    assert outcome.failure is None, outcome.message
    if spec.framework == "torch":
        import torch

        content = torch.load(client.weights, weights_only=True, map_location="cpu")
        return outcome, {key: value.numpy() for key, value in content.items()}
    import h5py

    found = {}
    with h5py.File(client.weights) as file:
        file.visititems(
            lambda key, node: found.update({key: node[()]} if hasattr(node, "dtype") else {})
        )
    return outcome, found


@pytest.mark.parametrize("device", [GPU])
@IN
def test_run_on_a_gpu_is_as_fast_as_a_plain_script(framework, device, tmp_path):
    """Epochs of both alternate. `benchmarks/speed/parity.py` measures the speed on the CPU."""
    pytest.importorskip(framework)
    rounds = 15
    command = [sys.executable, PARITY, framework, "mnist_large", str(rounds), tmp_path, device]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert completed.returncode == 0, completed.stderr
    speeds = json.loads(completed.stdout.splitlines()[-1])["speeds"]
    pairs = zip(speeds["raybench"], speeds["plain"], strict=True)
    ratio = statistics.median(ours[0] / plain[0] for ours, plain in pairs)
    print(f"{framework} on {device}: {ratio:.3f} times a plain script's samples/s (n={rounds})")
    assert ratio >= MIN_SPEED_RATIO


@pytest.mark.ray
@pytest.mark.parametrize("device", [GPU])
@IN
def test_search_on_a_gpu_finds_the_fastest_configuration(framework, device, tmp_path):
    pytest.importorskip(framework)
    arguments = ["tune", "--trials", "10", "--workers", "1", "--out", tmp_path / "found"]
    arguments += ["--set", "confirm.race=4", "--set", "objective.target=0.8"]
    arguments += ["--set", f"space.framework=[{framework}]"]
    run(*arguments, "--gpus-per-worker", "1", cwd=tmp_path)
    study = raybench.load(tmp_path / "found")
    assert verdict_of(study).fastest is not None
    assert all(run.accelerators for run in study.runs.values())
