"""Saved models applied to new samples in the user's format, without the training data."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from local_runs import small_spec, train
from PIL import Image

from raybench.data.load import build_dataset
from raybench.models.find import load_workload_dataset
from raybench.models.model_data import ModelData
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.errors import ErrorCode
from raybench.spec.run import RunSpec
from raybench.training.saved import DATA_FILE, MODEL_FILES, load_model
from tests.refusals import refused


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYBENCH_CACHE", str(tmp_path / "cache"))


def flowers(rows: int = 90) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    width = rng.normal(3.0, 1.0, rows).round(2)
    colour = rng.choice(["red", "blue", "white"], rows)
    kind = np.where(width + (colour == "red") > 3.5, "rose", "daisy")
    frame = pd.DataFrame({"width": width, "colour": colour, "kind": kind, "price": 100 * width})
    frame.loc[::7, "width"] = np.nan
    return frame


def saved_description(spec: DatasetSpec, folder: Path) -> tuple[ModelData, object]:
    """Return the description of a dataset, after writing and reading it, and the dataset."""
    dataset = build_dataset(spec)
    file = folder / DATA_FILE
    file.write_text(ModelData.of(dataset, spec).model_dump_json())
    return ModelData.read(file), dataset


def test_saved_model_predicts_class_names_of_new_rows(framework, tmp_path):
    file = tmp_path / "flowers.csv"
    frame = flowers().drop(columns="price")
    frame.to_csv(file, index=False)
    data = DatasetSpec(name="csv", path=str(file), label="kind")
    spec = small_spec(framework, workload="mlp", dataset=data, epochs=1.0)
    _, trainer = train(spec)
    _, dataset = load_workload_dataset(spec.workload, data)
    with refused(ErrorCode.NOT_FOUND, MODEL_FILES[framework]):
        load_model(tmp_path, spec)
    (tmp_path / MODEL_FILES[framework]).write_bytes(trainer.save())
    (tmp_path / DATA_FILE).write_text(ModelData.of(dataset, data).model_dump_json())
    file.unlink()  # the data need not exist any more
    model = load_model(tmp_path, spec)
    predicted = model.raybench.predict(frame.drop(columns="kind"), batch_size=32)
    assert predicted.shape == (90,)
    assert set(predicted) <= {"rose", "daisy"}
    array_outputs = model.raybench.outputs(np.asarray(dataset.test.inputs))
    totals = trainer.evaluate("test", slice(0, len(dataset.test)))
    num_correct = float((array_outputs.argmax(axis=1) == dataset.test.labels).sum())
    assert totals.value == pytest.approx(num_correct, abs=1e-4)
    single_output = model.raybench.outputs([{"width": 2.5, "colour": "green"}])  # an unknown value
    assert single_output.shape == (1, 2)
    with refused(ErrorCode.UNKNOWN_NAME, "colour"):
        model.raybench.predict({"width": [1.0]})


def test_the_state_of_an_own_loop_is_named_only_if_it_was_saved(tmp_path):
    spec = RunSpec(workload="own.py:train")
    with refused(ErrorCode.UNSUPPORTED, "own.py:train", "no copy"):
        load_model(tmp_path, spec)
    (tmp_path / "state.npz").write_bytes(b"")
    with refused(ErrorCode.UNSUPPORTED, "own.py:train", "run.save is in state.npz"):
        load_model(tmp_path, spec)


def test_table_rows_become_the_trained_features(tmp_path):
    file = tmp_path / "flowers.csv"
    frame = flowers().drop(columns="kind")
    frame.to_csv(file, index=False)
    description, dataset = saved_description(
        DatasetSpec(name="csv", path=str(file), label="price"), tmp_path
    )
    encoded_rows = {row.tobytes() for row in description.inputs(frame)}
    for split in (dataset.train, dataset.validation, dataset.test):
        assert {row.tobytes() for row in np.asarray(split.inputs)} <= encoded_rows
    prices = description.answers(np.asarray(dataset.train.labels)[:, None])
    assert set(prices.round(1)) <= set(frame["price"].to_numpy(np.float32).round(1))
    with refused(ErrorCode.INVALID_DATA, "width"):
        description.inputs([{"width": "wide", "colour": "red"}])


def test_texts_and_images_become_the_trained_inputs(tmp_path):
    for number in range(24):
        kind = ("good", "bad")[number % 2]
        (tmp_path / "texts" / kind).mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / kind / f"{number}.txt").write_text(f"it was {kind} n{number % 5}")
        (tmp_path / "pictures" / kind).mkdir(parents=True, exist_ok=True)
        image = Image.new("RGB", (8, 6), (number * 9, 20, 7 * (number % 2)))
        image.save(tmp_path / "pictures" / kind / f"{number}.png")
    texts = DatasetSpec(name="text", path=str(tmp_path / "texts"), sequence_length=6)
    description, dataset = saved_description(texts, tmp_path)
    rows = {tuple(row) for row in description.inputs([f"it was good n{n}" for n in range(5)])}
    good = dataset.train.inputs[dataset.train.labels == 1]
    assert {tuple(row) for row in np.asarray(good)} <= rows
    assert list(description.answers(np.array([[0.0, 1.0], [1.0, 0.0]]))) == ["good", "bad"]
    images = DatasetSpec(name="image_folder", path=str(tmp_path / "pictures"), image_size=4)
    description, dataset = saved_description(images, tmp_path)
    files = sorted((tmp_path / "pictures").glob("*/*.png"))
    encoded_images = {image.tobytes() for image in description.inputs(files)}
    assert {image.tobytes() for image in np.asarray(dataset.train.inputs)} <= encoded_images
    with refused(ErrorCode.INVALID_DATA, "nowhere.png"):
        description.inputs(["nowhere.png"])


def test_damaged_description_is_refused(tmp_path):
    (tmp_path / DATA_FILE).write_text('{"name": "csv", "task": 3}')
    with refused(ErrorCode.INVALID_FILE, "model.json", "task"):
        ModelData.read(tmp_path / DATA_FILE)


def array_data(kind: str | None, **changes: object) -> ModelData:
    """Return the description of a dataset of arrays with two classes."""
    content = {"name": "npz", "task": "classification", "num_classes": 2, "num_outputs": 2}
    content |= dict.fromkeys(("label_scale", "label_offset", "encoding", "vocabulary_size"))
    content |= {"class_names": (), "vocabulary": (), "resize": "stretch", "kind": kind}
    return ModelData.model_validate(content | {"input_shape": (2,)} | changes)


def test_named_arrays_get_the_trained_types():
    description = array_data(None, input_shape={"a": (2,), "ids": (1,)})
    inputs = description.inputs({"a": np.zeros((3, 2)), "ids": np.zeros((3, 1), np.int64)})
    assert (inputs["a"].dtype, inputs["ids"].dtype) == (np.float32, np.int64)


TEXTS = {"encoding": {"tokens": "words"}, "vocabulary": ("<padding>", "<unk>", "oil")}
COLUMN = {"kind": "number", "name": "x", "mean": 0.0, "offset": 0.0, "scale": 1.0, "missing": 0.5}
ROWS = {"encoding": {"columns": [COLUMN]}}


@pytest.mark.parametrize(
    ("kind", "changes", "inputs", "code", "text"),
    [
        ("pixels", {}, [[0, 255], [0, 256]], ErrorCode.INVALID_DATA, "sample 1"),
        ("tokens", {}, [[1, -1]], ErrorCode.INVALID_DATA, "sample 0"),
        ("tokens", TEXTS | {"encoding": None}, [[2, 3]], ErrorCode.INVALID_DATA, "sample 0"),
        ("numbers", {}, [[1.0, np.nan]], ErrorCode.INVALID_DATA, "sample 0"),
        ("numbers", {}, [[1.0], [1.0, 2.0]], ErrorCode.INVALID_DATA, ""),
        ("numbers", {}, [[3.0]], ErrorCode.INVALID_DATA, "(2,)"),
        ("pixels", {}, "one.png", ErrorCode.INVALID_DATA, "[image]"),
        ("tokens", TEXTS, [[1, 2]], ErrorCode.INVALID_VALUE, ""),
        ("numbers", ROWS, {"x": [1.0], "x ": [2.0]}, ErrorCode.UNKNOWN_NAME, "x"),
    ],
)
def test_unsuitable_samples_are_refused(kind, changes, inputs, code, text):
    with refused(code, text):
        array_data(kind, **changes).inputs(inputs)


def test_samples_of_every_kind_are_encoded():
    texts = array_data("tokens", **TEXTS)
    assert texts.inputs(np.array(["oil oil", "sand"])).tolist() == [[2, 2], [1, 0]]
    rows = array_data("numbers", **ROWS)
    assert rows.inputs({" x ": [1.0, None]}).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert rows.answers(np.array([[0.0, 1.0], [1.0, 0.0]])).tolist() == [1, 0]
