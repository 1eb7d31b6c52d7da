"""Folders of images: by class, with or without splits, or with a metadata table."""

import collections
from functools import partial

import numpy as np
import pytest
from PIL import Image

from raybench.data.memory import is_mapped
from raybench.data.store import store_folder
from raybench.models.find import load_workload_dataset
from raybench.models.model_data import ModelData
from raybench.spec.errors import ErrorCode
from raybench.spec.run import DatasetSpec
from tests.data import making
from tests.data.making import sizes, write_grey
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("own_store")
load = partial(making.load, name="image_folder")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "pictures"


def classes(folder, counts, first=0):
    for name, count in counts.items():
        for number in range(count):
            write_grey(folder / name / f"{number:03d}.png", first)
            first += 1


def values(split):
    return split.array[:, 0, 0, 0].tolist()


def pairs(split):
    return sorted(zip(values(split), split.labels.tolist(), strict=True))


def test_a_folder_with_all_splits_is_read(folder):
    classes(folder / "train", {"cat": 3, "dog": 4})
    classes(folder / "val", {"dog": 2}, 50)
    classes(folder / "Test", {"cat": 1, "dog": 1}, 60)
    dataset = load(folder)
    assert (dataset.name, dataset.num_classes) == ("image_folder", 2)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.input_shape == (4, 6, 1)
    assert pairs(dataset.train) == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (6, 1)]
    assert pairs(dataset.validation) == [(50, 1), (51, 1)]
    assert pairs(dataset.test) == [(60, 0), (61, 1)]
    assert not dataset.train.array.flags.owndata, "mapped, not copied"
    with refused(ErrorCode.CONFLICT, "validation_size 2", folder):
        load(folder, validation_size=2)


def test_a_folder_without_splits_is_split_by_seed_and_stratified(folder):
    classes(folder, {"a": 100, "b": 50, "c": 50, "rare": 1})
    held_out = {"validation_size": 0.2, "test_size": 20}
    dataset = load(folder, **held_out)
    parts = list(dataset.splits.values())
    assert sizes(dataset) == [141, 40, 20]
    together = sorted(value for part in parts for value in values(part))
    assert together == list(range(201)), "no sample is in two splits"
    counts = [collections.Counter(part.labels.tolist()) for part in parts]
    for count, expected in zip(counts[1:], ([20, 10, 10], [10, 5, 5]), strict=True):
        assert all(abs(count[label] - size) <= 1 for label, size in enumerate(expected)), counts
    assert counts[0][3] == 1, "a class of one sample is in the training split"
    same_seed, other_seed = load(folder, **held_out), load(folder, **held_out, split_seed=1)
    assert values(same_seed.test) == values(dataset.test)
    assert values(other_seed.test) != values(dataset.test)
    smaller = load(folder, validation_size=10, test_size=20)
    assert values(smaller.test) == values(dataset.test), "independent of the validation size"
    assert len(list(store_folder().glob("*/about.json"))) == 2
    limited = load(folder, limit=20)
    assert np.bincount(limited.train.labels)[:3].tolist() == pytest.approx([10, 5, 5], abs=1)


def test_workers_map_the_store_without_copying(folder, tmp_path, monkeypatch):
    classes(folder, {"a": 20, "b": 20})
    monkeypatch.chdir(tmp_path)
    spec = DatasetSpec(
        name="image_folder", path=folder.name, image_size=8, class_weights="balanced"
    )
    _, dataset = load_workload_dataset("mnist_small", spec, shared=tmp_path / "session")
    assert is_mapped(dataset.train.array)
    shared_files = list((tmp_path / "session").iterdir())
    assert [file.suffix for file in shared_files] == [".pin"], "only the name of the mapped entry"


def test_the_white_level_of_16_bit_images_is_kept(folder):
    for number in range(20):
        (folder / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(np.full((4, 6), 4000 - number, np.uint16))
        image.save(folder / "ab"[number % 2] / f"{number}.png")
    dataset = load(folder)
    assert (dataset.encoding, dataset.train.array.min()) == ({"white": 4095}, 248)
    data = ModelData.of(dataset, DatasetSpec(name="image_folder", path=str(folder)))
    assert data.inputs([str(folder / "a" / "0.png")]).max() == 249
    assert load(folder, white=65535).train.array.max() == 16


def test_nested_folders_are_read_and_other_files_reported(folder, capsys):
    classes(folder / "cat", {"deep/er": 2, ".": 1})
    classes(folder, {"dog": 3}, 10)
    (folder / "cat" / "notes.txt").write_text("no image")
    (folder / ".DS_Store").write_text("hidden")
    assert sum(sizes(load(folder, validation_size=1, test_size=1))) == 6
    messages = capsys.readouterr().err
    assert "1 files" in messages
    assert "6 images" in messages
    load(folder, validation_size=1, test_size=1)
    assert capsys.readouterr().err == "", "a second study prints nothing"


def test_a_metadata_file_gives_labels_and_targets(folder):
    for number in range(9):
        write_grey(folder / "images" / f"{number}.png", number)
    rows = [f"images/{number}.png,{number % 2},{number / 4}" for number in range(8)]
    (folder / "metadata.csv").write_text("file_name, label ,weight\n" + "\n".join(rows))
    with refused(ErrorCode.CONFLICT, "metadata.csv", "file_name"):
        load(folder)
    load_csv = partial(making.load, folder, image="file_name")
    classified = load_csv(label="label")
    assert classified.class_names == ("0", "1")
    assert all(value % 2 == label for value, label in pairs(classified.train))
    scaled = load_csv(label="weight")
    assert (scaled.task, scaled.num_classes) == ("regression", None)
    targets = scaled.original_labels(scaled.train.labels)
    np.testing.assert_allclose(targets, np.array(values(scaled.train)) / 4, atol=1e-5)
    assert abs(scaled.train.labels.mean()) < 1e-6
    assert load_csv(label=["label", "weight"]).num_outputs == 2


@pytest.mark.parametrize(
    ("files", "code", "names"),
    [
        ([], "NOT_FOUND", []),
        (["cat/1.txt"], "NOT_FOUND", [1]),
        (["cat/1.png", "stray.png"], "CONFLICT", ["stray.png"]),
        (["test/cat/1.png"], "MISSING", ["test", "train"]),
        (
            ["train/cat/1.png", "train/dog/1.png", "test/catt/1.png"],
            "INVALID_DATA",
            ["test/catt/1.png", "'catt'", "'cat'?"],
        ),
    ],
)
def test_invalid_folders_are_refused(folder, files, code, names):
    for name in files:
        write_grey(folder / name)
    with refused(ErrorCode[code], folder, *names):
        load(folder)
