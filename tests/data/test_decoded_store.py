"""The store of decoded datasets: built once, written atomically, keyed by its files."""

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


def test_a_stored_dataset_is_built_once_and_mapped(own_store, data):
    for build in (write, never):
        entry = stored(source(data, image_size=8), build)
        assert entry.about == {"class_names": ["a", "b"]}
        np.testing.assert_array_equal(entry.arrays["images"], np.full((100, 4), 7))
        np.testing.assert_array_equal(entry.arrays["labels"], np.arange(100))
    entry.arrays["images"][:] = 0  # changes only this process
    np.testing.assert_array_equal(stored(source(data, image_size=8), never).arrays["images"], 7)
    about = json.loads((entry.folder / "about.json").read_text())
    assert about["path"] == str(data)
    assert about["options"] == {"image_size": 8}
    assert about["samples"] == 100


def test_the_key_depends_on_files_and_options(tmp_path, data):
    keys = {source(data).key, source(data, image_size=8).key, source(data, image_size=9).key}
    os.utime(data, (1, 1))
    keys.add(source(data).key)
    data.write_text("longer than it was")
    os.utime(data, (1, 1))
    keys.add(source(data).key)
    (tmp_path / "elsewhere").mkdir()
    keys.add(source(data.rename(tmp_path / "elsewhere" / "data.txt")).key)
    assert len(keys) == 6


def test_a_changed_file_is_read_again_and_its_old_entry_removed(own_store, data):
    old = stored(source(data), write).folder
    other = stored(source(data, image_size=8), write).folder
    os.utime(other.parent / old.name / "about.json", (1e9, 1e9))
    data.write_text("changed under the cache")
    rebuilt = stored(source(data), write)
    assert {entry.folder for entry in list_entries(own_store)} == {rebuilt.folder, other}


def test_the_second_of_two_concurrent_builders_waits(own_store, data, capsys):
    """Threads can replace processes here, because the lock belongs to an open file."""
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
        first_entry = threads.submit(stored, source(data), build_slowly)
        second_entry = threads.submit(second)
        for entry in (first_entry.result(), second_entry.result()):
            assert entry.arrays["images"].sum() == 2800
    assert "toy" in capsys.readouterr().err


def test_remains_of_a_killed_builder_are_removed(own_store, data):
    partial = own_store / f"{source(data).key}.part"
    for clean_up in (remove_unfinished, lambda _: stored(source(data), write)):
        partial.mkdir(parents=True)
        (partial / "images.npy").write_bytes(bytes(400))
        clean_up(own_store)
        assert not partial.exists()


def test_a_removed_entry_stays_readable_where_it_is_open(own_store, data):
    entry = stored(source(data), write)
    remove_entry(entry.folder)
    assert (list_entries(own_store), list(own_store.glob("*.part"))) == ([], [])
    assert entry.arrays["images"].sum() == 2800
    assert stored(source(data), write).arrays["images"].sum() == 2800


@pytest.mark.parametrize("moment", ["reserving", "writing"])
def test_a_full_disk_is_refused(own_store, data, monkeypatch, moment):
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


def test_an_invalid_cache_folder_is_refused(data, monkeypatch):
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


def test_changed_images_of_a_table_are_read_again(tmp_path, own_store):
    lines = [f"{row}.png,{'ab'[row % 2]}" for row in range(20)]
    (tmp_path / "table.csv").write_text("\n".join(["image,kind", *lines]))
    for value in (7, 200):
        for row in range(20):
            write_grey(tmp_path / f"{row}.png", value)
        dataset = load(tmp_path / "table.csv", "csv", image="image", label="kind")
        assert (dataset.train.read(np.arange(16)) == value).all()


def test_a_session_keeps_the_data_it_began_with(tmp_path, own_store):
    file, session = tmp_path / "d.npz", tmp_path / "session"
    keys = {"name": "npz", "path": str(file)}

    def value_in_worker():
        """Return the first value that a new worker process reads."""
        with pinning(session):
            return float(build_dataset(DatasetSpec(**keys)).train.array[0, 0])

    np.savez(file, x=np.full((50, 3), 1.0), y=np.arange(50) % 2)
    assert value_in_worker() == 1.0
    np.savez(file, x=np.full((50, 3), 2.0), y=np.arange(50) % 2)
    assert value_in_worker() == 1.0
    other_session = build_dataset(DatasetSpec(**keys))
    assert other_session.train.array[0, 0] == 2.0, "the new file is read"
    assert value_in_worker() == 1.0, "an entry used today is not removed"
    for entry in store_folder().glob("npz-*/"):
        remove_entry(entry)
    with refused(ErrorCode.STUDY_CHANGED, file):
        value_in_worker()
