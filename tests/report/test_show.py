"""The final screen without --verbose: short, with the answer and suggested commands at its end."""

import html
import re
import shlex
import shutil
from pathlib import Path

import pytest

from raybench.commands import cli
from raybench.report.answer import spec_comment
from raybench.report.confidence import next_steps
from raybench.report.export import export
from raybench.report.study import load
from raybench.results.ranking import nearest
from raybench.results.store import NOTHING_LEFT, StudyFiles
from raybench.results.verdict import verdict_of
from raybench.spec.objective import Objective
from tests.made_results import NEAR, curve, raced, results_folder, run_line, shown, study_of
from tests.refusals import numbers_in

MOST_LINES = 45
"""The maximum number of lines of the screen."""
FIXTURES = Path(__file__).parents[1] / "fixtures"


def many(folder):
    """Return a study with failures of eight causes, forty trials, a race of twelve and a tie."""
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
    lines = [
        run_line(f"9{n:03d}", failure="error") | {"message": word} for n, word in enumerate(words)
    ]
    for n in range(40):
        lines += [*curve(f"{n:04d}", [0.1, 0.92]), run_line(f"{n:04d}", 2.0, num_workers=2)]
    for n in range(1, 13):
        lines += raced(f"{n:04d}", 2.0, [2.0 + n / 50, 2.1], [2.2] * 3 if n == 1 else [])[1:]
    results = results_folder(folder, lines)
    results.study["notes"] = ["The time budget of 170 s ended the search after 40 of 120 trials."]
    return results


def test_a_large_study_fits_one_screen(tmp_path):
    results, width = many(tmp_path), 80
    text = shown(results, width=width, verbose=False)
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES
    is_command = [" python -m " in line or line.startswith("results: ") for line in lines]
    texts = [line for line, is_one in zip(lines, is_command, strict=True) if not is_one]
    assert max(map(len, texts)) <= width
    order = (
        "Search: ",
        "Confirmation: best",
        "Failed: 8 runs; most frequent cause: error (1 run): one",
        "Confidence: ",
        "Answer: ",
        "results: ",
    )
    assert [text.count(part) for part in order] == [1] * len(order)
    assert sorted(order, key=text.index) == list(order)
    assert len(shown(results, width=width).splitlines()) > 80


def steps(results):
    """Return the suggested commands, with the numbers in their descriptions."""
    return {step.do: numbers_in(step.what) for step in next_steps(results, verdict_of(results))}


def test_suggested_commands_of_a_moved_study_use_its_new_folder(tmp_path):
    folder = tmp_path / "results" / "my"  # started from Python, without a space file
    results = results_folder(folder, [run_line("0001", 2.0)])
    assert f"python -m raybench.tune {folder}/study.yaml --out {folder}" in steps(results)
    folder.rename(tmp_path / "moved")
    results = load(tmp_path / "moved")
    results.study["study"]["search"] = {"trials": 10}
    results.study["command"] = "python -m raybench.tune"
    assert steps(results)[f"python -m raybench.tune --out {tmp_path}/moved"] == [9]


def test_suggested_commands_are_those_of_the_study(tmp_path):
    results = study_of(tmp_path, *NEAR)
    results.study["command"] = "python -m raybench.tune my.yaml --fresh --out x"
    train = {f"python -m raybench.train {tmp_path}/best.yaml": []}
    resolve = {f"python -m raybench.tune my.yaml --out {tmp_path} --more 8": [1]}
    assert steps(results) == train | resolve
    (tmp_path / "report.html").write_text("")
    results.study["study"]["search"] = {"trials": 10}
    search = f"python -m raybench.tune my.yaml --out {tmp_path}"
    page = {f"{tmp_path}/report.html": []}
    expected = train | page | resolve | {search: [7]}
    assert list(steps(results).items()) == list(expected.items())
    results.study["notes"] = [f"The search ended after 3 of 10 trials: {NOTHING_LEFT}"]
    assert search not in steps(results)
    results.study["notes"], results.study["study"]["search"] = [], {"trials": None}
    for number, offered in ((3, None), (5, [2])):  # configurations of its grid
        results.study["num_trials"] = number
        assert steps(results).get(search) == offered


def test_a_study_without_a_race_is_advised_to_confirm(tmp_path):
    results = results_folder(tmp_path, [run_line("0000", 4.0), run_line("0001", 5.0)])
    results.study["command"] = "python -m raybench.tune my.yaml --no-confirm --out x"
    results.study["study"]["confirm"] = {"race": 0, "fresh": 3}
    assert "python -m raybench.tune my.yaml --out x --confirm race=24" in steps(results)


@pytest.mark.parametrize(
    ("workload", "words"),
    [("mnist_small", "train it and save the model"), ("own.py:train", "train it")],
)
def test_a_saved_model_is_promised_only_of_a_workload(tmp_path, workload, words):
    results = results_folder(tmp_path, [run_line("0000", 4.0, workload=workload)])
    assert next_steps(results, verdict_of(results))[0].what == words


def test_no_search_is_suggested_for_a_training(tmp_path):
    results = results_folder(tmp_path, [run_line("0000", 4.0)], study={"run": True})
    (tmp_path / "report.html").write_text("")
    assert list(steps(results)) == [f"{tmp_path}/report.html"]
    assert results.best.trial == "0000"


@pytest.mark.parametrize("program", ["raybench", "'/opt/my env/bin/raybench'"])
def test_suggested_commands_reuse_the_program_and_options(tmp_path, program):
    results = study_of(tmp_path, *NEAR)
    command = f"{program} tune my.yaml --out {tmp_path}"
    results.study["command"] = command
    train, more = list(steps(results))[:2]
    assert train == f"{program} train {tmp_path}/best.yaml"
    assert more.startswith(f"{command} --more ")
    comment = spec_comment(results, "0001", verdict_of(results), "fastest")
    assert f"again: {program} train THIS_FILE" in comment
    later = [f"{command} --time-budget 60", f"{command} --more 8"]
    results.study["continued"] = [{"command": command} for command in later]
    assert list(steps(results))[1].startswith(
        f"{program} tune my.yaml --time-budget 60 --out {tmp_path} --more "
    ), "options of the latest command"


@pytest.mark.usefixtures("one_picture")
def test_printed_commands_are_quoted_for_the_shell(tmp_path, monkeypatch, capsys):
    odd = "o/du ps;touch PWN"
    monkeypatch.chdir(tmp_path)
    printed = ""
    for name in ("digits_race", "scaling"):
        shutil.copytree(FIXTURES / name, Path(odd, name))
        assert cli.main(["report", f"{odd}/{name}"]) == 0
        printed += capsys.readouterr().out
        page = Path(odd, name, "report.html").read_text()
        printed += "\n".join(re.findall(r"<code>(.*?)</code>", html.unescape(page)))
    printed += f"\nso: {load(odd + '/digits_race').best.command}\n"
    found = re.findall(r"((?:python -m raybench\.|raybench )(\w+) [^\n]*PWN[^\n]*)", printed)
    assert {name for _, name in found} == {"train", "tune", "report"}
    for line, _ in found:
        assert any(word.startswith(odd) for word in shlex.split(line)), line
        assert "touch" not in shlex.split(line), line


def test_without_progress_no_configuration_is_nearest(tmp_path):
    objective = Objective(target=0.9, baseline_value=0.1)
    lines = [run_line(f"{n:04d}", best_value=0.1 - n / 100, objective=objective) for n in (0, 1)]
    results = results_folder(tmp_path, lines, objective=objective)
    assert nearest(results) is None
    export(results, StudyFiles(tmp_path))
    assert not (tmp_path / "best.yaml").exists()
