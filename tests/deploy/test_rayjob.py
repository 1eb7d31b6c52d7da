"""The RayJob: right by KubeRay's own definition, and it continues when it is sent again."""

import os
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from raybench.results.place import check_place
from raybench.search.resolve import study_content
from raybench.spec.study import build_study
from tests.factories import options_given

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
JOB: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "rayjob.yaml").read_text())
SPEC: dict[str, Any] = JOB["spec"]
CLUSTER: dict[str, Any] = SPEC["rayClusterSpec"]
GROUPS = [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]
PODS = [group["template"]["spec"] for group in GROUPS]
CONTAINERS = [container for pod in PODS for container in pod["containers"]]
RUNTIME_ENV = yaml.safe_load(SPEC["runtimeEnvYAML"])


def definition() -> dict[str, Any]:
    """KubeRay's schema of a RayJob, in which a key that it does not know is a mistake."""
    file = Path(os.environ.get("RAYBENCH_DATA", "")) / "kuberay" / "ray.io_rayjobs.yaml"
    if not file.is_file():
        pytest.skip("no kuberay/ray.io_rayjobs.yaml in RAYBENCH_DATA")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content = yaml.load(file.read_text(), loader)
    version = next(v for v in content["spec"]["versions"] if v["name"] == "v1")
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    closed(schema)
    return schema


def closed(schema: dict[str, Any]) -> None:
    """Refuse unknown keys, as `kubectl` does, wherever the schema names those there are."""
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    for inner in (*schema.get("properties", {}).values(), schema.get("items")):
        if isinstance(inner, dict):
            closed(inner)


def problems(job: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema")
    found = jsonschema.Draft202012Validator(schema).iter_errors(job)
    return [f"{error.json_path}: {error.message}" for error in found]


def test_it_is_what_kuberay_takes() -> None:
    schema = definition()
    assert problems(JOB, schema) == []
    for wrong in (
        {"backoffLimit": 1.5},
        {"ttlSecondsAfterFinish": 600},
        {"rayClusterSpec": CLUSTER | {"authOptions": {"mode": "password"}}},
    ):
        assert problems(JOB | {"spec": SPEC | wrong}, schema), f"{wrong} is seen"


def test_the_widest_trial_fits_the_workers() -> None:
    study, _ = build_study(*study_content(options())[:2])
    widest = max(study.space["num_workers"])
    room = sum(
        group["replicas"]
        * int(group["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"])
        for group in CLUSTER["workerGroupSpecs"]
    )
    assert widest <= room


def test_clients_need_the_token_of_a_secret() -> None:
    assert CLUSTER["authOptions"]["mode"] == "token"
    text = (ROOT / "deploy" / "rayjob.yaml").read_text()
    name = CLUSTER["authOptions"]["secretName"]
    assert f"kubectl create secret generic {name} --from-literal=auth_token=" in text
    assert "env" not in {key for container in CONTAINERS for key in container}, "no secret is here"
    assert "env_vars" not in RUNTIME_ENV, "Ray shows a job's runtime_env to who may list jobs"


def test_versions_are_ours() -> None:
    ours = next(r for r in map(Requirement, PROJECT["dependencies"]) if r.name == "ray")
    python = SpecifierSet(PROJECT["requires-python"])
    assert CLUSTER["rayVersion"] in ours.specifier
    for container in CONTAINERS:
        found = re.fullmatch(r"rayproject/ray:([\d.]+)-py(\d)(\d+)", container["image"])
        assert found, container["image"]
        assert found[1] == CLUSTER["rayVersion"]
        assert f"{found[2]}.{found[3]}" in python


def test_results_outlive_every_pod() -> None:
    out = Path(check_place(options().out))
    for pod in PODS:
        (volume,) = [volume for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
        for container in pod["containers"]:
            mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert str(out.parent) in mounts
            assert volume["name"] in {mount["name"] for mount in container["volumeMounts"]}


def options() -> Any:
    """What the job's command asks for."""
    words = shlex.split(SPEC["entrypoint"])
    assert words[:3] == ["python", "-m", "raybench.tune"]
    return options_given("tune", words[3:])
