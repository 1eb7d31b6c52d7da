"""`raybench compare` without Ray: its sides, conclusions and refusals."""

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml

from raybench.cluster.signals import Interrupt
from raybench.commands import cli
from raybench.models.find import find_workload
from raybench.report.pairs import (
    Pairs,
    Side,
    answer_lines,
    exit_code,
    interval_words,
    pairs_of,
    sentences,
)
from raybench.runs.compare import at_revision, check_sides, errors_left, read_side
from raybench.runs.compare import compare as run_compare
from raybench.spec.errors import DONE, NO_DIFFERENCE, UNDECIDED, WORSE, ErrorCode
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.replicates import Replicate
from raybench.stats.sequential import Comparison
from tests.factories import evaluation, options_given, record
from tests.made_results import results_folder, run_line
from tests.refusals import refused
from tests.test_json import run_json

SIDES = (Side("A", "a.yaml", "torch 1x64 adam 0.001"), Side("B", "b.yaml", "torch 1x32 adam 0.004"))
TIMED = Objective(target=0.95)
BUDGET = Objective(kind="best_at_budget", max_train_seconds=5.0)


def pairs(a, b):
    """Return pairs from seconds to the target; a negative number is a miss."""
    runs = {
        name: {
            number: Replicate(abs(seconds), seconds > 0) for number, seconds in enumerate(values)
        }
        for name, values in (("A", a), ("B", b))
    }
    return Pairs(SIDES, TIMED, runs, smallest=0.02)


FAST = [1.0, 1.1, 0.9, 1.05, 0.97, 1.0, 1.1, 0.9, 1.0]
LIKE_FAST, MISSED = [seconds * 1.001 for seconds in FAST], [-9.0] * 9
SLOW = [2.0, 2.1, 2.2, 1.9, 2.0, 2.3, 1.8, 2.0, 2.1]


@pytest.mark.parametrize(
    ("a", "b", "code", "words"),
    [
        (SLOW, FAST, DONE, "B is better"),
        (FAST, SLOW, WORSE, "B is worse"),
        (FAST * 4, LIKE_FAST * 4, NO_DIFFERENCE, " 2 % "),
        (FAST[:3], SLOW[:3], UNDECIDED, "3 pairs"),
        (FAST, [], UNDECIDED, "0 pairs"),
        (MISSED, FAST, DONE, "more often"),
        (MISSED, MISSED, UNDECIDED, "9 pairs (90 % interval not known"),
    ],
)
def test_the_conclusion_and_its_exit_code(a, b, code, words):
    compared = pairs(a, b)
    assert exit_code(compared) == code
    assert words in answer_lines(compared)[-1]


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.1, 0.2, "9.5 to 18.1 % better"),
        (-0.2, -0.1, "10.5 to 22.1 % worse"),
        (-0.1, 0.1, "10.5 % worse to 9.5 % better"),
        (-math.inf, 0.1, "at most 9.5 % better"),
        (-math.inf, -0.1, "at least 10.5 % worse"),
    ],
)
def test_interval_bounds_say_which_side_is_better(low, high, words):
    """A log difference of 0.1 is a factor of e^-0.1, or 9.5 % fewer seconds."""
    comparison = Comparison("undecided", 5, 0.0, low, high)
    assert interval_words(pairs([1.0], [1.0]), comparison) == words


def test_values_at_a_budget_are_compared_in_percentage_points():
    compared = Pairs(
        SIDES,
        BUDGET,
        {
            name: {n: Replicate(-v, is_hit=True, is_timed=False) for n, v in enumerate(values * 4)}
            for name, values in {"A": [0.90, 0.91, 0.90], "B": [0.95, 0.97, 0.94]}.items()
        },
        0.02,
    )
    lines = answer_lines(compared)
    assert lines[-1].startswith("B is better")
    assert "5.0 points (90 % interval " in lines[-1]
    assert all(value in lines[1] for value in ("95.00 %", "12 runs"))


def test_runs_that_fail_immediately_do_not_count(tmp_path):
    """An immediate error may be a bug in the script; divergence and lack of memory are misses."""
    keys = {"role": "pair", "source": "A", "objective": TIMED}
    lines = [
        run_line(f"A-00{n}", failure=failure, **keys) for n, failure in enumerate(("error", "nan"))
    ]
    lines[0] |= {"samples": 0}
    records = results_folder(tmp_path, lines, objective=TIMED).runs
    compared = pairs_of(SIDES, TIMED, records, {}, smallest=0.02, errors=0.05)
    assert list(compared.runs["A"]) == [1]


