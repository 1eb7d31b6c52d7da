"""A saved model used on new samples: as a user has them, and without the data it learnt from."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from local import small_spec, train
from PIL import Image

from raybench.data.load import build_dataset
from raybench.models.find import load_workload_dataset
from raybench.models.model_data import ModelData
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.errors import ErrorCode
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


def told_of(spec: DatasetSpec, folder: Path) -> tuple[ModelData, object]:
    """Return the saved description of a dataset, written and read."""
    dataset = build_dataset(spec)
    file = folder / DATA_FILE
    file.write_text(ModelData.of(dataset, spec).model_dump_json())
    return ModelData.read(file), dataset


def test_a_saved_model_names_classes_of_new_rows(framework: str, tmp_path: Path) -> None:
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
    file.unlink()  # the data may be gone
    model = load_model(tmp_path, spec)
    found = model.raybench.predict(frame.drop(columns="kind"), batch_size=32)
    assert found.shape == (90,)
    assert set(found) <= {"rose", "daisy"}
    by_arrays = model.raybench.outputs(np.asarray(dataset.test.inputs))
    totals = trainer.evaluate("test", slice(0, len(dataset.test)))
    right = float((by_arrays.argmax(axis=1) == dataset.test.labels).sum())
    assert totals.value == pytest.approx(right, abs=1e-4)
    one = model.raybench.outputs([{"width": 2.5, "colour": "green"}])  # a name it has not seen
    assert one.shape == (1, 2)
    with refused(ErrorCode.UNKNOWN_NAME, "colour"):
        model.raybench.predict({"width": [1.0]})


def test_rows_become_the_features_that_were_trained_on(tmp_path: Path) -> None:
    file = tmp_path / "flowers.csv"
    frame = flowers().drop(columns="kind")
    frame.to_csv(file, index=False)
    known, dataset = told_of(DatasetSpec(name="csv", path=str(file), label="price"), tmp_path)
    made = {row.tobytes() for row in known.inputs(frame)}
    for split in (dataset.train, dataset.validation, dataset.test):
        assert {row.tobytes() for row in np.asarray(split.inputs)} <= made
    prices = known.answers(np.asarray(dataset.train.labels)[:, None])
    assert set(prices.round(1)) <= set(frame["price"].to_numpy(np.float32).round(1))
    with refused(ErrorCode.INVALID_DATA, "width"):
        known.inputs([{"width": "wide", "colour": "red"}])


def test_texts_and_pictures_become_what_was_trained_on(tmp_path: Path) -> None:
    for number in range(24):
        kind = ("good", "bad")[number % 2]
        (tmp_path / "texts" / kind).mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / kind / f"{number}.txt").write_text(f"it was {kind} n{number % 5}")
        (tmp_path / "pictures" / kind).mkdir(parents=True, exist_ok=True)
        image = Image.new("RGB", (8, 6), (number * 9, 20, 7 * (number % 2)))
        image.save(tmp_path / "pictures" / kind / f"{number}.png")
    texts = DatasetSpec(name="text", path=str(tmp_path / "texts"), sequence_length=6)
    known, dataset = told_of(texts, tmp_path)
    rows = {tuple(row) for row in known.inputs([f"it was good n{one}" for one in range(5)])}
    good = dataset.train.inputs[dataset.train.labels == 1]
    assert {tuple(row) for row in np.asarray(good)} <= rows
    assert list(known.answers(np.array([[0.0, 1.0], [1.0, 0.0]]))) == ["good", "bad"]
    images = DatasetSpec(name="image_folder", path=str(tmp_path / "pictures"), image_size=4)
    known, dataset = told_of(images, tmp_path)
    files = sorted((tmp_path / "pictures").glob("*/*.png"))
    made = {image.tobytes() for image in known.inputs(files)}
    assert {image.tobytes() for image in np.asarray(dataset.train.inputs)} <= made
    with refused(ErrorCode.INVALID_DATA, "nowhere.png"):
        known.inputs(["nowhere.png"])


def test_a_damaged_description_is_refused(tmp_path: Path) -> None:
    (tmp_path / DATA_FILE).write_text('{"name": "csv", "task": 3}')
    with refused(ErrorCode.INVALID_FILE, "model.json", "task"):
        ModelData.read(tmp_path / DATA_FILE)


def of_arrays(kind: str | None, **more: object) -> ModelData:
    about = {"name": "npz", "task": "classification", "num_classes": 2, "num_outputs": 2}
    about |= dict.fromkeys(("label_scale", "label_offset", "encoding", "vocabulary_size"))
    about |= {"class_names": (), "vocabulary": (), "resize": "stretch", "kind": kind}
    return ModelData.model_validate(about | {"input_shape": (2,)} | more)


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("pixels", [[0, 255], [0, 256]], "sample 1"),
        ("tokens", [[1, -1]], "sample 0"),
        ("numbers", [[1.0, np.nan]], "sample 0"),
        ("numbers", [[1.0], [1.0, 2.0]], ""),
        ("numbers", [[3.0]], "(2,)"),
        ("pixels", "one.png", "[image]"),
    ],
)
def test_arrays_that_would_become_other_numbers_are_refused(
    kind: str, given: list[object], said: str
) -> None:
    with refused(ErrorCode.INVALID_DATA, said):
        of_arrays(kind).inputs(given)


def test_arrays_by_name_fit_the_weights() -> None:
    named = of_arrays(None, input_shape={"a": (2,), "ids": (1,)})
    found = named.inputs({"a": np.zeros((3, 2)), "ids": np.zeros((3, 1), np.int64)})
    assert (found["a"].dtype, found["ids"].dtype) == (np.float32, np.int64)


def test_classes_without_names_are_numbers_not_words_of_the_texts() -> None:
    topics = of_arrays("tokens", vocabulary=("<padding>", "<unknown>", "oil"))
    assert topics.answers(np.array([[0.0, 1.0], [1.0, 0.0]])).tolist() == [1, 0]
    with refused(ErrorCode.INVALID_DATA, "sample 0"):
        topics.inputs([[2, 3]])


def test_texts_and_rows_that_are_none_are_one_sentence(tmp_path: Path) -> None:
    texts = of_arrays(
        "tokens", encoding={"tokens": "words"}, vocabulary=("<padding>", "<unk>", "oil")
    )
    assert texts.inputs(np.array(["oil oil", "sand"])).tolist() == [[2, 2], [1, 0]]
    with refused(ErrorCode.INVALID_VALUE):
        texts.inputs([[1, 2]])
    column = {"kind": "number", "name": "x", "mean": 0.0, "offset": 0.0, "scale": 1.0}
    rows = of_arrays("numbers", encoding={"columns": [column | {"missing": 0.5}]})
    assert rows.inputs({" x ": [1.0, None]}).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    with refused(ErrorCode.UNKNOWN_NAME, "x"):
        rows.inputs({"x": [1.0], "x ": [2.0]})
