"""`deploy/rayjob.yaml`: valid by the schema of KubeRay; its results outlive the pods."""

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

from raybench.results.storage import check_place
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


def rayjob_schema() -> dict[str, Any]:
    """Return the schema of a RayJob from KubeRay, changed to refuse unknown keys."""
    file = Path(os.environ.get("RAYBENCH_DATA", "")) / "kuberay" / "ray.io_rayjobs.yaml"
    if not file.is_file():
        pytest.skip("no kuberay/ray.io_rayjobs.yaml in RAYBENCH_DATA")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content = yaml.load(file.read_text(), loader)
    version = next(v for v in content["spec"]["versions"] if v["name"] == "v1")
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    refuse_unknown_keys(schema)
    return schema


def refuse_unknown_keys(schema: dict[str, Any]) -> None:
    """Change a schema to refuse unknown keys in objects that declare keys, as `kubectl` does."""
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    for inner in (*schema.get("properties", {}).values(), schema.get("items")):
        if isinstance(inner, dict):
            refuse_unknown_keys(inner)


def problems(job: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema")
    errors = jsonschema.Draft202012Validator(schema).iter_errors(job)
    return [f"{error.json_path}: {error.message}" for error in errors]


def test_rayjob_is_valid_for_kuberay() -> None:
    schema = rayjob_schema()
    assert problems(JOB, schema) == []
    for wrong in (
        {"backoffLimit": 1.5},
        {"ttlSecondsAfterFinish": 600},
        {"rayClusterSpec": CLUSTER | {"authOptions": {"mode": "password"}}},
    ):
        assert problems(JOB | {"spec": SPEC | wrong}, schema), f"{wrong} is accepted"


def test_widest_trial_fits_the_workers() -> None:
    study, _ = build_study(*study_content(options())[:2])
    widest = max(study.space["num_workers"])
    num_cpus = sum(
        group["replicas"]
        * int(group["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"])
        for group in CLUSTER["workerGroupSpecs"]
    )
    assert widest <= num_cpus


def test_clients_need_a_token_from_a_secret() -> None:
    assert CLUSTER["authOptions"]["mode"] == "token"
    text = (ROOT / "deploy" / "rayjob.yaml").read_text()
    name = CLUSTER["authOptions"]["secretName"]
    assert f"kubectl create secret generic {name} --from-literal=auth_token=" in text
    keys = {key for container in CONTAINERS for key in container}
    assert "env" not in keys, "containers contain no secret"
    assert "env_vars" not in RUNTIME_ENV, "anyone who may list jobs sees their runtime_env"


def test_ray_and_python_versions_are_supported() -> None:
    requirements = map(Requirement, PROJECT["dependencies"])
    ray = next(requirement for requirement in requirements if requirement.name == "ray")
    python = SpecifierSet(PROJECT["requires-python"])
    assert CLUSTER["rayVersion"] in ray.specifier
    for container in CONTAINERS:
        image = re.fullmatch(r"rayproject/ray:([\d.]+)-py(\d)(\d+)", container["image"])
        assert image, container["image"]
        assert image[1] == CLUSTER["rayVersion"]
        assert f"{image[2]}.{image[3]}" in python


def test_results_are_on_a_persistent_volume() -> None:
    out = Path(check_place(options().out))
    for pod in PODS:
        (volume,) = [volume for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
        for container in pod["containers"]:
            mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert str(out.parent) in mounts
            assert volume["name"] in {mount["name"] for mount in container["volumeMounts"]}


def options() -> Any:
    """Return the options of the job's command."""
    words = shlex.split(SPEC["entrypoint"])
    assert words[:3] == ["python", "-m", "raybench.tune"]
    return options_given("tune", words[3:])
