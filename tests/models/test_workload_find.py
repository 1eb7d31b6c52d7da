"""Lookup of workloads by name: shipped ones and classes of the user, their settings and data."""

import sys
import textwrap

import pytest

from raybench.models import find
from raybench.models.base import DataShape
from raybench.models.find import find_workload, load_workload_dataset, require_framework
from raybench.runs.preflight import first_values
from raybench.search.preflight import check_data
from raybench.spec.errors import ErrorCode
from raybench.spec.run import DatasetSpec
from raybench.spec.study import build_study
from tests.refusals import refused

MODULE = """
    import numpy as np
    from raybench.data.dataset import Dataset, Split
    from raybench.models.base import LayerWorkload, Workload
    from raybench.models.layers import Dense

    def _split(num_samples):
        return Split(np.zeros((num_samples, 3), np.float32), np.arange(num_samples) % 2)

    class Full(Workload):
        name, input_shape, num_classes = "full", (3,), 2

        def build_torch(self):
            return "model"

        def load_dataset(self, spec):
            return Dataset("own", 2, train=_split(8), validation=_split(4), test=_split(4))

    class Configurable(Full):
        def __init__(self, width=4, dropout=0.0):
            self.settings = width, dropout

    class DataSettings(Full):
        def load_dataset(self, spec, size=8, fold=0, noise=0.0):
            held_out = _split(4 + fold)
            return Dataset("cut", 2, train=_split(size), validation=held_out, test=_split(4))

    class Layers(LayerWorkload):
        name, input_shape, num_classes, layers = "layers", (3,), 2, (Dense(2),)

    class OwnLoss(Full):
        def torch_loss(self, outputs, labels):
            return labels

    class ByName(Workload):
        name, task, input_shape = "by_name", "regression", {"a": [3], "b": ()}

    class NotAWorkload:
        pass
"""


def shape(input_shape, num_outputs, **options):
    return DataShape(input_shape=input_shape, num_outputs=num_outputs, **options)


@pytest.fixture(autouse=True)
def users_module(tmp_path, monkeypatch):
    """Write MODULE into the current directory; forget it after the test."""
    (tmp_path / "users_own.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield
    find._own_data.clear()
    for name in [name for name in sys.modules if name.startswith("users_")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "code", "names"),
    [
        ("mnist_smal", ErrorCode.UNKNOWN_NAME, ["mnist_smal", "mnist_small"]),
        ("zzz", ErrorCode.UNKNOWN_NAME, ["zzz", "module:Class"]),
        ("users_own:Missing", ErrorCode.UNKNOWN_NAME, ["users_own", "Missing"]),
        ("users_own:NotAWorkload", ErrorCode.INVALID_MODEL, ["NotAWorkload", "raybench.Workload"]),
    ],
)
def test_unknown_name_is_refused(name, code, names):
    with refused(code, *names) as caught:
        find_workload(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("input_shape", "num_classes", "names"),
    [((4,), 2, ["full", "(3,)", "(4,)"]), ((3,), 10, ["2 classes", "10"])],
)
def test_dataset_of_another_shape_is_refused(input_shape, num_classes, names):
    with refused(ErrorCode.INVALID_MODEL, *names):
        find_workload("users_own:Full", shape(input_shape, num_classes))


def test_data_must_have_the_task_of_the_workload():
    with refused(ErrorCode.INVALID_MODEL, "classification", "regression"):
        find_workload("users_own:Full", shape((3,), 1, task="regression"))
    own_loss = find_workload("users_own:OwnLoss", shape((3,), 1, task="regression"))
    assert own_loss.task == "classification", "a loss of the user may interpret labels freely"
    by_name = find_workload("users_own:ByName", shape({"a": (3,), "b": ()}, 2, task="regression"))
    assert not hasattr(by_name, "num_classes")
    with refused(ErrorCode.INVALID_MODEL, "a (3,), b ()"):
        find_workload("users_own:ByName", shape({"a": (4,)}, 2, task="regression"))
    assert find_workload("mlp", shape((3,), 4, task="regression")).task == "regression"


