"""Detection of GPUs by every command that trains: on this machine before Ray starts, on a cluster
after connecting. The driver, the frameworks and the cluster are faked."""

import contextlib
import json
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
from tests.training.fake_gpus import FakeNvml

TWO_GPUS = Capacity((Node(16, 2, "n", name="far"),), 0.0)
SPEC = "{framework: torch, epochs: 1, dataset: {name: digits, image_size: 28}}"
COMMANDS: dict[str, tuple[Any, str, str]] = {
    "train": (train_body, SPEC, "gpus_per_worker"),
    "diagnose": (diagnose_body, SPEC, "gpus_per_worker"),
    "tune": (
        tune_body,
        "space: {framework: [torch]}\nobjective: {target: 0.9}\n"
        "dataset: {name: digits, image_size: 28}\n",
        "fixed.gpus_per_worker",
    ),
    "scale": (
        scale_body,
        f"name: s\nnum_workers: [1]\nbase: {SPEC}",
        "base.gpus_per_worker",
    ),
}
every_command = pytest.mark.parametrize("name", COMMANDS)


def run(name: str, *arguments: str) -> int:
    _, text, _ = COMMANDS[name]
    Path("it.yaml").write_text(text)
    return cli.main([name, "it.yaml", "--out", "out", *arguments])


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake driver with two GPUs."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())  # type: ignore[arg-type]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(("visible", "number"), [(None, 2), ("1", 1), ("", 0), ("0,1,5", 2)])
def test_gpus_are_counted_by_the_driver(
    visible: str | None, number: int, two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert local_capacity().gpus == number


@every_command
def test_the_plan_refuses_gpus_the_framework_does_not_see(
    name: str, two_gpus: None, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "gpus_of_framework", lambda framework: GpusSeen())
    setting = f"{COMMANDS[name][2]}=1"
    assert run(name, "--dry-run", "--set", setting, "--json") == cli.WRONG_INPUT
    assert json.loads(capsys.readouterr().out)["error"]["code"] == ErrorCode.UNSUPPORTED


@every_command
def test_available_gpus_are_used_and_reported(
    name: str, two_gpus: None, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (preflight, machine):
        monkeypatch.setattr(
            place, "gpus_of_framework", lambda framework: GpusSeen(names=("A", "B"))
        )
    assert run(name, "--dry-run", "--json") == cli.DONE
    document = json.loads(capsys.readouterr().out)
    assert any("2 GPUs" in sentence for sentence in document["answer"])
    assert "'gpus_per_worker': 1" in str(document["details"]["plan"])


def test_the_plan_reports_the_findings_of_doctor(
    two_gpus: None, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = GpusSeen(problem="it did not start: ImportError: libcudart.so")
    for place in (preflight, machine):
        monkeypatch.setattr(place, "gpus_of_framework", lambda framework: broken)
    assert run("tune", "--dry-run") == cli.DONE
    assert "libcudart.so" in capsys.readouterr().out


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
def test_unused_gpus_of_a_cluster_are_reported(name: str, cluster: None, capsys: Any) -> None:
    assert run(name, "--address", "auto") == cli.WRONG_INPUT
    shown = capsys.readouterr()
    assert "2 GPUs" in " ".join(shown.out.split())
    assert BEGUN in shown.err
    assert run(name, "--address", "auto", "--set", f"{COMMANDS[name][2]}=1", "--out", "o") == 2
    assert "2 GPUs" not in " ".join(capsys.readouterr().out.split())
