"""The installed package: wheel and sdist, in environments with one or no framework."""

import os
import re
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
    """Folder with an sdist, and the wheel that uv builds from it."""
    if not UV.is_file():
        pytest.skip("no uv in this environment")
    folder = tmp_path_factory.mktemp("built")
    run_command(UV, "build", "--quiet", "-o", folder, ROOT, cwd=folder)
    return folder


def test_wheel_and_sdist_hold_all_package_files(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "raybench", "search_spaces"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    inside = {f"raybench/{file}" if file.startswith("search_spaces") else file for file in tracked}
    assert inside <= names
    assert any(name.endswith("LICENSE") for name in names)
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"} <= files


def test_the_package_description_has_no_relative_links(built):
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
def test_the_package_works_without_and_with_a_framework(framework, built, tmp_path):
    run_command(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "env", cwd=tmp_path)
    binaries = tmp_path / "env" / "bin"
    # The versions of requirements.txt are constraints, which have no hashes.
    pins = (ROOT / "requirements.txt").read_text().splitlines()
    (tmp_path / "pins").write_text("\n".join(pin.split(" ")[0] for pin in pins if "==" in pin))
    install = (UV, "pip", "install", "--quiet", "--python", binaries / "python", "-c", "pins")
    (wheel,) = built.glob("*.whl")
    if framework == "torch":
        run_command(*install, wheel, cwd=tmp_path)
        assert_results_are_read_and_training_is_refused(binaries, tmp_path)
    run_command(*install, f"{wheel}[{framework}]", cwd=tmp_path)
    assert frameworks_of(binaries, tmp_path) == [framework]
    run_command(binaries / "raybench", "tune", "--dry-run", cwd=tmp_path)


def frameworks_of(binaries: Path, folder: Path) -> list[str]:
    """Return the frameworks that an environment has."""
    find = "import importlib.util as u; print(*filter(u.find_spec, ('torch', 'tensorflow')))"
    return run_command(binaries / "python", "-c", find, cwd=folder).split()


def assert_results_are_read_and_training_is_refused(binaries: Path, folder: Path) -> None:
    assert frameworks_of(binaries, folder) == []
    assert run_command(binaries / "raybench", "--version", cwd=folder).startswith("raybench 0.1")
    read = f"import raybench; print(raybench.load({str(ROOT / 'tests/fixtures/digits_race')!r}))"
    assert "Train with" in run_command(binaries / "python", "-c", read, cwd=folder)
    output = run_command(binaries / "raybench", "tune", "--dry-run", cwd=folder, code=2)
    assert "'raybench[" in output
    assert "Traceback" not in output
