"""The package as it is installed: wheel and sdist, in an environment that holds no framework."""

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


def done(*words: object, cwd: Path, code: int = 0) -> str:
    """Run a command outside the checkout; return what it printed."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ended = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a wheel, an sdist, and a wheel that was built from the sdist."""
    if not UV.is_file():
        pytest.skip("no uv in this environment")
    folder = tmp_path_factory.mktemp("built")
    done(UV, "build", "--quiet", "--wheel", "--sdist", "-o", folder, ROOT, cwd=folder)
    (sdist,) = folder.glob("*.tar.gz")
    done(UV, "build", "--quiet", "--wheel", "-o", folder / "again", sdist, cwd=folder)
    return folder


def test_both_hold_all_that_the_package_reads(built: Path) -> None:
    (wheel,), (again,) = built.glob("*.whl"), (built / "again").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names == set(zipfile.ZipFile(again).namelist()), "the sdist lacks something"
    tracked = subprocess.run(
        ["git", "ls-files", "raybench", "search_spaces"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    inside = {f"raybench/{file}" if file.startswith("search_spaces") else file for file in tracked}
    assert inside <= names
    assert any(name.endswith("LICENSE") for name in names)
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"} <= held


def test_its_page_on_an_index_leads_nowhere_else(built: Path) -> None:
    """Links and pictures of the README are of files that an index does not have."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        page = archive.read(name).decode()
    assert "Description-Content-Type: text/markdown" in page
    assert "pip install '.[torch]'" in page
    assert [link for link in re.findall(r"\]\(([^)]*)\)", page) if "://" not in link] == []
    assert "![" not in page


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_one_framework_is_enough(framework: str, tmp_path: Path) -> None:
    """Also from a git URL, as docs say it for those without a checkout."""
    if not UV.is_file():
        pytest.skip("no uv in this environment")
    other = {"torch": "tensorflow", "tensorflow": "torch"}[framework]
    done(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "env", cwd=tmp_path)
    binaries = tmp_path / "env" / "bin"
    install = (UV, "pip", "install", "--quiet", "--python", binaries / "python")
    done(
        *install,
        "-c",
        pinned(tmp_path),
        f"raybench[{framework}] @ git+{ROOT.as_uri()}",
        cwd=tmp_path,
    )
    done(binaries / "raybench", "tune", "--dry-run", cwd=tmp_path)
    code = f"""
import importlib.util, sys
from raybench.commands import cli
assert importlib.util.find_spec("{other}") is None
assert cli.main(["train", "--set", "framework={framework}", "--dry-run"]) == 0
print([name for name in ("torch", "tensorflow") if name in sys.modules])
"""
    assert other not in done(binaries / "python", "-c", code, cwd=tmp_path).splitlines()[-1]


def pinned(folder: Path) -> Path:
    """Write the versions of requirements.txt as constraints, without their hashes."""
    pins = (ROOT / "requirements.txt").read_text().splitlines()
    (folder / "pins.txt").write_text("\n".join(one.split(" ")[0] for one in pins if "==" in one))
    return folder / "pins.txt"


def test_an_empty_environment_reads_results_and_says_which_framework_to_install(
    built: Path, tmp_path: Path
) -> None:
    (wheel,) = built.glob("*.whl")
    done(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "env", cwd=tmp_path)
    binaries = tmp_path / "env" / "bin"
    install = (UV, "pip", "install", "--quiet", "--python", binaries / "python")
    done(*install, "-c", pinned(tmp_path), wheel, cwd=tmp_path)
    assert done(binaries / "raybench", "--version", cwd=tmp_path).startswith("raybench 0.1")
    found = (
        "import importlib.util as u; print([n for n in ('torch', 'tensorflow') if u.find_spec(n)])"
    )
    assert done(binaries / "python", "-c", found, cwd=tmp_path) == "[]\n"
    shutil.copytree(ROOT / "tests" / "fixtures" / "digits_race", tmp_path / "study")
    assert "Answer:" in done(binaries / "raybench", "report", tmp_path / "study", cwd=tmp_path)
    said = done(binaries / "raybench", "tune", "--dry-run", cwd=tmp_path, code=2)
    assert "'raybench[" in said
    assert "Traceback" not in said
