"""The first table of parity.py: worker groups and plain scripts, an epoch each in turns."""

import io
import json
import os
import socket
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from parity_channel import Script

from raybench.cluster.run_client import RunClient
from raybench.cluster.session import Session
from raybench.models.find import load_workload_dataset
from raybench.models.layers import initial_weights, to_keras_layout
from raybench.spec.objective import Objective
from raybench.spec.run import DatasetSpec, RunSpec

HERE = Path(__file__).parent
BATCH = 64
SAMPLES = 1152
"""Training digits, a multiple of the global batches of one and two workers."""
REPEATS = {"mnist_small": 4, "mnist_large": 1}
"""Passes over the data per epoch, so that epochs of both models take about as long."""
WEIGHTS = {"torch": "weights.pt", "tensorflow": "of.weights.h5"}
"""File in which the plain script saves its weights."""


@dataclass
class Pair:
    """Result of one comparison."""

    own: list[float] = field(default_factory=list)
    """Samples/s of raybench's epochs."""
    peer: list[float] = field(default_factory=list)
    """Samples/s of the peer's epochs, each measured next to the one of `own`."""
    weights: str = ""
    """Sentence on the difference of the final weights."""

    @property
    def ratios(self) -> list[float]:
        """`own` over `peer`, pair by pair."""
        return [own / peer for own, peer in zip(self.own, self.peer, strict=True)]

    @property
    def ratio(self) -> float:
        """Median of the ratios."""
        return statistics.median(self.ratios)


def spec_of(framework: str, workload: str, num_workers: int, epochs: int) -> RunSpec:
    """Return the run spec that both sides train."""
    return RunSpec(
        framework=framework,
        workload=workload,
        num_workers=num_workers,
        batch_size_per_worker=BATCH,
        dataset=DatasetSpec(name="digits", image_size=28, limit=SAMPLES, repeat=REPEATS[workload]),
        epochs=float(epochs),
        checkpoint_every_s=0.0,
        objective=Objective(kind="best_at_budget", max_train_seconds=1e6),
    )


def write_task(spec: RunSpec, folder: Path) -> None:
    """Write the files that the plain script reads: settings, arrays and initial weights."""
    workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
    settings = {
        "workload": spec.workload,
        "batch_size_per_worker": spec.batch_size_per_worker,
        "learning_rate": spec.learning_rate,
        "seed": spec.seed,
        "repeat": spec.dataset.repeat,
        "epochs": round(spec.epochs),
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    np.savez(folder / "data.npz", inputs=dataset.train.inputs, labels=dataset.train.labels)
    weights = initial_weights(workload.layers, workload.input_shape, spec.seed)
    if spec.framework == "tensorflow":
        weights = to_keras_layout(workload.layers, workload.input_shape, weights)
    np.savez(folder / "initial.npz", *weights)


def compare(session: Session, spec: RunSpec, folder: Path) -> Pair:
    """Train `spec` on both sides, an epoch each in turns; the first epochs do not count."""
    folder.mkdir()
    write_task(spec, folder)
    script = Script(spec.num_workers, folder / "log")
    client = RunClient(session.pool, folder.name, spec)
    pair = Pair()
    try:
        script.start(*commands(spec, folder, script.port))
        for epoch in range(round(spec.epochs)):
            sides = ["own", "peer"] if epoch % 2 else ["peer", "own"]
            for side in sides:
                speed = _own(client) if side == "own" else _peer(script, spec, epoch)
                if epoch:
                    getattr(pair, side).append(speed)
        outcome = client.finish(save=True)
        assert outcome.failure is None, outcome.message
        script.end()
    finally:
        script.close()
    assert client.weights is not None
    theirs = (folder / WEIGHTS[spec.framework]).read_bytes()
    pair.weights = compared(spec.framework, client.weights.read_bytes(), theirs)
    return pair


def _own(client: RunClient) -> float:
    outcome = client.step()
    assert outcome.failure is None, outcome.message
    assert outcome.evaluation is not None
    return outcome.evaluation.samples_per_s


def _peer(script: Script, spec: RunSpec, epoch: int) -> float:
    return SAMPLES * spec.dataset.repeat / script.train(epoch)


def commands(
    spec: RunSpec, folder: Path, port: int
) -> tuple[list[list[str]], list[dict[str, str]]]:
    """Return the commands of the plain script, and the environment variables of each."""
    shared = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE.parents[1]}{os.pathsep}{HERE}"}
    if spec.framework == "torch":
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        workers = ["--nproc-per-node", str(spec.num_workers)]
        script = [str(HERE / "parity_torch.py"), str(folder), str(port)]
        return [[*launcher, *workers, *script]], [shared | {"GLOO_SOCKET_IFNAME": "lo"}]
    command = [sys.executable, str(HERE / "parity_tensorflow.py"), str(folder), str(port)]
    if spec.num_workers == 1:
        return [command], [shared]
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(spec.num_workers)]
    environments = []
    for rank in range(spec.num_workers):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        environments.append(shared | {"TF_CONFIG": json.dumps(task)})
    return [command] * spec.num_workers, environments


def _free_ports(number: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def compared(framework: str, own: bytes, theirs: bytes) -> str:
    """Return a sentence on the difference of two models' saved weights."""
    pairs = list(zip(_arrays[framework](own), _arrays[framework](theirs), strict=True))
    if all(np.array_equal(one, other) for one, other in pairs):
        return "bitwise equal"
    squares = sum(float(np.sum((one - other) ** 2)) for one, other in pairs)
    share = (squares / sum(float(np.sum(one**2)) for one, _ in pairs)) ** 0.5
    return f"differ by {share:.1e} of their norm"


def _of_torch(saved: bytes) -> list[np.ndarray]:
    import torch

    weights = torch.load(io.BytesIO(saved), weights_only=True, map_location="cpu")
    return [tensor.numpy() for tensor in weights.values()]


def _of_keras(saved: bytes) -> list[np.ndarray]:
    """Return the arrays in the order of their names."""
    import h5py  # comes with Keras

    found: dict[str, np.ndarray] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and name.startswith("layers/"):
            found[name] = item[()]

    with h5py.File(io.BytesIO(saved), "r") as content:
        content.visititems(note)
    assert found, "no weights in the file"
    return [found[name] for name in sorted(found)]


_arrays = {"torch": _of_torch, "tensorflow": _of_keras}
