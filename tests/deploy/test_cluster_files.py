"""`deploy/aws.yaml` and `deploy/runtime_env.yaml`, checked by the schema and parser of Ray."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from raybench.cluster.session import WORKER_ENVIRONMENT
from raybench.commands import cli
from raybench.results.place import check_folder
from raybench.spec.errors import ErrorCode
from tests.refusals import refused

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
AWS: dict[str, Any] = yaml.safe_load((DEPLOY / "aws.yaml").read_text())
RUNTIME_ENV: dict[str, Any] = yaml.safe_load((DEPLOY / "runtime_env.yaml").read_text())
README = (ROOT / "README.md").read_text() + (ROOT / "docs/cluster.md").read_text()
SUBMIT = shlex.split(next(line for line in README.splitlines() if " ray job submit" in line))[1:]


def test_aws_file_is_valid_for_ray_up() -> None:
    # It checks `ray-schema.json`, and that the head node type is defined.
    from ray.autoscaler._private.util import validate_config

    jsonschema = pytest.importorskip("jsonschema")
    validate_config(AWS)
    with pytest.raises(jsonschema.ValidationError):
        validate_config(AWS | {"max_worker": 2})
    with pytest.raises(ValueError, match="head_node_type"):
        validate_config(AWS | {"head_node_type": "another"})


def test_aws_machines_use_a_token_and_open_no_port() -> None:
    assert AWS["file_mounts"] == {"/home/ray/.ray/auth_token": "~/.ray/auth_token"}
    assert "--env RAY_AUTH_MODE=token" in AWS["docker"]["run_options"]
    for command in AWS["head_start_ray_commands"] + AWS["worker_start_ray_commands"]:
        assert "--dashboard-host" not in command, (
            "127.0.0.1 by default; `ray dashboard` opens a tunnel"
        )
    assert "security_group" not in AWS["provider"]


def test_ray_version_of_the_image_is_supported() -> None:
    requirements = map(Requirement, PROJECT["dependencies"])
    ray = next(requirement for requirement in requirements if requirement.name == "ray")
    image = re.fullmatch(r"rayproject/ray:([\d.]+)-py311", AWS["docker"]["image"])
    assert image
    assert image[1] in ray.specifier


def test_job_installs_the_package_of_its_working_directory() -> None:
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


def test_rayjob_has_the_same_runtime_environment() -> None:
    job = yaml.safe_load((DEPLOY / "rayjob.yaml").read_text())
    runtime_env = yaml.safe_load(job["spec"]["runtimeEnvYAML"])
    assert runtime_env.pop("working_dir").endswith(".zip"), "KubeRay cannot upload a folder"
    assert runtime_env == RUNTIME_ENV


def test_submit_command_of_the_readme_has_known_options() -> None:
    from click.testing import CliRunner
    from ray.dashboard.modules.job.cli import submit

    known = {name for option in submit.params for name in option.opts}
    words = SUBMIT[3 : SUBMIT.index("--")]
    assert {word for word in words if word.startswith("--")} <= known
    assert "`--entrypoint-num-cpus 1`" in README
    assert "--entrypoint-num-cpus" in known
    assert (ROOT / words[words.index("--runtime-env") + 1]).is_file()
    assert CliRunner().invoke(submit, ["--entrypoint-num-cpu", "1", "--", "x"]).exit_code == 2
    out = Path(SUBMIT[SUBMIT.index("--out") + 1])
    assert out.is_absolute(), "neither the user's home nor the job's temporary folder"


@pytest.mark.parametrize("subfolder", ["", "results/digits"])
def test_results_in_the_temporary_folder_of_a_job_are_refused(
    subfolder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with refused(ErrorCode.NOT_WRITABLE, subfolder, "--out"):
        check_folder(Path(subfolder))
    (tmp_path / "link").symlink_to(unpacked)
    with refused(ErrorCode.NOT_WRITABLE, "link"):
        check_folder(tmp_path / "link" / "results")
    check_folder(tmp_path / "shared" / "results")
    assert not (unpacked / "results").exists()


def test_tune_and_train_refuse_the_temporary_folder_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    for words in (["tune", "digits"], ["train"]):
        assert cli.main([*words, "--address", "auto"]) == cli.WRONG_INPUT
        (line,) = capsys.readouterr().err.splitlines()
        assert "--out" in line
        assert list(folder.iterdir()) == []
