"""`raybench doctor`: each disagreement is a sentence with what mends it; one fixed document."""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

from raybench.cluster import doctor
from raybench.cluster.layout import Node
from raybench.cluster.protocol import MeasuredSums, RunFailed
from raybench.commands import cli
from raybench.commands import doctor as command
from raybench.spec.errors import ErrorCode
from raybench.spec.run import Placement
from raybench.training import machine
from raybench.training.machine import (
    GpusSeen,
    machine_facts,
    notes_of,
    problems_between,
    problems_of,
)
from tests.refusals import refused

A100 = "NVIDIA A100"
NUMBER, TEXT, TEXTS = {"type": "number"}, {"type": "string"}, {"type": "array"}
VERSIONS = {"type": "object", "additionalProperties": TEXT}


def of(**properties: Any) -> dict[str, Any]:
    """A schema of an object that has just these keys."""
    required = list(properties)
    kind = {"type": "object", "required": required, "additionalProperties": False}
    return kind | {"properties": properties}


MEASURED = ("names", "memory_bytes", "free_bytes", "busy_percent")
SEEN = of(**dict.fromkeys(MEASURED, TEXTS), versions=VERSIONS, problem=TEXT)
HOST = of(
    **{
        "host": TEXT,
        "address": TEXT,
        "versions": VERSIONS,
        "visible": {"type": ["string", "null"]},
    },
    **dict.fromkeys(("cores", "load", "niceness", "ray_cpus", "ray_gpus"), NUMBER),
    **dict.fromkeys(("free_memory_bytes", "free_shared_bytes", "free_disk_bytes"), NUMBER),
    disk_bytes_per_s=NUMBER,
    gpus={"required": ["nvml"], "additionalProperties": SEEN},
)
SIZE = of(bytes=NUMBER, seconds=NUMBER, bytes_per_s=NUMBER)
NETWORK = of(
    **{"workers": NUMBER, "gpus_per_worker": NUMBER, "framework": TEXT, "through": TEXT},
    interfaces=TEXTS,
    sizes={"type": "array", "items": SIZE, "minItems": 3, "maxItems": 3},
)
SCHEMA = of(
    version={"const": 2},
    ok={"type": "boolean"},
    address={"type": ["string", "null"]},
    hosts={"type": "array", "items": HOST, "minItems": 1},
    network={"anyOf": [{"type": "null"}, NETWORK]},
    inside={"anyOf": [{"type": "null"}, NETWORK]},
    problems=TEXTS,
    notes=TEXTS,
)


def facts(host: str = "a", gpus: int = 0, **changed: Any) -> dict[str, Any]:
    """A host on which all agree on its GPUs, but for what is changed (`torch__names=()`, ...)."""
    seen = {"names": (A100,) * gpus, "problem": ""}
    seen |= dict.fromkeys(("memory_bytes", "free_bytes", "busy_percent"), ())
    cuda = {"cuda": "12.4"} if gpus else {}
    each = {name: seen | {"versions": dict(cuda)} for name in ("nvml", "torch", "tensorflow")}
    found = {
        **{"host": host, "versions": {"python": "3.11.7", "ray": "2.60.0"}, "cores": 8},
        **{"load": 0.1, "niceness": 0, "free_memory_bytes": 2**35, "free_shared_bytes": 2**35},
        **{"free_disk_bytes": 2**38, "disk_bytes_per_s": 1e9, "visible": None, "gpus": each},
    }
    for key, value in changed.items():
        name, _, part = key.partition("__")
        if part:
            each[name][part] = value
        else:
            found[key] = value
    return copy.deepcopy(found)


@pytest.mark.parametrize("gpus", [0, 8])
def test_where_all_agree_nothing_is_said(gpus: int) -> None:
    assert problems_of(facts(gpus=gpus), gpus) == []
    assert problems_between([facts("a"), facts("b")]) == []


@pytest.mark.parametrize(
    ("changed", "ray_gpus", "words"),
    [
        ({}, 0, ("8 GPUs", "Ray 0", "ray start --num-gpus=8")),
        ({}, 9, ("8 GPUs", "Ray 9", "ray start")),
        ({"torch__names": ()}, 8, ("torch ", "8 GPUs")),
        (
            {"torch__names": (), "torch__versions": {"cuda": "13.2"}},
            *(8, ("torch ", "CUDA 13.2", "12.4")),
        ),
        ({"tensorflow__names": (A100,)}, 8, ("tensorflow ", "1 of 8 GPUs", "pip install")),
        ({"torch__problem": "ImportError: libcudart.so."}, 8, ("torch ", "libcudart.so")),
        ({"nvml__names": (), "nvml__problem": "no driver"}, 8, ("GPUs", "no driver")),
        ({"free_memory_bytes": 2**30}, 8, ("1.0 GiB",)),
    ],
)
def test_a_disagreement_is_a_sentence_that_mends_it(
    changed: dict[str, Any], ray_gpus: int, words: tuple[str, ...]
) -> None:
    said = problems_of(facts(gpus=8, **changed), ray_gpus)
    assert any(all(word in sentence for word in words) for sentence in said), said
    assert all(sentence.startswith("host a: ") for sentence in said)


