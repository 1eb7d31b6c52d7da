"""`raybench doctor`: problems, notes, the network measurement and the JSON document."""

import copy
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock, call

import jsonschema
import pytest

from raybench.cluster import doctor
from raybench.cluster.protocol import MeasuredSums, RunFailed
from raybench.commands import cli
from raybench.commands.prepare import NO_PROBLEM, doctor_lines
from raybench.spec.run import ResourceRequest
from raybench.training import machine
from raybench.training.machine import (
    GpusSeen,
    machine_facts,
    notes_of,
    problems_between,
    problems_of,
)

A100 = "NVIDIA A100"
NUMBER, TEXT, TEXTS = {"type": "number"}, {"type": "string"}, {"type": "array"}
VERSIONS = {"type": "object", "additionalProperties": TEXT}


def object_schema(**properties: Any) -> dict[str, Any]:
    """Return the JSON schema of an object with exactly these keys."""
    return {
        "type": "object",
        "required": list(properties),
        "additionalProperties": False,
        "properties": properties,
    }


MEASURED = ("names", "memory_bytes", "free_bytes", "busy_percent")
GPUS = object_schema(**dict.fromkeys(MEASURED, TEXTS), versions=VERSIONS, problem=TEXT)
NUMBERS = (
    *("cores", "load", "niceness", "ray_cpus", "ray_gpus", "disk_bytes_per_s"),
    *("free_memory_bytes", "free_shared_bytes", "free_disk_bytes"),
)
HOST = object_schema(
    **dict.fromkeys(("host", "address"), TEXT),
    **dict.fromkeys(NUMBERS, NUMBER),
    versions=VERSIONS,
    visible={"type": ["string", "null"]},
    gpus={"required": ["nvml"], "additionalProperties": GPUS},
)
SIZE = object_schema(bytes=NUMBER, seconds=NUMBER, bytes_per_s=NUMBER)
NETWORK = object_schema(
    **{"workers": NUMBER, "gpus_per_worker": NUMBER, "framework": TEXT, "through": TEXT},
    interfaces=TEXTS,
    sizes={"type": "array", "items": SIZE, "minItems": 3, "maxItems": 3},
)
SCHEMA = object_schema(
    version={"const": 2},
    ok={"type": "boolean"},
    address={"type": ["string", "null"]},
    hosts={"type": "array", "items": HOST, "minItems": 1},
    network={"anyOf": [{"type": "null"}, NETWORK]},
    inside={"anyOf": [{"type": "null"}, NETWORK]},
    problems=TEXTS,
    notes=TEXTS,
)


def facts(host: str = "a", gpus: int = 0, **changes: Any) -> dict[str, Any]:
    """Return the facts of a host whose driver and frameworks see the same number of GPUs.

    `changes` are other values by key; `torch__names=()` changes `names` of the GPUs of torch.
    """
    gpus_seen = {"names": (A100,) * gpus, "problem": ""}
    gpus_seen |= dict.fromkeys(("memory_bytes", "free_bytes", "busy_percent"), ())
    cuda = {"cuda": "12.4"} if gpus else {}
    sources = {
        name: gpus_seen | {"versions": dict(cuda)} for name in ("nvml", "torch", "tensorflow")
    }
    host_facts = {
        **{"host": host, "versions": {"python": "3.11.7", "ray": "2.60.0"}, "cores": 8},
        **{"load": 0.1, "niceness": 0, "free_memory_bytes": 2**35, "free_shared_bytes": 2**35},
        **{"free_disk_bytes": 2**38, "disk_bytes_per_s": 1e9, "visible": None, "gpus": sources},
    }
    for key, value in changes.items():
        name, _, part = key.partition("__")
        if part:
            sources[name][part] = value
        else:
            host_facts[key] = value
    return copy.deepcopy(host_facts)


@pytest.mark.parametrize("gpus", [0, 8])
def test_consistent_hosts_have_no_problems(gpus):
    assert problems_of(facts(gpus=gpus), gpus) == []
    assert problems_between([facts("a"), facts("b")]) == []


OTHER_CUDA = {"torch__names": (), "torch__versions": {"cuda": "13.2"}}


