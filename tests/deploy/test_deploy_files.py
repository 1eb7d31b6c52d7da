"""Files in deploy/: aws.yaml and runtime_env.yaml by the schema and parser of Ray, rayjob.yaml by
the schema of KubeRay, and the job of ci.yml, which fails by the exit code of `compare`."""

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from raybench.cluster.session import WORKER_ENVIRONMENT
from raybench.commands import cli
from raybench.results.place import check_folder
from raybench.results.storage import check_place
from raybench.search.resolve import study_content
from raybench.spec import errors
from raybench.spec.errors import ErrorCode
from raybench.spec.study import build_study
from tests.factories import options_given
from tests.refusals import refused

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
(RAY_VERSIONS,) = (
    requirement.specifier
    for requirement in map(Requirement, PROJECT["dependencies"])
    if requirement.name == "ray"
)
AWS: dict[str, Any] = yaml.safe_load((DEPLOY / "aws.yaml").read_text())
RUNTIME_ENV: dict[str, Any] = yaml.safe_load((DEPLOY / "runtime_env.yaml").read_text())
README = (ROOT / "README.md").read_text() + (ROOT / "docs/cluster.md").read_text()
SUBMIT = shlex.split(next(line for line in README.splitlines() if " ray job submit" in line))[1:]
JOB_TEXT = (DEPLOY / "rayjob.yaml").read_text()
JOB: dict[str, Any] = yaml.safe_load(JOB_TEXT)
SPEC: dict[str, Any] = JOB["spec"]
CLUSTER: dict[str, Any] = SPEC["rayClusterSpec"]
GROUPS = [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]
PODS = [group["template"]["spec"] for group in GROUPS]
CONTAINERS = [container for pod in PODS for container in pod["containers"]]
JOB_ENVIRONMENT = yaml.safe_load(SPEC["runtimeEnvYAML"])


def test_aws_file_is_valid_for_ray_up():
    from ray.autoscaler._private.util import validate_config

    pytest.importorskip("jsonschema")
    validate_config(AWS)


def test_aws_machines_use_a_token_and_open_no_port():
    assert AWS["file_mounts"] == {"/home/ray/.ray/auth_token": "~/.ray/auth_token"}
    assert "--env RAY_AUTH_MODE=token" in AWS["docker"]["run_options"]
    commands = " ".join(AWS["head_start_ray_commands"] + AWS["worker_start_ray_commands"])
    assert "--dashboard-host" not in commands, (
        "127.0.0.1 by default; `ray dashboard` opens a tunnel"
    )
    assert "security_group" not in AWS["provider"]


def test_job_installs_the_package_of_its_working_directory():
    from ray.runtime_env import RuntimeEnv

    (package,) = RUNTIME_ENV["pip"]
    extras = re.fullmatch(r"\$\{RAY_RUNTIME_ENV_CREATE_WORKING_DIR\}\[([\w,]+)\]", package)
    assert extras, package
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])
    environment = RuntimeEnv(**RUNTIME_ENV)
    assert environment.pip_config()["packages"] == [package]
    assert not environment.env_vars().keys() & WORKER_ENVIRONMENT.keys(), "Ray refuses both"
    # Private name of Ray.
    from ray._private import ray_constants

    assert ray_constants.RAY_RUNTIME_ENV_CREATE_WORKING_DIR_ENV_VAR in package


def test_rayjob_has_the_same_runtime_environment():
    working_dir = JOB_ENVIRONMENT["working_dir"]
    assert working_dir.endswith(".zip"), "KubeRay cannot upload a folder"
    assert RUNTIME_ENV | {"working_dir": working_dir} == JOB_ENVIRONMENT


def test_submit_command_of_the_readme_has_known_options():
    from ray.dashboard.modules.job.cli import submit

    known = {name for option in submit.params for name in option.opts}
    words = SUBMIT[3 : SUBMIT.index("--")]
    assert {word for word in words if word.startswith("--")} <= known
    assert "`--entrypoint-num-cpus 1`" in README
    assert "--entrypoint-num-cpus" in known
    assert (ROOT / words[words.index("--runtime-env") + 1]).is_file()
    out = Path(SUBMIT[SUBMIT.index("--out") + 1])
    assert out.is_absolute(), "neither the user's home nor the job's temporary folder"


