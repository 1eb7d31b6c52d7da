"""The installed package: wheel and sdist, in environments with one or no framework."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
pytestmark = [pytest.mark.all, pytest.mark.timeout(900)]


def run_command(*words: object, cwd: Path, code: int = 0) -> str:
    """Run a command outside the checkout; return what it printed."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ended = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a wheel, an sdist, and a wheel built from the sdist."""
    if not UV.is_file():
        pytest.skip("no uv in this environment")
    folder = tmp_path_factory.mktemp("built")
    run_command(UV, "build", "--quiet", "--wheel", "--sdist", "-o", folder, ROOT, cwd=folder)
    (sdist,) = folder.glob("*.tar.gz")
    run_command(UV, "build", "--quiet", "--wheel", "-o", folder / "again", sdist, cwd=folder)
    return folder


def test_wheel_and_sdist_hold_all_package_files(built: Path) -> None:
    (wheel,), (from_sdist,) = built.glob("*.whl"), (built / "again").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names == set(zipfile.ZipFile(from_sdist).namelist()), "the sdist lacks files"
    tracked = subprocess.run(
        ["git", "ls-files", "raybench", "search_spaces"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    inside = {f"raybench/{file}" if file.startswith("search_spaces") else file for file in tracked}
    assert inside <= names
    assert any(name.endswith("LICENSE") for name in names)
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"} <= files


def test_the_package_description_has_no_relative_links(built: Path) -> None:
    """A package index does not have the files that links and pictures of the README need."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (file for file in archive.namelist() if file.endswith(".dist-info/METADATA"))
        page = archive.read(name).decode()
    assert "Description-Content-Type: text/markdown" in page
    assert "pip install '.[torch]'" in page
    assert [link for link in re.findall(r"\]\(([^)]*)\)", page) if "://" not in link] == []
    assert "![" not in page


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_the_package_works_with_one_framework(framework: str, tmp_path: Path) -> None:
    """The package is installed from a git URL, as the docs say for users without a checkout."""
    if not UV.is_file():
        pytest.skip("no uv in this environment")
    other = {"torch": "tensorflow", "tensorflow": "torch"}[framework]
    run_command(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "env", cwd=tmp_path)
    binaries = tmp_path / "env" / "bin"
    install = (UV, "pip", "install", "--quiet", "--python", binaries / "python")
    run_command(
        *install,
        "-c",
        pinned(tmp_path),
        f"raybench[{framework}] @ git+{ROOT.as_uri()}",
        cwd=tmp_path,
    )
    run_command(binaries / "raybench", "tune", "--dry-run", cwd=tmp_path)
    code = f"""
import importlib.util, sys
from raybench.commands import cli
assert importlib.util.find_spec("{other}") is None
assert cli.main(["train", "--set", "framework={framework}", "--dry-run"]) == 0
print([name for name in ("torch", "tensorflow") if name in sys.modules])
"""
    assert other not in run_command(binaries / "python", "-c", code, cwd=tmp_path).splitlines()[-1]


def pinned(folder: Path) -> Path:
    """Write the versions of requirements.txt as constraints, without their hashes."""
    pins = (ROOT / "requirements.txt").read_text().splitlines()
    (folder / "pins.txt").write_text("\n".join(pin.split(" ")[0] for pin in pins if "==" in pin))
    return folder / "pins.txt"


def test_without_a_framework_results_are_read_and_training_is_refused(
    built: Path, tmp_path: Path
) -> None:
    (wheel,) = built.glob("*.whl")
    run_command(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "env", cwd=tmp_path)
    binaries = tmp_path / "env" / "bin"
    install = (UV, "pip", "install", "--quiet", "--python", binaries / "python")
    run_command(*install, "-c", pinned(tmp_path), wheel, cwd=tmp_path)
    assert run_command(binaries / "raybench", "--version", cwd=tmp_path).startswith("raybench 0.1")
    find_frameworks = (
        "import importlib.util as u; print([n for n in ('torch', 'tensorflow') if u.find_spec(n)])"
    )
    assert run_command(binaries / "python", "-c", find_frameworks, cwd=tmp_path) == "[]\n"
    shutil.copytree(ROOT / "tests" / "fixtures" / "digits_race", tmp_path / "study")
    assert "Answer:" in run_command(
        binaries / "raybench", "report", tmp_path / "study", cwd=tmp_path
    )
    output = run_command(binaries / "raybench", "tune", "--dry-run", cwd=tmp_path, code=2)
    assert "'raybench[" in output
    assert "Traceback" not in output