@pytest.mark.parametrize(
    ("changes", "ray_gpus", "words"),
    [
        ({}, 0, ("8 GPUs", "Ray 0", "ray start --num-gpus=8")),
        ({}, 9, ("8 GPUs", "Ray 9", "ray start")),
        ({"torch__names": ()}, 8, ("torch ", "8 GPUs")),
        (OTHER_CUDA, 8, ("torch ", "CUDA 13.2", "12.4")),
        ({"tensorflow__names": (A100,)}, 8, ("tensorflow ", "1 of 8 GPUs", "pip install")),
        ({"torch__problem": "ImportError: libcudart.so."}, 8, ("torch ", "libcudart.so")),
        ({"nvml__names": (), "nvml__problem": "no driver"}, 8, ("GPUs", "no driver")),
        ({"free_memory_bytes": 2**30}, 8, ("1.0 GiB",)),
    ],
)
def test_problem_names_the_values_and_the_remedy(changes, ray_gpus, words):
    problems = problems_of(facts(gpus=8, **changes), ray_gpus)
    assert any(all(word in sentence for word in words) for sentence in problems), problems
    assert all(sentence.startswith("host a: ") for sentence in problems)


@pytest.mark.parametrize(("visible", "number"), [("2,3", 2), ("", 0), ("-1", 0)])
def test_gpus_hidden_by_cuda_visible_devices_are_a_note(visible, number):
    names = {"torch__names": (A100,) * number, "tensorflow__names": (A100,) * number}
    host_facts = facts(gpus=8, visible=visible, **names)
    assert problems_of(host_facts, number) == []
    (note,) = notes_of(host_facts)
    assert f"CUDA_VISIBLE_DEVICES={visible}" in note
    assert f"{8 - number} of 8" in note
    assert notes_of(facts(gpus=8)) == []


