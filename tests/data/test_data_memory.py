"""Data larger than memory are refused before anything is allocated."""

from types import SimpleNamespace

import pytest

from raybench.data import memory
from raybench.data.load import load_dataset
from raybench.data.memory import available_bytes
from raybench.spec.errors import ErrorCode
from raybench.spec.run import DatasetSpec
from tests.refusals import refused


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ({"name": "digits", "image_size": 2**62}, "dataset.image_size 4611686018427387904"),
        ({"name": "synthetic", "shape": [10**6, 10**6, 3]}, "[1000000, 1000000, 3]"),
    ],
)
def test_data_larger_than_memory_are_refused(spec, value):
    with refused(ErrorCode.NO_ROOM, value, "GiB"):
        load_dataset(DatasetSpec(**spec))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 8 GiB of free memory; return the folder of its cgroup files."""
    left = SimpleNamespace(available=8 * 2**30)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: left)
    monkeypatch.setattr(memory, "_CGROUP_FOLDER", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "no_groups")
    (tmp_path / "cgroup" / "memory").mkdir(parents=True)
    return tmp_path / "cgroup"


FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}


def limit(folder, version, most, used=0, files=0):
    """Write the memory files of a cgroup of version 1 or 2."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, number in zip(FILES[version], (most, used), strict=True):
        (folder / name).write_text(f"{number}\n")
    total = "total_" if version == 1 else ""
    (folder / "memory.stat").write_text(f"anon 5\n{total}inactive_file {files}\n")


@pytest.mark.parametrize(
    ("most", "left"), [("max", 8 * 2**30), (2**31, 2**31 - 2**30 + 2**28), (1, 0)]
)
@pytest.mark.parametrize(("version", "base"), [(1, "memory"), (2, "")])
def test_the_memory_limit_of_a_container_counts(machine, version, base, most, left):
    assert available_bytes() == 8 * 2**30, "without a limit"
    limit(machine / base, version, most, 2**30, 2**28)
    assert available_bytes() == left


@pytest.mark.parametrize(
    ("version", "base", "groups"),
    [(1, "memory", "4:cpu,memory:/job/step\n"), (2, "", "0::/job/step\n")],
)
def test_limits_of_parent_containers_count(machine, tmp_path, monkeypatch, version, base, groups):
    (tmp_path / "groups").write_text(groups)
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "groups")
    limit(machine / base / "job", version, 2**30)
    limit(machine / base / "job" / "step", version, 2**32)
    assert available_bytes() == 2**30
