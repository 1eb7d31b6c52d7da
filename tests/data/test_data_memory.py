"""Data that would not fit into memory is refused before anything is allocated."""

from types import SimpleNamespace

import numpy as np
import pytest

from raybench.data import memory
from raybench.data.load import load_dataset
from raybench.data.memory import available_bytes
from raybench.spec.errors import UserError
from raybench.spec.run import DatasetSpec


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "digits", "image_size": 100_000}, "dataset.image_size 100000 needs 16,735.9 GiB"),
        ({"name": "digits", "image_size": 2**62}, "dataset.image_size 4611686018427387904 needs"),
        ({"name": "synthetic", "shape": [10**6, 10**6, 3]}, "of shape [1000000, 1000000, 3] needs"),
        ({"name": "synthetic", "num_samples": 10**15}, "synthetic samples"),
        ({"name": "synthetic", "validation_size": 10**15}, "synthetic samples"),
        ({"name": "digits", "repeat": 10**12}, "dataset.repeat 1000000000000"),
    ],
)
def test_what_memory_cannot_hold_is_refused_with_its_size(spec, words):
    with pytest.raises(UserError) as caught:
        load_dataset(DatasetSpec(**spec))
    assert words in str(caught.value)
    assert "GiB left" in str(caught.value)


def test_mnist_is_refused_before_it_is_scaled(tmp_path, monkeypatch):
    pair = np.zeros((40, 28, 28), np.uint8), np.zeros(40, np.uint8)
    np.savez(
        tmp_path / "mnist.npz", x_train=pair[0], y_train=pair[1], x_test=pair[0], y_test=pair[1]
    )
    monkeypatch.setenv("RAYBENCH_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"dataset\.image_size 100000 needs"):
        load_dataset(DatasetSpec(name="mnist", image_size=100_000, validation_size=5))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 8 GiB left, and a folder for its container's files."""
    left = SimpleNamespace(available=8 * 2**30)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: left)
    monkeypatch.setattr(memory, "_CGROUP_FOLDER", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "no_groups")
    (tmp_path / "cgroup" / "memory").mkdir(parents=True)
    return tmp_path / "cgroup"


def test_the_machines_memory_counts_without_a_container(machine):
    assert available_bytes() == 8 * 2**30


@pytest.mark.parametrize(
    ("limit", "left"), [("max", 8 * 2**30), (str(2**31), 2**31 - 2**30 + 2**28), ("1", 0)]
)
def test_a_containers_limit_counts(machine, limit, left):
    (machine / "memory.max").write_text(f"{limit}\n")
    (machine / "memory.current").write_text(f"{2**30}\n")
    (machine / "memory.stat").write_text(f"anon 5\ninactive_file {2**28}\n")
    assert available_bytes() == left


@pytest.mark.parametrize(
    ("groups", "base"), [("0::/job/step\n", ""), ("4:cpu,memory:/job/step\n", "memory")]
)
def test_a_container_within_others_counts(machine, tmp_path, monkeypatch, groups, base):
    (tmp_path / "groups").write_text(groups)
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "groups")
    job = machine / base / "job"
    (job / "step").mkdir(parents=True)
    limit = "memory.limit_in_bytes" if base else "memory.max"
    use = "memory.usage_in_bytes" if base else "memory.current"
    for folder, most in ((job, 2**30), (job / "step", 2**32)):
        (folder / limit).write_text(f"{most}\n")
        (folder / use).write_text("0\n")
        (folder / "memory.stat").write_text("inactive_file 0\n")
    assert available_bytes() == 2**30


def test_a_container_of_the_first_kind_counts(machine):
    for name, text in (
        ("limit_in_bytes", str(2**31)),
        ("usage_in_bytes", str(2**30)),
        ("stat", "total_inactive_file 0"),
    ):
        (machine / "memory" / f"memory.{name}").write_text(f"{text}\n")
    assert available_bytes() == 2**30