def test_workload_without_builder_for_a_framework_is_refused():
    full, layers = (
        find_workload(f"users_own:{name}", shape((3,), 2)) for name in ("Full", "Layers")
    )
    assert (full.name, layers.name) == ("full", "layers")
    require_framework(full, "torch")
    with refused(ErrorCode.UNSUPPORTED, "full", "build_keras"):
        require_framework(full, "tensorflow")
    for framework in ("torch", "tensorflow"):
        require_framework(layers, framework)
        require_framework(find_workload("cnn7"), framework)


def test_model_settings_reach_the_workload_and_reuse_its_data():
    spec = DatasetSpec(name="workload")
    workload, dataset = load_workload_dataset("users_own:Configurable", spec, {"width": 9})
    assert workload.settings == (9, 0.0)
    with_dropout, reused = load_workload_dataset("users_own:Configurable", spec, {"dropout": 0.5})
    assert with_dropout.settings == (4, 0.5)
    assert reused is dataset
    with refused(ErrorCode.UNKNOWN_KEY, "model.widht", "mnist_small"):
        find_workload("mnist_small", model={"widht": 9})


def test_data_settings_are_arguments_of_load_dataset(tmp_path):
    spec = DatasetSpec(name="workload")

    def load(shared=None, **data):
        return load_workload_dataset("users_own:DataSettings", spec, {}, data, shared=shared)[1]

    small, large = load(tmp_path, size=6), load(tmp_path)
    assert (len(small.train), len(large.train)) == (6, 8)
    assert load(tmp_path, size=6) is small
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2
    with refused(ErrorCode.UNKNOWN_KEY, "data.sise", "users_own:DataSettings", "'size'"):
        load(sise=6)
    with refused(ErrorCode.INVALID_VALUE, "data.size", "6.5"):
        load(size=6.5)
    with refused(ErrorCode.UNKNOWN_KEY, "data.size", "digits"):
        load_workload_dataset("mlp", DatasetSpec(), {}, {"size": 6})


def test_data_setting_that_changes_validation_rows_is_refused():
    def check(data):
        content = {"workload": "users_own:DataSettings", "dataset": "workload"}
        content |= {"space": {"data": data}, "objective": {"target": 0.9}}
        study, space = build_study(content, "s.yaml")
        spec = study.run_spec(first_values(study, space))
        dataset = load_workload_dataset(spec.workload, spec.dataset, {}, spec.data)[1]
        check_data(study, space, spec, dataset)

    check({"size": [4, 8], "noise": [0.0, 0.5]})
    with refused(ErrorCode.USER_CODE, "data.size 4", "data.fold 1"):
        check({"size": [4, 8], "fold": [0, 1]})


@pytest.fixture
def write_workload(tmp_path):
    """Function that writes a module with one workload class and returns the class's name."""

    def write(body, *, head="", base="Workload"):
        name = f"users_file_{len(list(tmp_path.glob('users_file_*')))}"
        text = f"""
import sys
import numpy as np
from raybench.data.dataset import Dataset, Split
from raybench.models.base import LayerWorkload, Workload
from raybench.models.layers import Dense
{head}
class Net({base}):
    name, input_shape, num_classes = "net", (3,), 2
{textwrap.indent(textwrap.dedent(body), "    ")}
"""
        (tmp_path / f"{name}.py").write_text(text)
        return f"{name}:Net"

    return write


FROM_WORKLOAD = DatasetSpec(name="workload")


@pytest.mark.parametrize(
    ("body", "head", "names"),
    [
        (
            "def load_dataset(self, spec): 1 / 0",
            "",
            ["file_0.py, line 10: ZeroDivisionError"],
        ),
        ("def __init__(self): raise OSError('a\\nb [/x]')", "", ["Net()", "OSError: a b [/x]"]),
        ("pass", "raise ValueError('\\udce9\\x1b[31m')", ["ValueError: \\udce9\\x1b[31m"]),
    ],
)
def test_error_in_user_code_is_reported_with_its_line(write_workload, body, head, names):
    name = write_workload(body, head=head)
    with refused(ErrorCode.USER_CODE, name, *names) as caught:
        load_workload_dataset(name, FROM_WORKLOAD)
    assert "\n" not in str(caught.value)
    assert caught.value.details.startswith("Traceback")