def test_results_in_the_temporary_folder_of_a_job_are_refused(tmp_path, monkeypatch, capsys):
    """The folder is the one into which the installed Ray unpacks a working directory."""
    from ray._private import ray_constants
    from ray._private.runtime_env.packaging import get_local_dir_from_uri
    from ray._private.runtime_env.working_dir import WorkingDirPlugin

    node = tmp_path / "session_1" / ray_constants.DEFAULT_RUNTIME_ENV_DIR_NAME
    node.mkdir(parents=True)
    plugin = WorkingDirPlugin(str(node), None)
    unpacked = get_local_dir_from_uri("gcs://_ray_pkg_0123.zip", plugin._resources_dir)
    unpacked.mkdir(parents=True)
    monkeypatch.chdir(unpacked)
    (tmp_path / "link").symlink_to(unpacked)
    for out in ("", "results/digits", str(tmp_path / "link" / "results")):
        with refused(ErrorCode.NOT_WRITABLE, out, "--out"):
            check_folder(Path(out))
    for words in (["tune", "digits"], ["train"]):
        assert cli.main([*words, "--address", "auto"]) == cli.WRONG_INPUT
        assert "--out" in capsys.readouterr().err
    check_folder(tmp_path / "shared" / "results")
    assert list(unpacked.iterdir()) == []


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


def test_rayjob_is_valid_for_kuberay():
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(rayjob_schema())
    validator.validate(JOB)
    assert not validator.is_valid(JOB | {"spec": SPEC | {"ttlSecondsAfterFinish": 600}})


def test_widest_trial_fits_the_workers():
    study, _ = build_study(*study_content(options())[:2])
    widest = max(study.space["num_workers"])
    num_cpus = sum(
        group["replicas"]
        * int(group["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"])
        for group in CLUSTER["workerGroupSpecs"]
    )
    assert widest <= num_cpus


def test_clients_need_a_token_from_a_secret():
    assert CLUSTER["authOptions"]["mode"] == "token"
    name = CLUSTER["authOptions"]["secretName"]
    assert f"kubectl create secret generic {name} --from-literal=auth_token=" in JOB_TEXT
    keys = {key for container in CONTAINERS for key in container}
    assert "env" not in keys, "containers contain no secret"
    assert "env_vars" not in JOB_ENVIRONMENT, "anyone who may list jobs sees their runtime_env"


def test_ray_and_python_versions_are_supported():
    python = SpecifierSet(PROJECT["requires-python"])
    for container in (AWS["docker"], *CONTAINERS):
        image = re.fullmatch(r"rayproject/ray:([\d.]+)-py(\d)(\d+)", container["image"])
        assert image, container["image"]
        assert image[1] == CLUSTER["rayVersion"]
        assert image[1] in RAY_VERSIONS
        assert f"{image[2]}.{image[3]}" in python


def test_results_are_on_a_persistent_volume():
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


WORKFLOW: dict[str, Any] = yaml.safe_load((DEPLOY / "ci.yml").read_text())
STEPS = WORKFLOW["jobs"]["compare"]["steps"]
(COMMAND,) = (step["run"] for step in STEPS if step.get("run", "").startswith("raybench "))
COMMAND = COMMAND.replace("${{ github.base_ref }}", "main")


@pytest.mark.usefixtures("elsewhere")
def test_command_compares_a_branch_with_its_target():
    shutil.copy(ROOT / "examples/agent/train.py", "train.py")
    identity = "-c user.name=reader -c user.email=reader@example.org"
    for words in ("init -q", "add .", f"{identity} commit -qm start"):
        subprocess.run(["git", *words.split()], check=True)
    subprocess.run(["git", "update-ref", "refs/remotes/origin/main", "HEAD"], check=True)
    words = shlex.split(COMMAND.partition(" > ")[0])
    assert cli.main([*words[1:], "--dry-run"]) == cli.DONE


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        (errors.NO_DIFFERENCE, True),
        (errors.UNDECIDED, True),
        (errors.WORSE, False),
        (errors.FAILED, False),
    ],
)
def test_job_fails_by_the_exit_code(code, passes, tmp_path):
    (tmp_path / "raybench").write_text(f"#!/bin/sh\nexit {code}\n")
    (tmp_path / "raybench").chmod(0o755)
    (tmp_path / "job").write_text(COMMAND)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    completed = subprocess.run(["bash", "-e", "job"], cwd=tmp_path, env=path, check=False)
    assert (completed.returncode == 0) is passes
