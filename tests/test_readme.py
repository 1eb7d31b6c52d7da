"""README, docs and examples: commands run (as dry runs if possible), links and pictures exist, and
shown output matches printed output. tests/e2e runs some commands for real."""

import contextlib
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml

from raybench import api
from raybench.cluster.signals import Interrupt
from raybench.commands import cli
from raybench.report import figures
from raybench.report.page import document
from raybench.results.study import load
from raybench.results.verdict import verdict_of
from raybench.runs.preflight import first_values
from raybench.spec import errors
from raybench.spec.run import DatasetSpec, RunSpec
from raybench.spec.study import build_study
from tests.fitted_once import fitted_once as fitted_once
from tests.fitted_once import without_pollux as without_pollux
from tests.made_results import readers_folder
from tests.training.local_runs import train

ROOT = Path(__file__).parents[1]
PAGES = {path.relative_to(ROOT): path.read_text() for path in sorted(ROOT.glob("docs/*.md"))}
PAGES[Path("README.md")] = README = (ROOT / "README.md").read_text()
TEXT = "".join(PAGES.values())
BLOCKS = [
    (path, *found)
    for path, page in PAGES.items()
    for found in re.findall(r"^```(\w*)\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
]
BASH = "".join(text for _, kind, text in BLOCKS if kind == "bash")
COMMANDS = list(dict.fromkeys(filter(None, BASH.splitlines())))
RAYBENCH_COMMANDS = [line for line in COMMANDS if line.startswith("raybench ")]
MAKE_COMMANDS = [line for line in COMMANDS if line.startswith("make ")]
TOKEN = "RAY_AUTH_MODE=token "
"""Prefix of every Ray command, because its ports are open to other hosts."""
CLUSTER_COMMANDS = [line.removeprefix(TOKEN) for line in COMMANDS if line.startswith(TOKEN)]
IN_TABLES = re.findall(r"^\|.*\| `((?:raybench|sbatch) [^`]+)` \|", TEXT, re.MULTILINE)
EXAMPLES = "".join(file.read_text() for file in sorted(ROOT.glob("examples/*.py")))
IN_EXAMPLES = re.findall(r"^raybench .*", EXAMPLES.replace("\\\n    ", ""), re.MULTILINE)
assert IN_EXAMPLES
SLURM_COMMANDS = [line for line in (*COMMANDS, *IN_TABLES) if line.startswith("sbatch ")]
OTHERS_IN_TABLES = [line for line in IN_TABLES if line.startswith("raybench ")]
AS_THEY_ARE = ("report", "data", "doctor", "init", "plan", "forecast", "import")
"""Commands that start nothing; the others get --dry-run."""


def of_slurm(line: str) -> str:
    """Return the command that `deploy/slurm.sbatch` runs on the first node."""
    options, _, command = line.partition(" deploy/slurm.sbatch ")
    assert options == "sbatch --nodes=2"
    return f"raybench {command} --address auto"


OF_SLURM = list(map(of_slurm, SLURM_COMMANDS))


def block(kind: str, containing: str) -> str:
    """Return the first code block of a kind that contains some text."""
    return next(text for _, k, text in BLOCKS if k == kind and containing in text)


def raybench(*words: str) -> str:
    """Run a command in this process; return what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli.main(words) == 0
    return out.getvalue()


COMMITTER = "-c user.name=reader -c user.email=reader@example.org"


def store_optuna_trials() -> None:
    """Write `optuna.log` with trials of a plain Optuna script."""
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend("optuna.log")
    )
    study = optuna.create_study(storage=storage, direction="maximize")
    study.optimize(lambda trial: trial.suggest_float("learning_rate", 1e-4, 1e-1), n_trials=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A reader's folder with recorded studies, the examples, and my_data.yaml, which init has
    written."""
    folder = tmp_path_factory.mktemp("reader")
    studies = {"digits": "digits_race", "digits-2": "digits_race", "mnist": "mnist_workers"}
    studies |= {name: name for name in ("batch_size_vs_workers", "tiny_lm")} | {"next": "tiny_lm"}
    with readers_folder(folder, studies, columns=80) as patch:
        patch.setattr(sys, "path", [str(folder), *sys.path])
        patch.setattr(document, "kinds_of", lambda results: {"ledger": figures.FIGURES["ledger"]})
        (folder / "steps.csv").write_text(block("csv", "step_s"))
        (folder / "train.py").touch()
        store_optuna_trials()
        for words in ("init -q", "add own_loop.py", f"{COMMITTER} commit -qm start"):
            subprocess.run(["git", *words.split()], check=True)
        for line in RAYBENCH_COMMANDS:
            if line.startswith("raybench import "):
                raybench(*shlex.split(line)[1:])
        raybench("init", "my_data.csv", "--label", "price", "--out", "my_data.yaml")
        to = ("--to", "tiny_lm_large.yaml")
        planned = ("--plan", "50%", "--out", "next.yaml")
        raybench("forecast", "results/tiny_lm", *to, *planned)
        raybench("forecast", "results/tiny_lm", *to, "--out", "large_rates.yaml")
        (folder / "screen.txt").write_text(raybench("report", "results/digits"))
        for name in ("digits-2", "own_loop"):
            (folder / "results" / name).mkdir(exist_ok=True)
            shutil.copy(folder / "results/digits/best.yaml", folder / "results" / name)
        fastest = folder / "results/fastest-digits/fastest.yaml"
        fastest.parent.mkdir()
        shutil.copy(folder / "results/digits/best.yaml", fastest)
        yield folder


def test_every_documented_command_is_tested():
    tested = ("raybench ", "make ", f"{TOKEN}ray ", "pip install ", "sbatch ")
    assert [line for line in COMMANDS if not line.startswith(tested)] == []
    assert len(IN_TABLES) >= 5
    assert MAKE_COMMANDS == ["make tune", "make test"]
    assert {line.split()[1] for line in RAYBENCH_COMMANDS} == cli.COMMANDS.keys()


@pytest.mark.parametrize(
    "line",
    [
        line
        for line in dict.fromkeys(RAYBENCH_COMMANDS + IN_EXAMPLES + OTHERS_IN_TABLES + OF_SLURM)
        if line != "raybench report results/digits"  # run by the fixture
        and f"{line} --dry-run" not in RAYBENCH_COMMANDS
    ],
)
@pytest.mark.usefixtures("without_pollux")
def test_documented_command_runs(line, folder, monkeypatch):
    monkeypatch.setattr(figures, "kinds_of", document.kinds_of)  # used by --png
    line, _, reader = line.partition(" | ")
    words = shlex.split(line)[1:]
    if "lightning_module.py:main" in words:
        pytest.importorskip("lightning")
    if "mnist" in words and "RAYBENCH_DATA" not in os.environ:
        pytest.skip("set RAYBENCH_DATA to a folder with MNIST")
    if reader:
        if not shutil.which("jq"):
            pytest.skip("jq is not installed")
        read = subprocess.run(
            shlex.split(reader), input=raybench(*words), capture_output=True, text=True, timeout=600
        )
        assert read.returncode == 0, read.stderr
        assert read.stdout.strip() not in ("", "null")
        return
    if words[-1] == "--help":
        with pytest.raises(SystemExit, match=r"^0$"):
            raybench(*words)
        return
    if words[0] == "init":
        words.append("--force")
    elif words[0] == "import":
        shutil.rmtree(Path("results") / words[-1])
    elif words[0] not in AS_THEY_ARE and not {"--dry-run", "--fit"} & {*words}:
        words.append("--dry-run")
    if words[0] == "tune" and {"tiny_lm.yaml", "results/next", "my_model:MyModel"} & {*words}:
        words.append("--fresh")  # later commands use the recorded results in this folder
    assert raybench(*words).strip()


@pytest.mark.parametrize("line", MAKE_COMMANDS)
def test_documented_make_target_exists(line):
    result = subprocess.run(
        [*shlex.split(line), "--dry-run"], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr
    assert "-m raybench.tune" in result.stdout or "-m pytest" in result.stdout


def test_documented_extras_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = set(re.findall(r"pip install '\.\[([\w-]+)\]'", TEXT))
    assert set() < named <= project["optional-dependencies"].keys()
    assert "pip install 'raybench" not in TEXT, "the package is on no index"


@pytest.mark.parametrize(
    ("page", "code"),
    [(str(path), text) for path, kind, text in BLOCKS if kind == "python" and "load(" in text],
)
def test_documented_python_reads_a_study(page, code, folder):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    if printed := out.getvalue():
        assert printed == block("", printed.splitlines()[0]), page


@pytest.mark.parametrize(
    "code", [text for _, kind, text in BLOCKS if kind == "python" and "raybench.tune(" in text]
)
def test_documented_python_calls_are_valid(code, folder, monkeypatch):
    planned = []

    def plan(options: Any, interrupt: Interrupt) -> errors.Ended:
        ended = cli.run_with_options(options.model_copy(update={"dry_run": True}), interrupt)
        planned.append(options.OF)
        return errors.Ended(ended.code, "results/digits")

    monkeypatch.setattr(api, "run_with_options", plan)
    exec(code, {})
    assert planned


def test_the_documented_screen_is_what_report_prints(folder):
    screen = [line.rstrip() for line in (folder / "screen.txt").read_text().splitlines()]
    assert screen == block("", "Search: 4 fastest").splitlines()


def test_the_answer_in_the_readme_is_that_of_the_recorded_study(folder):
    answer = next(text for _, _, text in BLOCKS if text.startswith("Answer: Train with"))
    screen = raybench("report", "results/mnist")
    assert answer.strip() in screen
    results = load("results/mnist")
    assert results.study["command"] in COMMANDS
    verdict = verdict_of(results)
    tied, only_searched = len(verdict.others()), len(verdict.once)
    text = " ".join(README.split())
    assert f"**{tied + only_searched} others may be as fast**: {tied} are" in text
    assert f"the winner; {only_searched} ran only" in text
    numbers = re.findall(r"(?<=--more )\d+", screen)
    assert set(numbers) == set(re.findall(r"(?<=--more )\d+", README)) != set()
    assert f"on {results.baselines['test'].rows:,} images" in text
    answer_text = " ".join(answer.split())
    (reached,) = re.findall(r"\*\*([\d.]+ s) of training\*\*", text)
    assert f"after {reached} of training" in answer_text
    ((longer, share),) = re.findall(r"takes ([\d.]+) times as long as two, at (\d+) %", text)
    assert f"costs {share} % as much as the fastest and takes {longer} times as long" in answer_text


def test_the_documented_space_of_model_settings_is_valid():
    content = yaml.safe_load(block("yaml", "optimizer_options"))
    study, space = build_study(content | {"objective": {"target": 0.9}}, "docs")
    assert {"model.dropout", "data.window", "optimizer_options.momentum"} <= space.keys()
    assert study.run_spec(first_values(study, space)).optimizer == "torch:SGD"


def test_the_documented_space_is_the_default_space():
    shown = yaml.safe_load(block("yaml", "optimizer:"))
    assert shown == yaml.safe_load((ROOT / "search_spaces/digits.yaml").read_text())


@pytest.mark.parametrize("page", ["docs/results.md", "skills/raybench/SKILL.md"])
def test_the_documented_exit_codes_are_complete(page):
    table = (ROOT / page).read_text().partition("## Exit codes")[2]
    codes = {value for value in vars(errors).values() if isinstance(value, int)}
    assert {int(code) for code in re.findall(r"^\| (\d+) ", table, flags=re.MULTILINE)} == codes


def test_the_reference_pages_are_current():
    for path, page in runpy.run_path(str(ROOT / "docs/reference.py"))["PAGES"].items():
        assert page() == (ROOT / path).read_text(), "run python docs/reference.py"


FOLDERS = "raybench|search_spaces|notebooks|tests|benchmarks|examples|deploy|docs"


@pytest.mark.parametrize("pages", ["*.md", "docs/*.md", "[bes]*/**/*.md"])
def test_files_and_links_exist(pages):
    found = set(ROOT.glob(pages)) - set(ROOT.glob("benchmarks/results/*"))
    assert found
    for page in found:
        text = page.read_text()
        for target in re.findall(r"\]\((?!http)([^)]+)\)", text):
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            assert file.exists(), target
            titles = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE) if anchor else ()
            anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert not anchor or anchor in anchors, target
        for name in re.findall(rf"`((?:{FOLDERS})/[\w./]+)`", text):
            assert (ROOT / name).exists(), f"{page}: {name}"


def test_the_documented_trial_overhead_is_the_measured_one():
    table = (ROOT / "benchmarks/results/trial_overhead.md").read_text()
    seconds = re.findall(r"^\| \w+ \| \d \| ([\d.]+) \(.*?\) \| ([\d.]+) ", table, re.MULTILINE)
    stock, ours = ([float(seconds) for seconds in column] for column in zip(*seconds, strict=True))
    text = " ".join(README.split())
    assert f"costs {min(ours):.2f} to {max(ours):.2f} s" in text
    assert f"costs {min(stock):.0f} to {max(stock):.0f} s" in text


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 180


def test_the_documented_workload_loads_a_dataset():
    names = {}
    exec(block("python", "class Squares"), names)
    workload = names["Squares"]()
    dataset = workload.load_dataset(DatasetSpec(name="workload"))
    sizes = [len(split) for split in (dataset.train, dataset.validation, dataset.test)]
    assert sizes == [800, 100, 100]
    assert dataset.task == workload.task


@pytest.mark.parametrize(
    ("kind", "name", "holds"),
    [
        ("python", "my_model.py", "class MyModel"),
        ("python", "own_loop.py", "raybench.Run"),
        ("yaml", "own_loop.yaml", "# own_loop.yaml"),
    ],
)
def test_examples_match_the_readme(kind, name, holds):
    shown = block(kind, holds).removeprefix(f"# {name}\n")
    assert (ROOT / "examples" / name).read_text().endswith(shown)


@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.all)])
@pytest.mark.parametrize(
    ("workload", "target"), [("own_data:Diabetes", 60.0), ("multi_label:Topics", 0.7)]
)
def test_examples_with_their_own_data_train(workload, target, framework, folder):
    pytest.importorskip(framework)
    keys = {"workload": workload, "dataset": "workload", "framework": framework}
    keys |= {"learning_rate": 0.01, "batch_size_per_worker": 16, "epochs": 20.0}
    curve, _ = train(RunSpec.model_validate(keys | {"objective": {"target": target}}))
    assert curve[-1].time_to_target_s is not None


def test_the_example_script_reads_a_study(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["read_a_study.py", "results/digits"])
    runpy.run_path("read_a_study.py")
    assert "TensorFlow" in capsys.readouterr().out
    assert (folder / "curves.png").stat().st_size > 10_000
