"""Models by name, without building them: lookup, refusals, and reading of weight files."""

import pickle
from pathlib import Path

import pytest

from raybench.models.base import DataShape
from raybench.models.find import find_workload, require_framework
from raybench.models.named import (
    NETWORKS,
    initial_arrays,
    named_workload,
    weights_file,
)
from raybench.spec.errors import ErrorCode
from raybench.training.base import find_part
from tests.refusals import refused

IMAGES = DataShape(input_shape=(64, 64, 3), num_outputs=5, kind="pixels")
TEXTS = DataShape(input_shape=(16,), num_outputs=2, vocabulary_size=50, kind="tokens")


def shape_of(input_shape: object) -> DataShape:
    return DataShape(input_shape=input_shape, num_outputs=2)


def test_data_determine_the_model_shape():
    workload = find_workload("torchvision:resnet18", IMAGES)
    assert (workload.input_shape, workload.num_classes) == ((64, 64, 3), 5)
    both = find_workload("resnet18", IMAGES)
    for framework in ("torch", "tensorflow"):
        require_framework(both, framework)
    require_framework(find_workload("keras:MobileNetV2", IMAGES), "tensorflow")


@pytest.mark.parametrize(
    ("name", "shape", "names"),
    [
        ("torchvision:", IMAGES, ["torchvision:NAME", "torchvision:resnet18"]),
        ("timm:resnet18", TEXTS, ["timm:resnet18", "(16,)"]),
        ("transformers:bert", IMAGES, ["dataset.text"]),
        ("transformers:bert", shape_of({"ids": (4,)}), ["input_ids", "ids"]),
    ],
)
def test_unsuitable_name_or_data_is_refused(name, shape, names):
    with refused(ErrorCode.INVALID_VALUE, *names) as caught:
        find_workload(name, shape)
    assert "\n" not in str(caught.value)


def test_library_of_one_framework_refuses_the_other():
    with refused(ErrorCode.UNSUPPORTED, "timm", "tensorflow", "resnet50"):
        require_framework(find_workload("timm:resnet18", IMAGES), "tensorflow")
    with refused(ErrorCode.UNSUPPORTED, "keras", "torch"):
        require_framework(find_workload("keras:MobileNetV2", IMAGES), "torch")


def test_missing_library_is_refused_with_the_install_command(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused(ErrorCode.NOT_INSTALLED, "pip install timm"):
        named_workload("timm:resnet18", IMAGES)
    network, file = named_workload("resnet18", IMAGES), tmp_path / "resnet18.pth"
    file.touch()
    for weights, package in (("cached", "torchvision"), (file, "torch")):
        with refused(ErrorCode.NOT_INSTALLED, weights, f"pip install {package}."):
            weights_file(network, str(weights), "tensorflow")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet18", 11_689_512),
        pytest.param("resnet34", 21_797_672, marks=pytest.mark.all),
        pytest.param("resnet50", 25_557_032, marks=pytest.mark.all),
        ("mobilenet_v2", 3_504_872),
    ],
)
def test_networks_have_the_published_parameter_counts(name, parameters):
    arrays = initial_arrays(NETWORKS[name](), 1000, seed=0)
    trained = [array.size for key, array in arrays.items() if "running" not in key]
    assert sum(trained) == parameters


def test_initial_weights_depend_only_on_the_seed():
    first, same, other = (
        initial_arrays(NETWORKS["mobilenet_v2"](), 1000, seed=seed) for seed in (0, 0, 1)
    )
    assert all((array == same[name]).all() for name, array in first.items())
    assert (first["classifier.1.weight"] != other["classifier.1.weight"]).any()


@pytest.mark.parametrize("kind", ["plain", "nested", "safetensors"])
def test_weight_files_are_read(kind, tmp_path):
    torch = pytest.importorskip("torch")
    tensors = {"transposed": torch.arange(12.0).reshape(3, 4).T, "counter": torch.tensor(7)}
    path = tmp_path / ("weights.safetensors" if kind == "safetensors" else "weights.pth")
    if kind == "safetensors":
        from safetensors.torch import save_file

        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    else:
        torch.save({"epoch": 3, "state_dict": tensors} if kind == "nested" else tensors, path)
    loaded = find_part("torch", "named").read_tensors(path)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


class RunsCode:
    """Object that creates the file `ran` when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("ran"),))


@pytest.mark.parametrize("kind", ["zip", "legacy", "text"])
def test_file_without_weights_is_refused_and_runs_no_code(kind, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / ("weights.safetensors" if kind == "text" else "weights.pth")
    if kind == "zip":
        torch.save({"a": RunsCode()}, path)
    elif kind == "legacy":
        path.write_bytes(pickle.dumps(RunsCode()))
    else:
        path.write_text("not weights\n")
    with refused(ErrorCode.INVALID_WEIGHTS, path) as caught:
        find_part("torch", "named").read_tensors(path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()
