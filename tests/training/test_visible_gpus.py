"""A worker uses the GPUs that it was given, and no others."""

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
from local import new_trainer, small_spec

from raybench.spec.errors import ErrorCode
from raybench.spec.run import RunSpec
from raybench.training.base import find_part
from tests.refusals import refused

needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="no tensorflow"
)


class FakeTensorFlow:
    """A TensorFlow of some GPUs; keeps which of them are made visible."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
        import tensorflow as tf

        self.all = [SimpleNamespace(name=f"GPU:{index}") for index in range(gpus)]
        self.visible, self.growing = list(self.all), []
        experimental = tf.config.experimental
        for place, name, does in (
            (tf.config, "list_physical_devices", lambda kind: self.all),
            (tf.config, "get_visible_devices", lambda kind: self.visible),
            (tf.config, "set_visible_devices", self._see),
            (experimental, "set_memory_growth", lambda gpu, wanted: self.growing.append(gpu)),
            (experimental, "get_device_details", lambda gpu: {"device_name": "H100"}),
        ):
            monkeypatch.setattr(place, name, does)

    def _see(self, gpus: list[SimpleNamespace], kind: str) -> None:
        assert kind == "GPU"
        self.visible = gpus


@needs_tensorflow
@pytest.mark.parametrize("given", [0, 1, 2])
def test_tensorflow_sees_what_its_worker_was_given(
    given: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    from raybench.training.tensorflow import world

    asked: list[Any] = []
    own = tf.distribute.OneDeviceStrategy("CPU:0")
    monkeypatch.setattr(
        tf.distribute, "MultiWorkerMirroredStrategy", lambda **options: asked.append(options) or own
    )
    gpus = FakeTensorFlow(monkeypatch, 4)
    joined = world.join(rank=0, num_workers=1, device="", num_threads=1, num_gpus=given)
    assert gpus.visible == gpus.growing == gpus.all[:given]
    assert joined.gpus == tuple(range(given))
    assert joined.device == ("H100" if given else "cpu")
    wanted = asked[0]["communication_options"].implementation.value
    assert wanted == ("NCCL" if given else "AUTO")


@needs_tensorflow
def test_what_a_run_says_of_its_exchange_leaves_nccl_chosen() -> None:
    from raybench.training.tensorflow.world import Exchange, communication

    chosen = communication(has_gpus=True).merge(Exchange(RunSpec(bucket_mb=4)).options)
    assert (chosen.implementation.value, chosen.bytes_per_pack) == ("NCCL", 4 * 2**20)


def test_a_framework_that_does_not_see_what_it_was_given_is_an_error(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if framework == "tensorflow":
        FakeTensorFlow(monkeypatch, 0)
    else:
        monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with refused(ErrorCode.UNSUPPORTED, framework, "1 GPU"):
        find_part(framework, "world").join(
            rank=0, num_workers=1, device="cuda:0", num_threads=1, num_gpus=1
        )


def test_a_torch_worker_reads_the_load_of_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray lets the torch workers of a host see all their GPUs; each is told its index."""
    pytest.importorskip("torch")
    from raybench.training.torch.world import World

    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "H100")
    assert World(device="cuda:3").gpus == (3,)
    assert World(device="cuda:0", num_replicas=2).gpus == (0, 1)
    assert World().gpus == ()


@needs_tensorflow
@pytest.mark.parametrize("precision", ["tf32", "fp32"])
def test_tensorflow_uses_tf32_only_where_it_is_asked_for(precision: str) -> None:
    """TensorFlow's default is TF32 everywhere. `test_torch_loop` tests torch."""
    import tensorflow as tf

    new_trainer(small_spec("tensorflow", precision=precision))[0].close()
    is_on = tf.config.experimental.tensor_float_32_execution_enabled()
    assert is_on == (precision == "tf32")