@pytest.mark.parametrize(
    ("visible", "has_gpus", "expected"),
    [("", True, None), ("", False, ""), ("2,3", True, "2,3")],
)
def test_gpus_that_ray_hides_from_the_task_are_not_a_fact(visible, has_gpus, expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    seen = lambda: {"visible": os.environ.get("CUDA_VISIBLE_DEVICES")}  # noqa: E731
    monkeypatch.setattr(doctor, "machine_facts", seen)
    assert doctor._facts_there(has_gpus)["visible"] == expected


def test_missing_framework_is_a_problem_with_the_extra_to_install():
    host_facts = facts()
    host_facts["gpus"] = {"nvml": host_facts["gpus"]["nvml"]}
    assert "raybench[torch]" in problems_of(host_facts, 0)[0]


def test_differing_versions_name_both_hosts():
    other = facts("b", versions={"python": "3.12.1", "ray": "2.60.0"})
    (problem,) = problems_between([facts("a"), other])
    assert all(value in problem for value in ("python", "3.11.7 on a", "3.12.1 on b"))


def test_framework_that_fails_to_import_is_a_problem(monkeypatch):
    broken = GpusSeen(problem="it did not start: ImportError: libcudart.so")
    monkeypatch.setattr(machine, "gpus_of_framework", lambda name: broken)
    monkeypatch.setattr(machine, "installed_frameworks", lambda: ["torch"])
    host_facts = machine_facts()
    assert host_facts["gpus"]["torch"]["problem"] == broken.problem
    assert host_facts["disk_bytes_per_s"] > 0
    assert any("libcudart.so" in problem for problem in problems_of(host_facts))


SPREAD = ResourceRequest("torch", 2, packing="spread")
OF_GPUS = ResourceRequest("torch", 2, gpus_per_worker=1, packing="spread")


@pytest.mark.parametrize(
    ("hosts", "between", "inside"),
    [
        ([(1, 0)], None, None),
        ([(8, 0)], ResourceRequest("torch", 2), None),
        ([(8, 4)], ResourceRequest("torch", 4, gpus_per_worker=1), None),
        ([(0, 0), (8, 0)], ResourceRequest("torch", 2), None),
        ([(1, 0), (1, 0)], SPREAD, None),
        ([(8, 0), (8, 0)], SPREAD, ResourceRequest("torch", 2)),
        # With one GPU per host, two workers of one host would run on cores: nothing to compare.
        ([(8, 1), (8, 1)], OF_GPUS, None),
        ([(8, 8), (8, 8)], OF_GPUS, ResourceRequest("torch", 8, gpus_per_worker=1)),
    ],
)
def test_placements_of_the_network_measurement(hosts, between, inside):
    host_facts = [facts(ray_cpus=cpus, ray_gpus=gpus, gpus=gpus) for cpus, gpus in hosts]
    assert doctor.network_group(host_facts) == between
    assert doctor.single_host_group(host_facts, between) == inside
    for host in host_facts:
        host["gpus"]["torch"]["problem"] = "broken"
    measured = doctor.network_group(host_facts)
    assert measured is None or measured.framework == "tensorflow"


def examined(
    monkeypatch: pytest.MonkeyPatch, hosts: list[Any], answer: Any, allocation: Any = None
) -> dict[str, Any]:
    """Return the document of the doctor for hosts with 4 cores each, and for a pool that returns an
    allocation and an answer to every command."""

    def get(result: Any, timeout: float = 0.0) -> Any:
        if isinstance(result, doctor.ray.exceptions.GetTimeoutError):
            assert timeout, "without a timeout the doctor would wait forever"
        if isinstance(result, Exception):
            raise result
        return result

    entry = {"Alive": True, "NodeManagerAddress": "127.0.0.1", "Resources": {"CPU": 4.0}}
    monkeypatch.setattr(doctor.ray, "nodes", lambda: [entry] * len(hosts))
    monkeypatch.setattr(doctor.ray, "get", get)
    monkeypatch.setattr(doctor, "_facts_of", lambda entries: hosts)
    session = Mock(warning="workers are nice")
    session.pool.acquire.remote.return_value = allocation
    session.pool.command.remote.return_value = answer
    document = doctor.examine(session, "auto")
    names = [doctor.NAME, doctor.INSIDE][: 1 + (document["inside"] is not None)]
    acquired = [each.args[0] for each in session.pool.acquire.remote.call_args_list]
    assert acquired == names, "the pool refuses a name that was released for good"
    released = session.pool.release.remote.call_args_list
    assert released == [call(name, keep=False, for_good=True) for name in names]
    return document


def test_cluster_without_free_workers_is_a_note(monkeypatch):
    timeout = doctor.ray.exceptions.GetTimeoutError()
    document = examined(monkeypatch, [facts(), facts("b")], None, timeout)
    assert (document["ok"], document["network"]) == (True, None)
    assert all(value in document["notes"][-1] for value in ("2 workers", "60 s"))


def test_document_follows_the_schema(monkeypatch):
    seconds = [{size: [0.1, 0.2, 0.3] for size in doctor.SIZES} for _ in range(2)]
    seconds[1][doctor.SIZES[0]] = [0.4, 0.1, 0.1]
    replies = [
        MeasuredSums(seconds=by_size, through="gloo", interface="eth0") for by_size in seconds
    ]
    hosts = [facts(), facts("b")]
    document = examined(monkeypatch, hosts, replies)
    jsonschema.validate(json.loads(json.dumps(document)), SCHEMA)
    assert document["ok"]
    slowest = document["network"]["sizes"][0]["seconds"]
    assert slowest == 0.3, "median over rounds of the slowest worker"
    assert document["inside"] == document["network"], "both come from the same replies"
    lines = doctor_lines(document)
    assert lines[-1] == NO_PROBLEM
    assert sum("gloo (torch)" in line and "eth0" in line for line in lines) == 2
    assert len(lines) < 28, "fits on one screen"


def test_problems_are_printed_and_the_exit_code_is_1(monkeypatch, capsys):
    failure = RunFailed("worker_lost", "workers cannot reach each other: host a.")
    unreadable = "host b: its hardware and software could not be read (x)"
    document = examined(monkeypatch, [facts(), unreadable], failure)
    first, second = document["problems"]
    assert first == unreadable
    assert second.startswith("2 workers: ")
    assert failure.message in second
    jsonschema.validate(json.loads(json.dumps(document)), SCHEMA)

    @contextmanager
    def live_session(*arguments: object) -> Iterator[None]:
        print("output of a library")
        yield

    monkeypatch.setattr("raybench.runs.wait_watch.live_session", live_session)
    monkeypatch.setattr(doctor, "examine", lambda *arguments: document)
    assert cli.main(["doctor", "--json"]) == cli.FAILED == 1
    assert json.loads(capsys.readouterr().out)["details"] == json.loads(json.dumps(document))
    assert cli.main(["doctor"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert [printed.count(problem) for problem in document["problems"]] == [1, 1]
