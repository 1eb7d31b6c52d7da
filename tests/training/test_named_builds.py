"""Models by name, built in both frameworks: equal networks, trained weights, normalization."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from framework_models import model_module

from raybench.models.base import DataShape, Workload
from raybench.models.named import MEAN, STD, named_workload
from raybench.spec.errors import ErrorCode
from raybench.training.base import find_part
from tests.refusals import refused

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")


def workload_of(name: str, *, outputs: int = 5, pixels: int = 32, channels: int = 3) -> Workload:
    shape = DataShape(input_shape=(pixels, pixels, channels), num_outputs=outputs)
    return named_workload(name, shape)


def built(framework: str, workload: Workload) -> Any:
    return model_module(framework).build_model(workload, 3)


def outputs(model: Any, images: np.ndarray, *, training: bool) -> np.ndarray:
    if isinstance(model, torch.nn.Module):
        model.train(training)
        return model(torch.from_numpy(images).permute(0, 3, 1, 2)).detach().numpy()
    return np.asarray(model(images, training=training))


def images_of(pixels: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(1).random((4, pixels, pixels, channels), np.float32)


@pytest.mark.parametrize(
    ("name", "channels"),
    [
        ("mobilenet_v2", 1),
        pytest.param("resnet18", 3, marks=pytest.mark.all),
        pytest.param("resnet50", 3, marks=pytest.mark.all),
    ],
)
def test_named_model_is_equal_in_both_frameworks(name, channels):
    """Compares the number of parameters, and outputs before and after a batch of training."""
    pixels = 48
    workload = workload_of(name, pixels=pixels, channels=channels)
    torch_model, keras_model = built("torch", workload), built("tensorflow", workload)
    num_parameters = sum(parameter.numel() for parameter in torch_model.parameters())
    for framework, model in (("torch", torch_model), ("tensorflow", keras_model)):
        assert model_module(framework).num_parameters(model) == num_parameters
        assert model_module(framework).batch_statistics(model)
    for module in torch_model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = keras_model.head.layers[0].rate = 0.0
    images = images_of(pixels, channels)
    for training in (True, False):
        expected, found = (
            outputs(model, images, training=training) for model in (torch_model, keras_model)
        )
        scale = np.abs(expected).max()
        # Batch statistics of few images amplify rounding errors in each of 50 layers.
        np.testing.assert_allclose(expected / scale, found / scale, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """File with weights of torchvision for 1,000 classes, and the model that has them."""
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None, num_classes=1000).eval()
    for name, tensor in model.state_dict().items():
        if "running_mean" in name:
            tensor.uniform_(-0.1, 0.1)
    path = tmp_path_factory.mktemp("weights") / "resnet18-f37072fd.pth"
    torch.save(model.state_dict(), path)
    return path, model


@pytest.mark.parametrize("name", ["resnet18", "torchvision:resnet18", "timm:resnet18"])
def test_trained_weights_are_loaded_with_a_new_head_in_torch(trained, name):
    path, _ = trained
    workload = workload_of(name)
    model = built("torch", workload)
    (note,) = find_part("torch", "named").start_from(model, workload, str(path))
    assert str(path) in note
    assert "fc.weight, fc.bias" in note
    assert set(model.head) == {"net.fc.weight", "net.fc.bias"}


@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.all)])
def test_cached_weights_give_the_outputs_of_torchvision(trained, framework, tmp_path, monkeypatch):
    path, reference = trained
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    workload = workload_of("resnet18", outputs=1000)
    start_from = find_part(framework, "named").start_from
    model = built(framework, workload)
    with refused(ErrorCode.NOT_FOUND, "resnet18", tmp_path):
        start_from(model, workload, "cached")
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / path.name).symlink_to(path)
    assert start_from(model, workload, "cached") == []
    images = images_of(32)
    normalised = ((images - MEAN) / STD).astype(np.float32)
    expected = outputs(reference, normalised, training=False)
    np.testing.assert_allclose(
        outputs(model, images, training=False), expected, rtol=1e-3, atol=1e-4
    )
    other = workload_of("mobilenet_v2")
    with refused(ErrorCode.INVALID_WEIGHTS, path):
        start_from(built(framework, other), other, str(path))
    with refused(ErrorCode.NOT_FOUND, "none.pth"):
        start_from(model, workload, str(tmp_path / "none.pth"))


@pytest.mark.all
def test_keras_model_loads_backbone_weights_from_both_formats(tmp_path):
    keras = pytest.importorskip("keras")
    start_from = find_part("tensorflow", "named").start_from
    workload = workload_of("keras:MobileNetV3Small")
    model = built("tensorflow", workload)
    model.save_weights(tmp_path / "model.weights.h5")
    model.backbone.save(tmp_path / "no_top.h5")
    before = [variable.numpy() for variable in model.backbone.variables]
    keras.utils.set_random_seed(9)
    other_workload = workload_of("keras:MobileNetV3Small", outputs=2)
    rebuilt = model_module("tensorflow").build_model(other_workload, 8)
    for file in ("no_top.h5", "model.weights.h5"):
        (note,) = start_from(rebuilt, other_workload, str(tmp_path / file))
        assert file in note
        for variable, value in zip(rebuilt.backbone.variables, before, strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)
            variable.assign(variable * 0)
    rebuilt.backbone.trainable = False
    rebuilt(images_of(32), training=True)
    np.testing.assert_array_equal(rebuilt.backbone.variables[-1].numpy(), 0 * before[-1])
    (tmp_path / "model.pth").touch()
    with refused(ErrorCode.INVALID_WEIGHTS, "model.pth", "framework: torch"):
        start_from(rebuilt, other_workload, str(tmp_path / "model.pth"))


@pytest.mark.parametrize(
    ("framework", "name", "code", "text"),
    [
        ("torch", "torchvision:resnet19", ErrorCode.UNKNOWN_NAME, "'resnet18'"),
        ("tensorflow", "keras:mobilenetv2", ErrorCode.UNKNOWN_NAME, "'MobileNetV2'"),
        ("tensorflow", "keras:InceptionV3", ErrorCode.INVALID_MODEL, "32 x 32"),
    ],
)
def test_unknown_name_or_unsuitable_size_is_refused(framework, name, code, text):
    with refused(code, name, text) as caught:
        built(framework, workload_of(name))
    assert "\n" not in str(caught.value)


def test_transformer_from_a_folder_ignores_padding(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(
        '{"model_type": "distilbert", "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16, '
        '"vocab_size": 20, "max_position_embeddings": 8, "pad_token_id": 0}'
    )

    def shape(tokens: int, vocabulary: int = 20) -> DataShape:
        return DataShape(
            input_shape=(tokens,), num_outputs=3, vocabulary_size=vocabulary, kind="tokens"
        )

    model = built("torch", named_workload(f"transformers:{tmp_path}", shape(6))).eval()
    texts = torch.tensor([[5, 7, 3, 0, 0, 0]])
    outputs_of_padded = model(texts)
    assert outputs_of_padded.shape == (1, 3)
    torch.testing.assert_close(model(texts[:, :3]), outputs_of_padded)
    torch.testing.assert_close(model({"input_ids": texts}), outputs_of_padded)
    assert {name.split(".")[2] for name in model.head} == {"pre_classifier", "classifier"}
    for data, text in ((shape(9), "sequence_length: 8"), (shape(6, 21), "vocabulary_size: 20")):
        with refused(ErrorCode.INVALID_MODEL, text):
            built("torch", named_workload(f"transformers:{tmp_path}", data))
    with refused(ErrorCode.UNKNOWN_NAME, "'distilbert'"):
        built("torch", named_workload("transformers:distilbart", shape(6)))
