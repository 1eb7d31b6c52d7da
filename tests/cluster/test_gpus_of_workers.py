"""What workers of Ray see of GPUs, on a Ray that was told of 8; this machine needs none."""

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


def test_workers_see_what_ray_gave_them_and_no_more(
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
        assert (tmp_path / "seen").read_text() == "''"  # not None: it would see all 8
        client = RunClient(session.pool, "of-a-gpu", spec.model_copy(update={"gpus_per_worker": 1}))
        found = client.step()
        assert found.failure is not None
        assert "raybench[tensorflow-gpu]" in found.message
        assert found.mistake is ErrorCode.UNSUPPORTED, "it ends a study at its first run"
