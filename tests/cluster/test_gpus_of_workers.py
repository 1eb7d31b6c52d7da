"""GPUs visible to Ray workers, with a Ray that is told of 8 GPUs; needs no real GPU."""

import functools
import importlib.util
from pathlib import Path

import pytest
import ray

from raybench.cluster.run_client import RunClient
from raybench.cluster.session import Session
from raybench.spec.errors import ErrorCode
from raybench.spec.run import RunSpec

pytestmark = [
    pytest.mark.ray,
    pytest.mark.all,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="no tensorflow"),
]
WORKLOAD = """
import os
from pathlib import Path
from raybench.models.base import Workload

class Tells(Workload):
    name, input_shape, num_classes = "tells", (8, 8, 1), 10

    def build_keras(self):
        import keras
        Path("SEEN").write_text(repr(os.environ.get("CUDA_VISIBLE_DEVICES")))
        layers = [keras.layers.Flatten(), keras.layers.Dense(10)]
        return keras.Sequential([keras.Input((8, 8, 1)), *layers])
"""


def test_worker_without_gpus_sees_none_of_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(ray, "init", functools.partial(ray.init, num_gpus=8))
    (tmp_path / "tells.py").write_text(WORKLOAD.replace("SEEN", str(tmp_path / "seen")))
    monkeypatch.syspath_prepend(tmp_path)
    spec = RunSpec(
        workload="tells:Tells", dataset={"name": "digits"}, framework="tensorflow", epochs=1
    )
    with Session() as session:
        assert session.capacity.gpus == 8
        client = RunClient(session.pool, "of-cpus", spec)
        assert client.step().failure is None
        client.finish()
        assert (tmp_path / "seen").read_text() == "''", "unset, the worker would see all 8"
        client = RunClient(session.pool, "of-a-gpu", spec.model_copy(update={"gpus_per_worker": 1}))
        outcome = client.step()
        assert outcome.failure is not None
        assert "raybench[tensorflow-gpu]" in outcome.message
        assert outcome.mistake is ErrorCode.UNSUPPORTED, "this code ends a study at its first run"
