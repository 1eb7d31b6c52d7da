"""Data passed as Python objects are written and read back unchanged."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import raybench
from raybench.api import call_options
from raybench.data.load import build_dataset
from raybench.data.python_data import FOLDER, spec_of
from raybench.runs.options import TrainOptions
from raybench.runs.train import read_spec
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import DatasetSpec
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("own_store")
RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (40, 6, 6, 1), np.uint8)
Y = np.arange(40) % 4


def read(data, folder, label=None):
    return build_dataset(DatasetSpec.model_validate(spec_of(data, label, folder)))


def rows(split):
    """Return sorted samples, because the store shuffles them."""
    return sorted((x.tobytes(), int(y)) for x, y in zip(split.array, split.labels, strict=True))


def test_named_arrays_are_read_back(tmp_path):
    named = {"x_train": X, "y_train": Y, "x_val": X[:8], "y_val": Y[:8]}
    dataset = read(named, tmp_path)
    assert rows(dataset.validation) == rows(raybench.Split(X[:8], Y[:8]))
    assert dataset.num_classes == 4
    spec = spec_of(named, None, tmp_path)
    assert spec == spec_of(dict(named), None, tmp_path), "equal data are stored in one file"
    assert len(list(tmp_path.glob("*.npz"))) == 1
    unsplit = read({"x": X, "y": Y}, tmp_path)
    assert sum(map(len, (unsplit.train, unsplit.validation, unsplit.test))) == 40


def test_a_raybench_dataset_is_read_back(tmp_path):
    numbers = RNG.normal(size=40).astype(np.float32)
    inputs = {"a": RNG.normal(size=(40, 3)).astype(np.float32), "b": np.arange(40, dtype=np.int32)}
    weights = np.linspace(0.5, 1.5, 40, dtype=np.float32)
    split = raybench.Split(inputs, numbers, weights)
    none = split.take(slice(0))
    ours = raybench.Dataset("mine", None, split, split.take(slice(9)), none, task="regression")
    dataset = read(ours, tmp_path)
    assert (dataset.task, len(dataset.test)) == ("regression", 0)
    assert dataset.input_shape == {"a": (3,), "b": ()}
    assert sorted(dataset.train.arrays["b"].tolist()) == list(range(40))
    assert dataset.train.weights is not None
    named = raybench.Split(X, Y.astype(np.int64))
    ours = raybench.Dataset("mine", 4, named, named, named, class_names=("d", "c", "b", "a"))
    assert read(ours, tmp_path).class_names == ("a", "b", "c", "d")


def test_a_data_frame_is_read_back_with_its_label(tmp_path):
    frame = pd.DataFrame({"size": range(60), "side": ["a", "b"] * 30, "price": np.arange(60) * 1.5})
    dataset = read(frame, tmp_path, "price")
    assert dataset.task == "regression"
    assert len(dataset.train) + len(dataset.validation) + len(dataset.test) == 60
    with pytest.raises(UserError) as caught:
        raybench.train(data=frame, out=tmp_path / "x")
    assert "label" in str(caught.value)
    with refused(ErrorCode.UNKNOWN_NAME, "'prize'", "'price'"):
        read(frame, tmp_path, "prize")


def test_torch_datasets_are_read_back(tmp_path):
    torch = pytest.importorskip("torch")
    pixels = torch.from_numpy(X.transpose(0, 3, 1, 2).copy())
    samples = torch.utils.data.TensorDataset(pixels, torch.from_numpy(Y))
    test = torch.utils.data.Subset(samples, range(10))
    dataset = read({"train": samples, "test": test}, tmp_path)
    assert rows(dataset.test) == rows(raybench.Split(X[:10], Y[:10]))
    assert read(samples, tmp_path).input_shape == (6, 6, 1)


def test_hugging_face_datasets_are_read_back(tmp_path):
    datasets = pytest.importorskip("datasets")
    columns = {"x": [number % 7 * 0.5 for number in range(50)], "label": [0, 1] * 25}
    data = datasets.Dataset.from_dict(columns)
    dataset = read(data, tmp_path, "label")
    assert dataset.num_classes == 2
    splits = datasets.DatasetDict({"train": data, "test": data})
    assert len(read(splits, tmp_path, "label").test) == 50


@pytest.mark.parametrize(
    ("data", "code", "name"),
    [
        (object(), ErrorCode.INVALID_VALUE, "object"),
        ({"x": [[1], [1, 2]], "y": X}, ErrorCode.INVALID_DATA, "x"),
        (X, ErrorCode.INVALID_VALUE, "ndarray"),
    ],
)
def test_unsupported_data_are_refused(data, code, name, tmp_path):
    with refused(code, name):
        read(data, tmp_path)


def test_data_are_written_beside_the_results_and_settings_are_passed_on(tmp_path):
    options = call_options(
        "train", {"data": {"x": X, "y": Y}, "out": tmp_path / "run", "epochs": 2}
    )
    assert isinstance(options, TrainOptions)
    path = Path(read_spec(options).dataset.path or "")
    assert path.parent == tmp_path / FOLDER
    assert call_options("train", {"data": {"window": 16}}).settings == {"data": {"window": 16}}


def test_interrupted_save_leaves_no_data(tmp_path):
    class Interrupted:
        _fingerprint = "f"

        def save_to_disk(self, path):
            Path(path).mkdir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spec_of(Interrupted(), None, tmp_path)
    assert list(tmp_path.iterdir()) == []
