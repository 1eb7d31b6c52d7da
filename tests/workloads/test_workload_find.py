import sys
import textwrap

import pytest

from raybench.core.errors import UserError
from raybench.core.spec import DatasetSpec
from raybench.workloads import find
from raybench.workloads.find import find_workload, load_workload_dataset, require_framework

MODULE = """
    import numpy as np
    from raybench.data.dataset import Dataset, Split
    from raybench.workloads.base import LayerWorkload, Workload
    from raybench.workloads.layers import Dense

    def _split(num_samples):
        return Split(np.zeros((num_samples, 3), np.float32), np.zeros(num_samples, np.int64))

    class Full(Workload):
        name = "full"
        input_shape = (3,)
        num_classes = 2

        def build_torch(self):
            return "model"

        def load_dataset(self, spec):
            return Dataset("own", 2, train=_split(8), validation=_split(4), test=_split(4))

    class Layers(LayerWorkload):
        name, input_shape, num_classes, layers = "layers", (3,), 2, (Dense(2),)

    class NoShape(Workload):
        name, num_classes = "no_shape", 2

    class NoLayers(LayerWorkload):
        name, input_shape, num_classes = "no_layers", (3,), 2

    class WantsArguments(Full):
        def __init__(self, size):
            self.size = size

    class WrongDataset(Full):
        def load_dataset(self, spec):
            return [1, 2]

    class OtherShape(Full):
        input_shape = (4,)

    class NotAWorkload:
        pass
"""


@pytest.fixture(autouse=True)
def beside_the_user(tmp_path, monkeypatch):
    """A module in the current directory, and no trace of it afterwards."""
    (tmp_path / "users_own.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "users_broken.py").write_text("import no_such_package_anywhere\n")
    (tmp_path / "users_syntax.py").write_text("def (\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield
    find._load_own.cache_clear()
    for name in ("users_own", "users_broken", "users_syntax"):
        sys.modules.pop(name, None)


def test_a_shipped_workload_takes_shape_and_classes_of_the_dataset():
    workload = find_workload("mnist_small", (32, 32, 3), 5)
    assert workload.input_shape == (32, 32, 3)
    assert workload.num_classes == 5
    assert find_workload("mnist_small").input_shape == (28, 28, 1)


@pytest.mark.parametrize("name", ["Full", "Layers"])
def test_a_users_workload_is_found_in_the_current_directory(name):
    workload = find_workload(f"users_own:{name}", (3,), 2)
    assert workload.name == name.lower()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "mnist_smal",
            r"Unknown workload 'mnist_smal': there are .*; did you mean 'mnist_small'\?",
        ),
        ("zzz", "module:Class"),
        ("no_such_module:Net", "module 'no_such_module' cannot be imported"),
        ("users_broken:Net", "no_such_package_anywhere"),
        ("users_syntax:Net", "cannot be imported .SyntaxError"),
        (":Net", "cannot be imported"),
        ("users_own:Missing", "module 'users_own' has no class 'Missing'"),
        ("users_own:NotAWorkload", "must be a subclass of raybench.Workload"),
        ("users_own:np", "must be a subclass of raybench.Workload"),
        ("users_own:NoShape", "needs the attribute input_shape"),
        ("users_own:NoLayers", "needs the attribute layers"),
        ("users_own:WantsArguments", r"WantsArguments\(\) failed"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_sentence(name, message):
    with pytest.raises(UserError, match=message) as caught:
        find_workload(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "input_shape", "num_classes", "message"),
    [
        ("users_own:Full", (4,), 2, r"takes inputs of shape \(3,\).*dataset has \(4,\)"),
        ("users_own:Full", (3,), 10, "tells 2 classes apart, the dataset has 10"),
        ("cnn7", (28, 28, 1), 10, "too small.*image_size"),
        ("mnist_small", (5,), 2, "needs an image"),
    ],
)
def test_a_dataset_that_does_not_fit_is_refused(name, input_shape, num_classes, message):
    with pytest.raises(UserError, match=message):
        find_workload(name, input_shape, num_classes)


def test_require_framework():
    full, layers = find_workload("users_own:Full"), find_workload("users_own:Layers")
    require_framework(full, "torch")
    with pytest.raises(UserError, match="full has no build_keras, so it cannot run with framework"):
        require_framework(full, "tensorflow")
    for framework in ("torch", "tensorflow"):
        require_framework(layers, framework)
        require_framework(find_workload("cnn7"), framework)


def test_a_shipped_dataset_shapes_the_workload():
    workload, dataset = load_workload_dataset("mnist_small", DatasetSpec(image_size=12))
    assert workload.input_shape == dataset.input_shape == (12, 12, 1)


def test_the_workloads_own_dataset_is_limited_repeated_and_kept():
    spec = DatasetSpec(name="workload", limit=6, repeat=2)
    workload, dataset = load_workload_dataset("users_own:Full", spec)
    assert workload.name == "full"
    assert dataset.num_train_samples == 12
    assert load_workload_dataset("users_own:Full", spec)[1] is dataset


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "mnist_small",
            "mnist_small has no load_dataset, so it cannot run with dataset 'workload'",
        ),
        ("users_own:WrongDataset", "must return a raybench Dataset, not list"),
        ("users_own:OtherShape", r"takes inputs of shape \(4,\)"),
    ],
)
def test_a_workload_without_usable_data_is_refused(name, message):
    with pytest.raises(UserError, match=message):
        load_workload_dataset(name, DatasetSpec(name="workload"))
