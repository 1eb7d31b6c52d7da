"""Datasets of the store: built once, whole or not there, another key when a file changes."""

import errno
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from raybench.data.load import build_dataset
from raybench.data.store import (
    Source,
    file_at,
    list_entries,
    list_files,
    pinning,
    remove_entry,
    remove_unfinished,
    store_folder,
    stored,
)
from raybench.spec.errors import ErrorCode
from raybench.spec.run import DatasetSpec
from tests.data.making import load, write_grey
from tests.refusals import refused


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("first")
    return path


def source(path, **options):
    return Source(name="toy", path=path, files=[file_at(path)], options=options)


def write(writer):
    writer.array("images", (100, 4), np.uint8)[:] = 7
    writer.save("labels", np.arange(100))
    return {"class_names": ["a", "b"]}


def never(writer):
    raise AssertionError("is there already")


def test_what_is_stored_is_built_once_and_mapped(own_store, data):
    for build in (write, never):
        found = stored(source(data, image_size=8), build)
        assert found.about == {"class_names": ["a", "b"]}
        np.testing.assert_array_equal(found.arrays["images"], np.full((100, 4), 7))
        np.testing.assert_array_equal(found.arrays["labels"], np.arange(100))
    found.arrays["images"][:] = 0  # stays in this process
    np.testing.assert_array_equal(stored(source(data, image_size=8), never).arrays["images"], 7)
    about = json.loads((found.folder / "about.json").read_text())
    assert about["path"] == str(data)
    assert about["options"] == {"image_size": 8}
    assert about["samples"] == 100


def test_the_key_is_of_files_and_options(tmp_path, data):
    keys = {source(data).key, source(data, image_size=8).key, source(data, image_size=9).key}
    os.utime(data, (1, 1))
    keys.add(source(data).key)
    data.write_text("longer than it was")
    os.utime(data, (1, 1))
    keys.add(source(data).key)
    (tmp_path / "elsewhere").mkdir()
    keys.add(source(data.rename(tmp_path / "elsewhere" / "data.txt")).key)
    assert len(keys) == 6


def test_a_changed_file_is_read_anew_and_its_old_content_removed(own_store, data):
    old = stored(source(data), write).folder
    other = stored(source(data, image_size=8), write).folder
    os.utime(other.parent / old.name / "about.json", (1e9, 1e9))
    data.write_text("changed under the cache")
    found = stored(source(data), write)
    assert {entry.folder for entry in list_entries(own_store)} == {found.folder, other}


def test_of_two_builders_at_once_the_second_waits_and_says_so(own_store, data, capsys):
    """Two threads stand for two processes: the lock belongs to an opened file."""
    is_building, is_waiting = threading.Event(), threading.Event()

    def build_slowly(writer):
        is_building.set()
        assert is_waiting.wait(60)
        return write(writer)

    def second():
        is_building.wait(60)
        assert remove_unfinished(own_store) == 0, "still being built"
        threading.Timer(0.2, is_waiting.set).start()
        return stored(source(data), never)

    with ThreadPoolExecutor() as threads:
        found = [
            threads.submit(one) for one in (lambda: stored(source(data), build_slowly), second)
        ]
        assert [one.result().arrays["images"].sum() for one in found] == [2800, 2800]
    assert "toy" in capsys.readouterr().err


def test_what_a_killed_builder_leaves_is_removed_by_the_next(own_store, data):
    left = own_store / f"{source(data).key}.part"
    for clean_up in (remove_unfinished, lambda _: stored(source(data), write)):
        left.mkdir(parents=True)
        (left / "images.npy").write_bytes(bytes(400))
        clean_up(own_store)
        assert not left.exists()


def test_an_entry_that_is_removed_stays_open_where_it_is(own_store, data):
    found = stored(source(data), write)
    remove_entry(found.folder)
    assert (list_entries(own_store), list(own_store.glob("*.part"))) == ([], [])
    assert found.arrays["images"].sum() == 2800
    assert stored(source(data), write).arrays["images"].sum() == 2800


@pytest.mark.parametrize("moment", ["reserving", "writing"])
def test_a_disk_that_others_have_filled_is_named(own_store, data, monkeypatch, moment):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    def write_more(writer):
        writer.array("images", (100, 4), np.uint8)
        return full() if moment == "writing" else {}

    if moment == "reserving":
        monkeypatch.setattr(os, "posix_fallocate", full)
    with refused(ErrorCode.NO_ROOM, "toy", own_store):
        stored(source(data), write_more)
    assert [path.suffix for path in own_store.iterdir()] == [".lock"]


def test_a_place_that_cannot_be_is_named(data, monkeypatch):
    monkeypatch.setenv("RAYBENCH_CACHE", f"{data}/below_a_file")
    with refused(ErrorCode.NOT_WRITABLE, "below_a_file", "RAYBENCH_CACHE"):
        stored(source(data), write)


def test_folders_are_listed_by_name_without_hidden_files(tmp_path):
    for name in ("b/2.png", "a/1.png", "a/.hidden", ".git/x", "b/deep/3.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [file.name for file in list_files(tmp_path)] == ["a/1.png", "b/2.png", "b/deep/3.png"]
    (tmp_path / "b" / "up").symlink_to(tmp_path)
    with refused(ErrorCode.INVALID_DATA, tmp_path / "b" / "up"):
        list_files(tmp_path)


def test_images_that_a_table_names_are_read_anew_when_they_change(tmp_path, own_store):
    lines = [f"{row}.png,{'ab'[row % 2]}" for row in range(20)]
    (tmp_path / "table.csv").write_text("\n".join(["image,kind", *lines]))
    for value in (7, 200):
        for row in range(20):
            write_grey(tmp_path / f"{row}.png", value)
        found = load(tmp_path / "table.csv", "csv", image="image", label="kind")
        assert (found.train.read(np.arange(16)) == value).all()


def test_a_session_goes_on_with_the_data_that_it_began_with(tmp_path, own_store):
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
    assert seen() == 1.0, "what was used today is not removed"
    for entry in store_folder().glob("npz-*/"):
        remove_entry(entry)
    with refused(ErrorCode.STUDY_CHANGED, file):
        seen()