@pytest.mark.parametrize(("slower", "code"), [(1.06, WORSE), (0.94, DONE), (1.0, NO_DIFFERENCE)])
def test_throughput_is_compared_regardless_of_the_target(slower, code):
    """Throughput is measured from the first evaluation on, so that warm-up does not count."""
    records, curves = {}, {}
    for name, factor in (("A", 1.0), ("B", slower)):
        for number in range(12):
            seconds = factor * (1 + 0.005 * math.sin(7 * number + len(curves)))
            run = f"{name}-{number:03d}"
            ended = record(run, RunSpec(objective=TIMED), stop="epochs", samples=3000)
            ledger = ended.ledger | {"train": 9.0 + 2 * seconds}
            records[run] = replace(ended, role="pair", source=name, ledger=ledger)
            ends = (9.0, 1000), (9.0 + 2 * seconds, 3000)
            curves[run] = [evaluation(train_s, samples=samples) for train_s, samples in ends]
    compared = pairs_of(
        SIDES, TIMED, records, curves, smallest=0.03, errors=0.05, is_throughput=True
    )
    assert exit_code(compared) == code
    assert compared.runs["A"][0].seconds == pytest.approx(1e-3, rel=0.01)


def test_report_repeats_the_conclusion_of_a_comparison(tmp_path, capsys, one_picture):
    lines = [
        run_line(f"{name}-{number:03d}", seconds, role="pair", source=name)
        for name, times in (("A", SLOW), ("B", FAST))
        for number, seconds in enumerate(times)
    ]
    settings = {"sides": [vars(side) for side in SIDES], "smallest": 0.02, "errors": 0.05}
    results = results_folder(tmp_path, lines, compare=settings)
    expected = answer_lines(pairs(SLOW, FAST))
    assert cli.main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [*expected, f"results: {tmp_path}"]
    assert repr(results).splitlines()[0] == expected[-1]
    assert expected[-1] in (tmp_path / "report.html").read_text()
    document = run_json(capsys, "report", tmp_path)
    (comparison,) = document["details"]["comparisons"]
    assert document["answer"] == expected[-1:]
    assert comparison["outcome"] == "better"
    assert 0 < comparison["low"] < comparison["effect"] < comparison["high"]


def write(path, **keys):
    content = {"dataset": {"name": "digits", "image_size": 28}, "objective": {"target": 0.9}}
    path.write_text(yaml.safe_dump(content | keys))
    return str(path)


def options(*sides, **keys):
    arguments = [f"--{key.replace('_', '-')}={value}" for key, value in keys.items()]
    return options_given("compare", [*sides, *arguments])


def test_a_side_is_a_run_spec_a_study_or_a_space_of_one_point(tmp_path):
    spec = write(tmp_path / "best.yaml", learning_rate=0.002)
    assert read_side(spec, spec, {}).learning_rate == 0.002
    assert read_side(tmp_path, "", {"seed": 3}).seed == 3
    space = write(tmp_path / "s.yaml", workload="mnist_small", space={"learning_rate": [0.01]})
    assert read_side(space, space, {}).learning_rate == 0.01
    wide = write(tmp_path / "w.yaml", workload="mnist_small", space={"learning_rate": [0.1, 0.2]})
    with refused(ErrorCode.CONFLICT, wide):
        read_side(wide, wide, {})


