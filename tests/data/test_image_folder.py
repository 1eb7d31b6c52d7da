"""Folders of images as users have them: by class, with splits or without, or in a table."""

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


def test_a_folder_with_all_splits(folder):
    classes(folder / "train", {"cat": 3, "dog": 4})
    classes(folder / "val", {"dog": 2}, 50)
    classes(folder / "Test", {"cat": 1, "dog": 1}, 60)
    found = load(folder)
    assert (found.name, found.num_classes, found.class_names) == ("image_folder", 2, ("cat", "dog"))
    assert found.input_shape == (4, 6, 1)
    assert pairs(found.train) == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (6, 1)]
    assert pairs(found.validation) == [(50, 1), (51, 1)]
    assert pairs(found.test) == [(60, 0), (61, 1)]
    assert not found.train.array.flags.owndata, "mapped, not copied"
    with refused(ErrorCode.CONFLICT, "validation_size 2", folder):
        load(folder, validation_size=2)


def test_one_folder_is_cut_by_seed_with_every_class_by_its_share(folder):
    classes(folder, {"a": 100, "b": 50, "c": 50, "rare": 1})
    held_out = {"validation_size": 0.2, "test_size": 20}
    found = load(folder, **held_out)
    parts = list(found.splits.values())
    assert sizes(found) == [141, 40, 20]
    together = sorted(value for part in parts for value in values(part))
    assert together == list(range(201)), "one sample in two splits"
    counts = [collections.Counter(part.labels.tolist()) for part in parts]
    for count, wanted in zip(counts[1:], ([20, 10, 10], [10, 5, 5]), strict=True):
        assert all(abs(count[label] - size) <= 1 for label, size in enumerate(wanted)), counts
    assert counts[0][3] == 1, "what there is one of is trained on"
    again, other = load(folder, **held_out), load(folder, **held_out, split_seed=1)
    assert values(again.test) == values(found.test)
    assert values(other.test) != values(found.test)
    smaller = load(folder, validation_size=10, test_size=20)
    assert values(smaller.test) == values(found.test), "the test split moves with another's size"
    assert len(list(store_folder().glob("*/about.json"))) == 2
    few = load(folder, limit=20)
    assert np.bincount(few.train.labels)[:3].tolist() == pytest.approx([10, 5, 5], abs=1)


def test_workers_map_the_store_and_nothing_is_copied_into_the_session(
    folder, tmp_path, monkeypatch
):
    classes(folder, {"a": 20, "b": 20})
    monkeypatch.chdir(tmp_path)
    keys = {"path": folder.name, "image_size": 8, "class_weights": "balanced"}
    spec = DatasetSpec(name="image_folder", **keys)
    _, found = load_workload_dataset("mnist_small", spec, shared=tmp_path / "session")
    assert is_mapped(found.train.array)
    kept = list((tmp_path / "session").iterdir())
    assert [file.suffix for file in kept] == [".pin"], "the name of what is mapped, no more"


def test_a_study_of_images_of_16_bits_keeps_what_is_white(folder):
    for number in range(20):
        (folder / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(np.full((4, 6), 4000 - number, np.uint16))
        image.save(folder / "ab"[number % 2] / f"{number}.png")
    found = load(folder)
    assert (found.encoding, found.train.array.min()) == ({"white": 4095}, 248)
    data = ModelData.of(found, DatasetSpec(name="image_folder", path=str(folder)))
    assert data.inputs([str(folder / "a" / "0.png")]).max() == 249
    assert load(folder, white=65535).train.array.max() == 16


def test_nested_folders_and_other_files(folder, capsys):
    classes(folder / "cat", {"deep/er": 2, ".": 1})
    classes(folder, {"dog": 3}, 10)
    (folder / "cat" / "notes.txt").write_text("no image")
    (folder / ".DS_Store").write_text("hidden")
    assert sum(sizes(load(folder, validation_size=1, test_size=1))) == 6
    said = capsys.readouterr().err
    assert "1 files" in said
    assert "6 images" in said
    load(folder, validation_size=1, test_size=1)
    assert capsys.readouterr().err == "", "a second study has nothing to wait for"


def test_metadata_tells_labels_and_targets(folder):
    for number in range(9):
        write_grey(folder / "images" / f"{number}.png", number)
    rows = [f"images/{number}.png,{number % 2},{number / 4}" for number in range(8)]
    (folder / "metadata.csv").write_text("file_name, label ,weight\n" + "\n".join(rows))
    with refused(ErrorCode.CONFLICT, "metadata.csv", "file_name"):
        load(folder)
    load_csv = partial(making.load, folder, image="file_name")
    found = load_csv(label="label")
    assert found.class_names == ("0", "1")
    assert all(value % 2 == label for value, label in pairs(found.train))
    scaled = load_csv(label="weight")
    assert (scaled.task, scaled.num_classes) == ("regression", None)
    own = scaled.original_labels(scaled.train.labels)
    np.testing.assert_allclose(own, np.array(values(scaled.train)) / 4, atol=1e-5)
    assert abs(scaled.train.labels.mean()) < 1e-6
    assert load_csv(label=["label", "weight"]).num_outputs == 2


@pytest.mark.parametrize(
    ("files", "code", "names"),
    [
        ([], "NOT_FOUND", []),
        (["cat/1.txt"], "NOT_FOUND", [1]),
        (["test/cat/1.png"], "MISSING", ["test", "train"]),
        (
            ["train/cat/1.png", "train/dog/1.png", "test/catt/1.png"],
            "INVALID_DATA",
            ["test/catt/1.png", "'catt'", "'cat'?"],
        ),
    ],
)
def test_what_is_wrong_is_named(folder, files, code, names):
    for name in files:
        write_grey(folder / name)
    with refused(ErrorCode[code], folder, *names):
        load(folder)
