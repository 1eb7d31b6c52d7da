"""Workers use the GPUs assigned to them and no others."""

import importlib.util
from types import SimpleNamespace

import pytest
from local_runs import new_trainer, small_spec

from raybench.spec.errors import ErrorCode
from raybench.spec.run import RunSpec
from raybench.training.base import find_part
from tests.refusals import refused

needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="no tensorflow"
)


def fake_gpus(monkeypatch, number):
    """Let TensorFlow list GPUs; return all, and those that are made visible and may grow."""
    import tensorflow as tf

    gpus = [SimpleNamespace(name=f"GPU:{index}") for index in range(number)]
    fake = SimpleNamespace(all=gpus, visible=gpus, growing=[])
    experimental = tf.config.experimental
    for place, name, does in (
        (tf.config, "list_physical_devices", lambda kind: fake.all),
        (tf.config, "get_visible_devices", lambda kind: fake.visible),
        (tf.config, "set_visible_devices", lambda gpus, kind: setattr(fake, "visible", gpus)),
        (experimental, "set_memory_growth", lambda gpu, wanted: fake.growing.append(gpu)),
        (experimental, "get_device_details", lambda gpu: {"device_name": "H100"}),
    ):
        monkeypatch.setattr(place, name, does)
    return fake


@needs_tensorflow
@pytest.mark.parametrize("num_gpus", [0, 1, 2])
def test_tensorflow_sees_the_gpus_of_its_worker(num_gpus, monkeypatch):
    import tensorflow as tf

    from raybench.training.tensorflow import world

    strategy_options = []
    local_strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    monkeypatch.setattr(
        tf.distribute,
        "MultiWorkerMirroredStrategy",
        lambda **options: strategy_options.append(options) or local_strategy,
    )
    gpus = fake_gpus(monkeypatch, 4)
    joined = world.join(rank=0, num_workers=1, device="", num_threads=1, num_gpus=num_gpus)
    assert gpus.visible == gpus.growing == gpus.all[:num_gpus]
    assert joined.gpus == tuple(range(num_gpus))
    assert joined.device == ("H100" if num_gpus else "cpu")
    implementation = strategy_options[0]["communication_options"].implementation.value
    assert implementation == ("NCCL" if num_gpus else "AUTO")


@needs_tensorflow
def test_exchange_options_of_a_run_keep_nccl():
    from raybench.training.tensorflow.loop import Exchange
    from raybench.training.tensorflow.world import communication

    options = communication(has_gpus=True).merge(Exchange(RunSpec(bucket_mb=4)).options)
    assert (options.implementation.value, options.bytes_per_pack) == ("NCCL", 4 * 2**20)


def test_framework_that_does_not_see_an_assigned_gpu_is_refused(framework, monkeypatch):
    if framework == "tensorflow":
        fake_gpus(monkeypatch, 0)
    else:
        monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with refused(ErrorCode.UNSUPPORTED, framework, "1 GPU"):
        find_part(framework, "world").join(
            rank=0, num_workers=1, device="cuda:0", num_threads=1, num_gpus=1
        )


def test_torch_worker_knows_the_index_of_its_gpu(monkeypatch):
    """Ray lets the torch workers of a host see all their GPUs; a worker uses the given one."""
    pytest.importorskip("torch")
    from raybench.training.torch.world import World

    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "H100")
    assert World(device="cuda:3").gpus == (3,)
    assert World(device="cuda:0", num_replicas=2).gpus == (0, 1)
    assert World().gpus == ()


@needs_tensorflow
@pytest.mark.parametrize("precision", ["tf32", "fp32"])
def test_tensorflow_uses_tf32_only_if_requested(precision):
    """TF32 is the default of TensorFlow. `test_torch_loop` tests torch."""
    import tensorflow as tf

    new_trainer(small_spec("tensorflow", precision=precision))[0].close()
    is_on = tf.config.experimental.tensor_float_32_execution_enabled()
    assert is_on == (precision == "tf32")
