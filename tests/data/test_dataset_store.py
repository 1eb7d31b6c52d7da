"""Decoded datasets in the store, and datasets that a session shares: built once, written
atomically, and mapped by all workers."""

import errno
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raybench.data import store
from raybench.data.dataset import Dataset, Split, about_dataset, all_arrays
from raybench.data.load import build_dataset
from raybench.data.memory import is_mapped
from raybench.data.store import (
    Source,
    file_at,
    list_entries,
    list_files,
    open_shared,
    pinning,
    remove_entry,
    remove_unfinished,
    share,
    shared_key,
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


def never(*writer):
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


def dataset(size=64):
    rng = np.random.default_rng(0)

    def random_split():
        inputs = rng.integers(0, 256, (size, 8, 8, 1), dtype=np.uint8)
        return Split(inputs, rng.integers(0, 10, size))

    return Dataset("own", 10, random_split(), random_split(), random_split(), repeat=3)


def named():
    ids, image = np.arange(15, dtype=np.int32).reshape(5, 3), np.ones((5, 2, 2, 1), np.uint8)
    numbers = np.arange(5, dtype=np.float32)
    split = Split({"ids": ids, "image": image}, numbers, np.ones(5, np.float32))
    fields = {"task": "regression", "vocabulary": ("a", "b")}
    fields |= {"label_scale": np.float32(2), "label_offset": np.asarray([1.5], np.float32)}
    return Dataset("own", None, split, split, Split(image, numbers), **fields)


def assert_equal(dataset, expected):
    assert about_dataset(dataset) == about_dataset(expected)
    assert all_arrays(dataset).keys() == all_arrays(expected).keys()
    for name, array in all_arrays(expected).items():
        np.testing.assert_array_equal(all_arrays(dataset)[name], array)


def test_a_shared_dataset_equals_the_built_one(tmp_path):
    assert_equal(open_shared(tmp_path / "named", named), named())
    expected = dataset()
    mirrored = Split(np.asfortranarray(expected.train.inputs)[::-1], expected.train.labels[::-1])
    expected = replace(expected, train=mirrored, test=expected.test.take(slice(0)))
    assert_equal(open_shared(tmp_path / "a", lambda: expected), expected)
    opened = open_shared(tmp_path / "a", never)
    assert_equal(opened, expected)
    assert opened.train.array.flags.c_contiguous
    share(expected, tmp_path / "b")
    share(dataset(3), tmp_path / "b")  # exists already
    opened = open_shared(tmp_path / "b", never)
    assert_equal(opened, expected)
    assert is_mapped(opened.train.array), "processes share its pages"


def test_with_a_full_disk_the_data_stay_private(tmp_path, monkeypatch):
    def full(file, array):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.np, "save", full)
    assert_equal(open_shared(tmp_path / "x", dataset), dataset())
    assert [path.name for path in tmp_path.iterdir()] == ["x.lock"]


def test_a_dataset_on_demand_is_built_by_each_process(tmp_path):
    class OnDemand:
        shape, dtype = (64, 8, 8, 1), np.uint8

        def __getitem__(self, rows):
            return expected.train.array[rows]

    expected, built = dataset(), []

    def build():
        built.append(replace(expected, train=Split(OnDemand(), expected.train.labels)))
        return built[-1]

    assert [open_shared(tmp_path / "x", build) is built[-1] for _ in range(2)] == [True, True]
    assert len(built) == 2, "each process builds it once"
    share(built[0], tmp_path / "y")
    assert open_shared(tmp_path / "y", build) is built[2]
    assert not list(tmp_path.glob("*/*.npy"))


def test_the_shared_key_depends_only_on_the_data():
    digits, of_workload = DatasetSpec(name="digits", limit=100), DatasetSpec(name="workload")
    assert shared_key("cnn7", digits) == shared_key("mnist_small", digits)
    limited = of_workload.model_copy(update={"limit": 5})
    keys = {shared_key("a:Net", spec) for spec in (of_workload, digits, limited)}
    assert len(keys | {shared_key("b:Net", of_workload)}) == 4
    assert all(Path(key).name == key for key in keys)