def test_a_revision_is_the_git_tree_of_a_commit(tmp_path, monkeypatch):
    """Modules beside the file belong to its revision; the other side keeps its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    author = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    (tmp_path / "code").mkdir()
    for number in (1, 2):
        (tmp_path / "code" / "parts_of_it.py").write_text(f"NUMBER = {number}\n")
        text = "import parts_of_it\ndef train(run):\n    return parts_of_it.NUMBER\n"
        (tmp_path / "code" / "train.py").write_text(text)
        for words in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "x"]):
            subprocess.run(["git", *words], cwd=tmp_path / "code", check=number == 1)
        if number == 1:
            (tmp_path / "code" / "more.txt").write_text("a change to commit")
    monkeypatch.chdir(tmp_path / "code")
    old = read_side("HEAD~1:train.py:train", "A", {"objective.target": 0.9})
    assert Path(old.workload.rpartition(":")[0]).is_relative_to(tmp_path / "cache")
    sides = [
        find_workload(workload).function
        for workload in (old.workload, "train.py:train", old.workload)
    ]
    assert [side(None) for side in sides] == [1, 2, 1]
    assert at_revision("train.py:train") == "train.py:train"
    for side in ("HEAD~9:train.py:train", "x:y.py:z"):
        with refused(ErrorCode.NOT_FOUND, side):
            at_revision(side)
    monkeypatch.chdir(tmp_path)
    with refused(ErrorCode.NOT_FOUND, "HEAD~1:train.py:train"):
        at_revision("HEAD~1:train.py:train")


def test_sides_must_be_comparable(tmp_path):
    a = write(tmp_path / "a.yaml")
    other = write(tmp_path / "b.yaml", objective={"target": 0.8})
    with refused(ErrorCode.CONFLICT, "objective.target", 0.8, 0.9, "a.yaml", "b.yaml"):
        check_sides(options(a, other))
    digits = {"name": "digits", "image_size": 28, "split_seed": 5}
    split = write(tmp_path / "c.yaml", dataset=digits)
    with refused(ErrorCode.CONFLICT, "c.yaml", "a.yaml"):
        check_sides(options(a, split))
    with refused(ErrorCode.MISSING, "compare"):
        check_sides(options(a))


def test_all_sides_share_objective_and_evaluation_interval(tmp_path):
    short, long = ({"target": 0.9, "max_train_seconds": seconds} for seconds in (50, 99))
    a = write(tmp_path / "a.yaml", eval_every_samples=500, objective=short)
    b = write(tmp_path / "b.yaml", learning_rate=0.01, objective=long)
    checked = check_sides(options(a, b))
    assert {spec.eval_every_samples for spec in checked.specs.values()} == {500}
    assert {spec.objective.max_train_seconds for spec in checked.specs.values()} == {99.0}
    assert "0.01" in checked.sides[1].label


def test_simultaneous_comparisons_share_the_error_rate(tmp_path):
    file = tmp_path / "a" / "session.jsonl"
    with ThreadPoolExecutor(8) as pool:
        spent = list(pool.map(partial(errors_left, file), map(str, range(20))))
    assert max(spent) == 0.025
    assert len(set(spent)) == 20
    assert sum(spent) < 0.05
    assert errors_left(file, "3") == spent[3], "a resumed comparison keeps its error rate"
    for content in ("no JSON", "[]", '{"b": 1}'):
        file.write_text(content)
        with refused(ErrorCode.INVALID_FILE, "--session", file):
            errors_left(file, "3")


@pytest.mark.parametrize(
    ("sides", "errors", "level"), [(2, 0.05, "90 %"), (3, 0.05, "95 %"), (2, 0.05 / 6, "98.33 %")]
)
def test_the_interval_has_the_stated_confidence(sides, errors, level):
    names = "ABCD"[:sides]
    runs = {name: {n: Replicate(1.0 + 0.1 * (n % 3), True) for n in range(12)} for name in names}
    compared = Pairs(
        [Side(*[name] * 3) for name in names], Objective(target=0.9), runs, errors=errors
    )
    assert all(f"{level} interval" in line for line in sentences(compared))


def test_a_dry_run_prints_the_maximum_training_time(tmp_path, capsys):
    objective = {"target": 0.9, "max_train_seconds": 10.0}
    sides = [
        write(tmp_path / f"{n}.yaml", learning_rate=0.01 * (n + 1), objective=objective)
        for n in range(3)
    ]
    file = tmp_path / "session"
    compare_options = options(*sides, runs=7, session=str(file), out=str(tmp_path / "out"))
    run_compare(compare_options.model_copy(update={"dry_run": True}), Interrupt())
    assert "210 s" in capsys.readouterr().out
    assert not file.exists(), "a dry run writes no session file"


def test_the_minimum_difference_is_a_fraction():
    assert options(smallest="2%").smallest == options(smallest="0.02").smallest == 0.02
    for text in ("x", "100%", "-1%", "nan"):
        with refused(ErrorCode.INVALID_VALUE, "--smallest", text):
            options(smallest=text)
