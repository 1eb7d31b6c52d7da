"""Models by name as the frameworks build them: the same network, trained weights, normalisation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from framework_models import backend

from raybench.models.base import DataShape, Workload
from raybench.models.named import named_workload
from raybench.models.networks import MEAN, STD
from raybench.spec.errors import ErrorCode
from raybench.training.base import find_part
from tests.refusals import refused

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")


def workload_of(name: str, *, outputs: int = 5, pixels: int = 32, channels: int = 3) -> Workload:
    shape = DataShape(input_shape=(pixels, pixels, channels), num_outputs=outputs)
    return named_workload(name, shape)


def built(framework: str, workload: Workload) -> Any:
    return backend(framework).build_model(workload, 3)


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
def test_one_name_is_one_network_in_both_frameworks(name: str, channels: int) -> None:
    """Equal parameters and first weights, outputs, and running statistics after a batch."""
    pixels = 48
    workload = workload_of(name, pixels=pixels, channels=channels)
    ours, theirs = built("torch", workload), built("tensorflow", workload)
    for model, module in ((ours, "torch"), (theirs, "tensorflow")):
        expected = sum(one.numel() for one in ours.parameters())
        assert backend(module).num_parameters(model) == expected
        assert backend(module).batch_statistics(model)
    for dropout in (one for one in ours.modules() if isinstance(one, torch.nn.Dropout)):
        dropout.p = theirs.head.layers[0].rate = 0.0
    images = images_of(pixels, channels)
    for training in (True, False):
        one, other = (outputs(model, images, training=training) for model in (ours, theirs))
        scale = np.abs(one).max()
        # Batch statistics of few images in each of 50 layers magnify what rounding decides.
        np.testing.assert_allclose(one / scale, other / scale, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A file of torchvision's weights for 1,000 classes, and the model that they are of."""
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None, num_classes=1000).eval()
    for name, one in model.state_dict().items():
        if "running_mean" in name:
            one.uniform_(-0.1, 0.1)
    path = tmp_path_factory.mktemp("weights") / "resnet18-f37072fd.pth"
    torch.save(model.state_dict(), path)
    return path, model


@pytest.mark.parametrize("name", ["resnet18", "torchvision:resnet18", "timm:resnet18"])
def test_trained_weights_and_a_new_head_in_torch(trained: tuple[Path, Any], name: str) -> None:
    path, _ = trained
    workload = workload_of(name)
    model = built("torch", workload)
    (sentence,) = find_part("torch", "named").start_from(model, workload, str(path))
    assert str(path) in sentence
    assert "fc.weight, fc.bias" in sentence
    assert set(model.head) == {"net.fc.weight", "net.fc.bias"}


@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.all)])
def test_cached_weights_give_torchvisions_outputs_in_both_frameworks(
    trained: tuple[Path, Any], framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    found = outputs(model, images, training=False)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    other = workload_of("mobilenet_v2")
    with refused(ErrorCode.INVALID_WEIGHTS, path):
        start_from(built(framework, other), other, str(path))
    with refused(ErrorCode.NOT_FOUND, "none.pth"):
        start_from(model, workload, str(tmp_path / "none.pth"))


@pytest.mark.all
def test_a_keras_model_takes_the_librarys_weights_and_saved_ones(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    start_from = find_part("tensorflow", "named").start_from
    workload = workload_of("keras:MobileNetV3Small")
    model = built("tensorflow", workload)
    model.save_weights(tmp_path / "model.weights.h5")
    model.backbone.save(tmp_path / "no_top.h5")
    before = [variable.numpy() for variable in model.backbone.variables]
    keras.utils.set_random_seed(9)
    other = workload_of("keras:MobileNetV3Small", outputs=2)
    again = backend("tensorflow").build_model(other, 8)
    for file in ("no_top.h5", "model.weights.h5"):
        (sentence,) = start_from(again, other, str(tmp_path / file))
        assert file in sentence
        for variable, value in zip(again.backbone.variables, before, strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)
            variable.assign(variable * 0)
    again.backbone.trainable = False
    again(images_of(32), training=True)
    np.testing.assert_array_equal(again.backbone.variables[-1].numpy(), 0 * before[-1])
    with refused(ErrorCode.INVALID_WEIGHTS, "model.pth", "framework: torch"):
        start_from(again, other, _touched(tmp_path / "model.pth"))


def _touched(path: Path) -> str:
    path.touch()
    return str(path)


@pytest.mark.parametrize(
    ("framework", "name", "code", "said"),
    [
        ("torch", "torchvision:resnet19", ErrorCode.UNKNOWN_NAME, "'resnet18'"),
        ("tensorflow", "keras:mobilenetv2", ErrorCode.UNKNOWN_NAME, "'MobileNetV2'"),
        ("tensorflow", "keras:InceptionV3", ErrorCode.INVALID_MODEL, "32 x 32"),
    ],
)
def test_names_and_sizes_that_a_library_has_not(
    framework: str, name: str, code: ErrorCode, said: str
) -> None:
    with refused(code, name, said) as caught:
        built(framework, workload_of(name))
    assert "\n" not in str(caught.value)


def test_a_transformer_from_a_folder_ignores_padding(tmp_path: Path) -> None:
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
    found = model(texts)
    assert found.shape == (1, 3)
    torch.testing.assert_close(model(texts[:, :3]), found)
    torch.testing.assert_close(model({"input_ids": texts}), found)
    assert {name.split(".")[2] for name in model.head} == {"pre_classifier", "classifier"}
    for data, words in ((shape(9), "sequence_length: 8"), (shape(6, 21), "vocabulary_size: 20")):
        with refused(ErrorCode.INVALID_MODEL, words):
            built("torch", named_workload(f"transformers:{tmp_path}", data))
    with refused(ErrorCode.UNKNOWN_NAME, "'distilbert'"):
        built("torch", named_workload("transformers:distilbart", shape(6)))
