"""Datasets of Hugging Face's `datasets` in a folder; the library has no network access here."""

from functools import partial

import numpy as np
import pytest
from PIL import Image

from raybench.models.starter import summarize
from raybench.spec.errors import ErrorCode
from tests.data import making
from tests.data.making import sizes
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("own_store")
datasets = pytest.importorskip("datasets")


load = partial(making.load, name="huggingface")


def save(folder, splits, features):
    parts = {
        name: datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        for name, columns in splits.items()
    }
    datasets.DatasetDict(parts).save_to_disk(str(folder))
    return folder


def test_images_and_class_names_are_read(tmp_path):
    pictures = [Image.fromarray(np.full((4, 5, 3), number, np.uint8)) for number in range(12)]
    columns = {"img": pictures, "label": [0, 1] * 6}
    features = {"img": datasets.Image(), "label": datasets.ClassLabel(names=["ship", "car"])}
    save(tmp_path / "s", {"train": columns, "validation": columns}, features)
    dataset = load(tmp_path / "s")
    assert (dataset.class_names, dataset.input_shape) == (("ship", "car"), (4, 5, 3))
    assert sizes(dataset) == [11, 12, 1]
    np.testing.assert_array_equal(dataset.train.inputs[:, 0, 0, 0] % 2, dataset.train.labels)


def test_texts_with_a_hidden_test_split_are_read(tmp_path):
    columns = {"text": ["good film", "bad film"] * 10, "label": [1, 0] * 10}
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(num_classes=2)}
    secret = {"text": ["which film"] * 5, "label": [-1] * 5}
    save(tmp_path / "s", {"train": columns, "test": secret}, features)
    dataset = load(tmp_path / "s", sequence_length=2)
    assert sizes(dataset) == [16, 2, 2]
    words = [dataset.vocabulary[number] for number in dataset.train.inputs[:, 0]]
    assert [word == "good" for word in words] == dataset.train.labels.astype(bool).tolist()


def test_several_text_columns_are_not_reported_as_constant(tmp_path):
    columns = {
        "premise": [f"a man number {row} walks through the old town" for row in range(300)],
        "hypothesis": [f"somebody is outside with a dog on day {row}" for row in range(300)],
        "label": ["e", "n", "c"] * 100,
    }
    features = {name: datasets.Value("string") for name in columns}
    save(tmp_path / "s", {"train": columns}, features)
    with refused(ErrorCode.INVALID_DATA, "'premise'", "'hypothesis'"):
        load(tmp_path / "s", label="label")
    summary = summarize(tmp_path / "s", labels=["label"])
    assert summary.dataset["text"] == "premise"


def test_missing_datasets_are_refused(tmp_path):
    with refused(ErrorCode.NOT_FOUND, "no_such_owner/no_such_set"):
        load("no_such_owner/no_such_set")
    with refused(ErrorCode.NOT_FOUND, tmp_path):
        load(tmp_path)