def test_keyboard_interrupt_in_user_code_is_passed_on(write_workload):
    with pytest.raises(KeyboardInterrupt):
        find_workload(write_workload("def __init__(self):\n    raise KeyboardInterrupt"))


HUGE = "layers = (Dense(10**12), Dense(2))"


@pytest.mark.parametrize(
    ("base", "body", "code", "names"),
    [
        ("Workload", "num_classes = 2.0", ErrorCode.INVALID_MODEL, ["num_classes", "2.0"]),
        ("Workload", "input_shape = '28'", ErrorCode.INVALID_MODEL, ["input_shape", "'28'"]),
        ("Workload", "task = 'vision'", ErrorCode.INVALID_MODEL, ["task", "regression"]),
        ("Workload", "metric = 'dice'", ErrorCode.INVALID_MODEL, ["metric", "'dice'"]),
        ("LayerWorkload", HUGE, ErrorCode.NO_ROOM, ["6,000,000,000,002"]),
        ("LayerWorkload", "pass", ErrorCode.INVALID_MODEL, ["Net", "layers"]),
    ],
)
def test_invalid_attribute_is_refused(write_workload, base, body, code, names):
    name = write_workload(body, base=base)
    with refused(code, *names) as caught:
        find_workload(name, shape((3,), 2))
    assert "\n" not in str(caught.value)


def test_shared_data_are_loaded_once(write_workload, tmp_path):
    name = write_workload(
        """
        def load_dataset(self, spec):
            with open("loaded", "a") as file:
                file.write("x")
            split = Split(np.ones((8, 3), np.float32), np.arange(8) % 2)
            return Dataset("own", 2, train=split, validation=split, test=split)
        """
    )
    shared = tmp_path / "shared"
    spec = DatasetSpec(name="workload", limit=6, repeat=2)
    workload, dataset = load_workload_dataset(name, spec, shared=shared)
    assert load_workload_dataset(name, spec, shared=shared)[1] is dataset
    find._own_data.clear()  # as in another process
    reloaded = load_workload_dataset(name, spec, shared=shared)[1]
    assert (tmp_path / "loaded").read_text() == "x"
    assert workload.name == "net"
    assert reloaded.num_train_samples == 12
    assert reloaded.train.inputs.tolist() == [[1.0, 1.0, 1.0]] * 6


SETTINGS = """
def __init__(self, hidden_units=128, dropout=0.0, norm="batch", residual=False, depth=None):
    self.settings = hidden_units, dropout, norm, residual, depth
"""


def test_constructor_parameters_are_model_settings(write_workload):
    name = write_workload(SETTINGS)
    settings = {"hidden_units": 64, "dropout": 1, "norm": "layer", "residual": True, "depth": 3}
    assert find_workload(name, model=settings).settings == (64, 1, "layer", True, 3)
    assert find_workload(name).settings == (128, 0.0, "batch", False, None)
    any_name = write_workload("def __init__(self, **settings):\n    self.settings = settings")
    assert find_workload(any_name, model={"anything": [1, 2]}).settings == {"anything": [1, 2]}


@pytest.mark.parametrize(
    ("body", "settings", "code", "names"),
    [
        (SETTINGS, {"hiden_units": 3}, ErrorCode.UNKNOWN_KEY, ["hiden_units", "hidden_units"]),
        (SETTINGS, {"hidden_units": 2.5}, ErrorCode.INVALID_VALUE, ["2.5", "128"]),
        (SETTINGS, {"dropout": True}, ErrorCode.INVALID_VALUE, ["dropout", "True"]),
        ("def __init__(self, size): pass", {}, ErrorCode.MISSING, ["model.size", "fixed.model"]),
        ("pass", {"x": 1}, ErrorCode.UNKNOWN_KEY, ["model.x"]),
    ],
)
def test_invalid_model_setting_is_refused(write_workload, body, settings, code, names):
    with refused(code, *names):
        find_workload(write_workload(body), model=settings)