@pytest.mark.parametrize(("visible", "number"), [("2,3", 2), ("", 0), ("-1", 0)])
def test_gpus_that_somebody_has_hidden_are_a_note(visible: str, number: int) -> None:
    seen = {"torch__names": (A100,) * number, "tensorflow__names": (A100,) * number}
    found = facts(gpus=8, visible=visible, **seen)
    assert problems_of(found, number) == []
    (note,) = notes_of(found)
    assert f"CUDA_VISIBLE_DEVICES={visible}" in note
    assert f"{8 - number} of 8" in note
    assert notes_of(facts(gpus=8)) == []


@pytest.mark.parametrize(
    ("visible", "has_gpus", "expected"),
    [("", True, None), ("", False, ""), ("2,3", True, "2,3"), (None, True, None)],
)
def test_what_ray_hides_from_the_task_that_asks_is_no_fact(
    visible: str | None,
    has_gpus: bool,
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(
        doctor, "machine_facts", lambda: {"visible": os.environ.get("CUDA_VISIBLE_DEVICES")}
    )
    assert doctor._facts_there(has_gpus)["visible"] == expected


def test_without_a_framework_one_is_to_be_installed() -> None:
    bare = facts()
    bare["gpus"] = {"nvml": bare["gpus"]["nvml"]}
    assert "raybench[torch]" in problems_of(bare, 0)[0]


def test_hosts_that_do_not_fit_together_are_named() -> None:
    other = facts("b", versions={"python": "3.12.1", "ray": "2.60.0"})
    (versions,) = problems_between([facts("a"), other])
    assert all(value in versions for value in ("python", "3.11.7 on a", "3.12.1 on b"))


def test_a_broken_framework_is_a_fact_not_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = GpusSeen(problem="it did not start: ImportError: libcudart.so")
    monkeypatch.setattr(machine, "gpus_of_framework", lambda name: broken)
    monkeypatch.setattr(machine, "FRAMEWORKS", {"json": ""})  # installed wherever Python is
    found = machine_facts()
    assert found["gpus"]["json"]["problem"] == broken.problem
    assert found["disk_bytes_per_s"] > 0
    assert any("libcudart.so" in one for one in problems_of(found))


SPREAD = Placement("torch", 2, strategy="spread")
OF_GPUS = Placement("torch", 2, gpus_per_worker=1, strategy="spread")


@pytest.mark.parametrize(
    ("hosts", "between", "inside"),
    [
        ([(1, 0)], None, None),
        ([(8, 0)], Placement("torch", 2), None),
        ([(8, 4)], Placement("torch", 4, gpus_per_worker=1), None),
        ([(0, 0), (8, 0)], Placement("torch", 2), None),
        ([(1, 0), (1, 0)], SPREAD, None),
        ([(8, 0), (8, 0)], SPREAD, Placement("torch", 2)),
        # Inside a host those of one GPU each would be measured on cores: nothing to compare.
        ([(8, 1), (8, 1)], OF_GPUS, None),
        ([(8, 8), (8, 8)], OF_GPUS, Placement("torch", 8, gpus_per_worker=1)),
    ],
)
def test_the_network_is_measured_between_hosts_or_workers_and_inside_one(
    hosts: list[tuple[int, int]], between: Placement | None, inside: Placement | None
) -> None:
    found = [facts(ray_cpus=cpus, ray_gpus=gpus, gpus=gpus) for cpus, gpus in hosts]
    assert doctor.network_group(found) == between
    assert doctor.single_host_group(found, between) == inside
    for one in found:
        one["gpus"]["torch"]["problem"] = "broken"
    measured = doctor.network_group(found)
    assert measured is None or measured.framework == "tensorflow"


class FakeSession:
    """A pool whose workers take as long as it says, or do not reach each other."""

    warning = "workers are nice"

    def __init__(self, answer: Any, allocation: Any) -> None:
        call = SimpleNamespace
        self.released: list[dict[str, bool]] = []
        over: set[str] = set()

        def acquire(name: str, placement: Placement) -> Any:
            assert name not in over, "the pool refuses who is over"
            over.add(name)
            return allocation

        self.pool = call(
            acquire=call(remote=acquire),
            command=call(remote=lambda *given: answer),
            release=call(remote=lambda *given, **named: self.released.append(named)),
        )


def examined(
    monkeypatch: pytest.MonkeyPatch, hosts: list[Any], answer: Any, allocation: Any = None
) -> dict[str, Any]:
    """What the doctor says of hosts with 4 cores each."""

    def get(found: Any, timeout: float = 0.0) -> Any:
        if isinstance(found, doctor.ray.exceptions.GetTimeoutError):
            assert timeout, "it would wait without end"
        if isinstance(found, Exception):
            raise found
        return found

    entry = {"Alive": True, "NodeManagerAddress": "127.0.0.1", "Resources": {"CPU": 4.0}}
    monkeypatch.setattr(doctor.ray, "nodes", lambda: [entry] * len(hosts))  # type: ignore[attr-defined]
    monkeypatch.setattr(doctor.ray, "get", get)  # type: ignore[attr-defined]
    monkeypatch.setattr(doctor, "_facts_of", lambda entries: hosts)
    session: Any = FakeSession(answer, allocation)
    found = doctor.examine(session, "auto")
    levels = 1 + (found["inside"] is not None)
    assert session.released == [{"keep": False, "for_good": True}] * levels
    return found


def test_a_host_without_the_user_s_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each host sees a folder of its own here."""

    def on_node(node: str, task: Callable[[list[str]], list[str]]) -> Any:
        def there(names: list[str]) -> list[str]:
            own = {str(tmp_path / node) + name: name for name in names}
            return [own[name] for name in task(list(own))]

        return SimpleNamespace(remote=there)

    monkeypatch.setattr(doctor, "on_node", on_node)
    monkeypatch.setattr(doctor.ray, "get", lambda found, timeout: found)  # type: ignore[attr-defined]
    nodes = [Node(4, 0, id="id-a", name="a"), Node(4, 0, id="id-b", name="b")]
    for node in nodes:
        (tmp_path / node.id).mkdir()
        (tmp_path / node.id / "loop.py").touch()
    doctor.check_files_there(nodes, [Path("/loop.py")])
    (tmp_path / "id-b" / "loop.py").unlink()
    with refused(ErrorCode.NOT_FOUND, "host b", "/loop.py", "--working-dir"):
        doctor.check_files_there(nodes, [Path("/loop.py")])
    doctor.check_files_there(nodes, [])


def test_a_cluster_without_room_for_the_workers_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    full = doctor.ray.exceptions.GetTimeoutError()
    found = examined(monkeypatch, [facts(), facts("b")], None, full)
    assert (found["ok"], found["network"]) == (True, None)
    assert all(value in found["notes"][-1] for value in ("2 workers", "60 s"))


def test_the_document_has_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [{size: [0.1, 0.2, 0.3] for size in doctor.SIZES} for _ in range(2)]
    seconds[1][doctor.SIZES[0]] = [0.4, 0.1, 0.1]
    replies = [MeasuredSums(seconds=one, through="gloo", interface="eth0") for one in seconds]
    hosts = [facts(), facts("b")]
    found = examined(monkeypatch, hosts, replies)
    jsonschema.validate(json.loads(json.dumps(found)), SCHEMA)
    assert found["ok"]
    assert found["network"]["sizes"][0]["seconds"] == 0.3, "the slowest worker of each round"
    assert found["inside"] == found["network"], "two of one host, by the same replies"
    lines = command.lines_of(found)
    assert lines[-1] == command.WELL
    assert sum("gloo (torch)" in line and "eth0" in line for line in lines) == 2
    assert len(lines) < 28, "a screen"


def test_what_will_not_work_is_said_and_the_code_is_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = RunFailed("worker_lost", "workers cannot reach each other: host a.")
    lost = "host b: its hardware and software could not be read (x)"
    found = examined(monkeypatch, [facts(), lost], failure)
    first, second = found["problems"]
    assert first == lost
    assert second.startswith("2 workers: ")
    assert failure.message in second
    jsonschema.validate(json.loads(json.dumps(found)), SCHEMA)

    class Live:
        def __enter__(self) -> None:
            print("a library's words")

        def __exit__(self, *error: object) -> None:
            """End it."""

    from raybench.runs import wait_watch

    monkeypatch.setattr(wait_watch, "live_session", lambda *given: Live())
    monkeypatch.setattr(doctor, "examine", lambda *given: found)
    assert cli.main(["doctor", "--json"]) == cli.FAILED == 1
    assert json.loads(capsys.readouterr().out)["details"] == json.loads(json.dumps(found))
    assert cli.main(["doctor"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert [printed.count(problem) for problem in found["problems"]] == [1, 1]
