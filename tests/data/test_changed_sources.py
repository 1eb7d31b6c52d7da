"""What lies under the store has changed, is linked, or is asked for what it has not."""

import os

import numpy as np
import pytest

from raybench.commands import cli
from raybench.data.load import build_dataset
from raybench.data.store import pinning, remove_entry, store_folder
from raybench.spec.documents import parse_yaml
from raybench.spec.errors import ErrorCode
from raybench.spec.run import DatasetSpec
from tests.data.making import close_datasets, grey, load
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("own_store")


def test_images_that_a_table_names_are_read_anew_when_they_change(tmp_path):
    lines = [f"{row}.png,{'ab'[row % 2]}" for row in range(20)]
    (tmp_path / "table.csv").write_text("\n".join(["image,kind", *lines]))
    for value in (7, 200):
        for row in range(20):
            grey(value).save(tmp_path / f"{row}.png")
        found = load(tmp_path / "table.csv", "csv", image="image", label="kind")
        assert (found.train.read(np.arange(16)) == value).all()


def test_a_session_goes_on_with_the_data_that_it_began_with(tmp_path):
    file, session = tmp_path / "d.npz", tmp_path / "session"
    keys = {"name": "npz", "path": str(file)}

    def seen():
        """What a new worker process reads."""
        with pinning(session):
            return float(build_dataset(DatasetSpec(**keys)).train.array[0, 0])

    np.savez(file, x=np.full((50, 3), 1.0), y=np.arange(50) % 2)
    assert seen() == 1.0
    np.savez(file, x=np.full((50, 3), 2.0), y=np.arange(50) % 2)
    assert seen() == 1.0
    assert build_dataset(DatasetSpec(**keys)).train.array[0, 0] == 2.0, "another session's"
    assert seen() == 1.0, "what is in use is not removed"
    close_datasets()
    for entry in store_folder().glob("npz-*/"):
        assert remove_entry(entry)
    with refused(ErrorCode.STUDY_CHANGED, file):
        seen()


def test_files_of_one_name_size_and_time_are_two(tmp_path):
    for value in (1.0, 2.0):
        folder = tmp_path / str(value)
        folder.mkdir()
        np.savez(folder / "data.npz", x=np.full((50, 3), value), y=np.arange(50) % 2)
        os.utime(folder / "data.npz", (1e9, 1e9))
        assert load(folder / "data.npz", "npz").train.array[0, 0] == value


def test_weights_that_are_none_are_named(tmp_path):
    weights = np.where(np.arange(50) == 5, np.nan, 1.0)
    np.savez(tmp_path / "w.npz", x=np.ones((50, 3)), y=np.arange(50) % 2, w=weights)
    with refused(ErrorCode.INVALID_DATA, "sample 5", "'w'", "nan"):
        load(tmp_path / "w.npz", "npz", weight="w")


@pytest.mark.parametrize(
    ("name", "key"), [("image_folder", "label"), ("text", "label"), ("npz", "text")]
)
def test_a_key_that_would_do_nothing_is_refused(tmp_path, name, key):
    with refused(ErrorCode.UNSUPPORTED, f"dataset.{key}", name):
        load(tmp_path, name, **{key: "column"})


def test_init_writes_the_label_and_task_that_were_asked_for(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.ones((50, 3)), y=np.arange(50) % 2, z=np.arange(50))
    (tmp_path / "pictures").mkdir()
    lines = [f"{row}.png,{20 + row}" for row in range(20)]
    (tmp_path / "pictures/metadata.csv").write_text("\n".join(["file_name,age", *lines]))
    for row in range(20):
        grey(row).save(tmp_path / f"pictures/{row}.png")
    for data, label in {"d.npz": ["--label", "z"], "pictures": []}.items():
        out = tmp_path / f"{data}.yaml"
        asked = [*label, "--task", "regression", "--out", str(out)]
        assert cli.main(["init", str(tmp_path / data), *asked]) == 0
        dataset = parse_yaml(out.read_text(), "out")["dataset"]
        assert build_dataset(DatasetSpec.model_validate(dataset)).task == "regression"
