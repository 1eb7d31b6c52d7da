"""Detection of GPUs by every command that trains: on this machine before Ray starts, on a cluster
after connecting. The driver, the frameworks and the cluster are faked."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raybench.cluster.layout import Capacity, Node, local_capacity
from raybench.commands import cli
from raybench.runs import diagnose as diagnose_body
from raybench.runs import preflight
from raybench.runs import scale as scale_body
from raybench.runs import train as train_body
from raybench.search import tune as tune_body
from raybench.spec.errors import ErrorCode, UserError
from raybench.training import machine
from raybench.training.machine import GpusSeen
from tests.test_json import run_json
from tests.training.fake_gpus import FakeNvml

TWO_GPUS = Capacity((Node(16, 2, "n", name="far"),), 0.0)
SPEC = "{framework: torch, epochs: 1, dataset: {name: digits, image_size: 28}}"
COMMANDS = {
    "train": (train_body, SPEC, "gpus_per_worker"),
    "diagnose": (diagnose_body, SPEC, "gpus_per_worker"),
    "tune": (
        tune_body,
        "space: {framework: [torch]}\nobjective: {target: 0.9}\n"
        "dataset: {name: digits, image_size: 28}\n",
        "fixed.gpus_per_worker",
    ),
    "scale": (scale_body, f"name: s\nnum_workers: [1]\nbase: {SPEC}", "base.gpus_per_worker"),
}
every_command = pytest.mark.parametrize("name", COMMANDS)


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, (_, text, _) in COMMANDS.items():
        Path(f"{name}.yaml").write_text(text)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake driver with two GPUs, of which both frameworks see none."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    frameworks_see(GpusSeen(), monkeypatch)


def frameworks_see(gpus: GpusSeen, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (preflight, machine):
        monkeypatch.setattr(place, "gpus_of_framework", lambda framework: gpus)


def dry_run(capsys: Any, name: str, *words: str, code: int = cli.DONE) -> dict[str, Any]:
    return run_json(capsys, name, f"{name}.yaml", "--dry-run", *words, code=code)


@pytest.mark.parametrize(("visible", "number"), [(None, 2), ("1", 1), ("", 0), ("0,1,5", 2)])
def test_gpus_are_counted_by_the_driver(visible, number, two_gpus, monkeypatch):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert local_capacity().gpus == number


@every_command
def test_the_plan_refuses_gpus_the_framework_does_not_see(name, two_gpus, capsys):
    setting = f"{COMMANDS[name][2]}=1"
    document = dry_run(capsys, name, "--set", setting, code=cli.WRONG_INPUT)
    assert document["error"]["code"] == ErrorCode.UNSUPPORTED


@every_command
def test_available_gpus_are_used_and_reported(name, two_gpus, capsys, monkeypatch):
    frameworks_see(GpusSeen(names=("A", "B")), monkeypatch)
    document = dry_run(capsys, name)
    assert any("2 GPUs" in sentence for sentence in document["answer"])
    assert "'gpus_per_worker': 1" in str(document["details"]["plan"])


BEGUN = "the run has started."


class Cluster:
    """Fake session of a cluster; any use of it ends the command."""

    is_local, capacity = False, TWO_GPUS

    def __getattr__(self, name: str) -> Any:
        raise UserError(BEGUN, ErrorCode.UNSUPPORTED)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def live_session(*arguments: object) -> Iterator[Cluster]:
        yield Cluster()

    for body, _, _ in COMMANDS.values():
        monkeypatch.setattr(body, "live_session", live_session)


@every_command
def test_unused_gpus_of_a_cluster_are_reported(name, cluster, capsys):
    words = [name, f"{name}.yaml", "--address", "auto", "--out"]
    assert cli.main([*words, "first"]) == cli.WRONG_INPUT
    shown = capsys.readouterr()
    assert "2 GPUs" in " ".join(shown.out.split())
    assert BEGUN in shown.err
    assert cli.main([*words, "second", "--set", f"{COMMANDS[name][2]}=1"]) == cli.WRONG_INPUT
    assert "2 GPUs" not in " ".join(capsys.readouterr().out.split())
