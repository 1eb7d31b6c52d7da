"""The page without a browser: strings are escaped, nothing is loaded, every part is present."""

import base64
import errno
import hashlib
import json
import os
import sys
from dataclasses import replace

import pytest
from pages import HOSTILE, ParsedPage, made_study

from raybench.commands import cli
from raybench.report.figures import FIGURES
from raybench.report.page import document, tables, try_page
from raybench.report.page.document import answer_of, glossary, page_text
from raybench.report.page.tables import differing, winner_sentence
from raybench.report.study import load
from raybench.results.store import PAGE_FILE
from raybench.spec.objective import Objective
from raybench.stats.clock import OTHER, PHASES
from tests.made_results import curve, locked_by, results_folder, run_line
from tests.refusals import numbers_in


@pytest.fixture(scope="module")
def parsed_page(page):
    return ParsedPage(page)


def test_hostile_text_is_escaped(page, parsed_page):
    assert "b" not in parsed_page.tags
    assert "img" not in parsed_page.tags
    assert not [attribute for attribute in parsed_page.attributes if attribute[1].startswith("on")]
    assert parsed_page.tags.count("script") == 3  # rows, details, and the script of the page
    for hostile in HOSTILE[:4]:
        assert hostile in parsed_page.text
    assert f"{HOSTILE[3]}</bdi>" in page, "its writing direction is isolated"
    assert "\u202e" not in page
    rows = json.loads(parsed_page.contents["script"][0])["rows"]
    assert {*HOSTILE[:4]} <= {row[0] for row in rows}


def test_the_page_loads_nothing_and_allows_only_its_own_script_and_style(parsed_page):
    values = [(name, value) for _, name, value in parsed_page.attributes]
    (policy,) = [value for name, value in values if name == "content" and "default-src" in value]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    (style,), script = parsed_page.contents["style"], parsed_page.contents["script"][-1]
    for rule, content in (("script-src", script), ("style-src-elem", style)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    names = ("src", "srcset", "href", "xlink:href", "action", "data", "poster")
    loads = [value for name, value in values if name in names]
    assert [value for value in loads if not value.startswith(("#", "data:"))] == []
    assert "@import" not in style
    assert "url(" not in style


def test_the_page_begins_with_the_answer_and_has_every_part(parsed_page):
    first = parsed_page.text.split("tables ", 1)[1].partition(".")[0]
    assert all(value in first for value in ("PyTorch", "1 worker", "batch size 64"))
    ids = [value for _, name, value in parsed_page.attributes if name == "id"]
    for part in ("figures", "trials", "failures", "provenance"):
        assert f"s1-{part}" in ids
    assert "glossary" in ids
    phases = glossary()["Seconds of a run"]["phases"]
    assert all(f"`{phase}`" in phases for phase in (*PHASES, "input", OTHER))
    assert sum(map(len, glossary().values())) <= 20
    assert len(ids) == len(set(ids))
    for landmark in ("header", "nav", "main", "footer"):
        assert parsed_page.tags.count(landmark) == 1
    assert parsed_page.tags.count("h1") == 1


def test_the_rows_are_all_trials_best_first(tmp_path):
    results = made_study(tmp_path)
    order = tables.order_of(results)
    names = [results.trials["trial"].iloc[place] for place in order]
    assert sorted(order) == list(range(len(results.trials)))
    assert names[0] == "0000"
    assert names[-1] == "broken"
    columns = {head["title"]: cells for head, cells in tables.columns_of(results)}
    assert columns["state"][names.index("broken")] is not None
    assert "failed: error" in columns["state"]


def test_a_long_curve_is_thinned(tmp_path):
    results = results_folder(tmp_path, [*curve("0000", [0.5] * 500), run_line("0000")])
    details = tables.details_of(results, [0])
    seconds, values = details["curves"][0]
    assert len(seconds) == len(values) <= tables.POINTS
    assert details["phases"][: len(PHASES)] == PHASES


def test_the_page_of_a_single_run_shows_its_results_and_settings(tmp_path):
    single = results_folder(tmp_path, [run_line("0000", 2.0, test_value=0.91)])
    single.study["study"]["run"] = True
    answer = answer_of(single, "s1")
    assert numbers_in(answer.title)[-4:] == [90, 2, 92, 91]
    assert "batch size 64" in dict(answer.facts)["Configuration"]


@pytest.mark.parametrize("is_running", [False, True])
def test_a_running_study_is_marked(tmp_path, is_running):
    results = results_folder(tmp_path, [run_line("0000", 2.0, slow={"disturbed": 1.2})])
    locked_by(tmp_path, **{"host": "elsewhere"} if is_running else {"pid": os.getpid()})
    caveats = " ".join(answer_of(results, "s1").caveats)
    assert "Slowed" in caveats, "a caveat that all outputs have"
    assert ("running" in caveats) == is_running


def test_a_page_that_cannot_be_written_is_reported_with_its_traceback(tmp_path, monkeypatch, said):
    results = results_folder(tmp_path, [])
    # The import fails as with a wrong MPLBACKEND.
    monkeypatch.setitem(sys.modules, "raybench.report.page.document", None)
    assert try_page(results, tmp_path, said.append) == []
    assert said[0].startswith("report.html ")
    assert "ModuleNotFoundError" in said[0]
    assert "ModuleNotFoundError" in (tmp_path / "errors" / "report.html.txt").read_text()
    assert not (tmp_path / PAGE_FILE).exists()


def test_a_figure_that_cannot_be_drawn_is_left_out_and_reported(tmp_path, monkeypatch, said):
    def broken(results):
        raise TypeError("'<' not supported \x1b[31m")

    kinds = {"pareto": replace(FIGURES["pareto"], draw=broken), "ledger": FIGURES["ledger"]}
    monkeypatch.setattr(document, "kinds_of", lambda results: kinds)
    assert try_page(made_study(tmp_path), tmp_path, said.append) == [tmp_path / PAGE_FILE]
    title, parsed = kinds["pareto"].title, ParsedPage((tmp_path / PAGE_FILE).read_text())
    (sentence,) = said
    assert title in sentence
    assert "(TypeError: '<' not supported )" in sentence
    assert f"{title}: " in parsed.text
    assert parsed.tags.count("figure") == 1
    (error_file,) = (tmp_path / "errors").iterdir()
    assert "broken" in error_file.read_text()


def test_studies_are_compared_on_one_page(tmp_path, monkeypatch):
    monkeypatch.setattr(document, "kinds_of", lambda results: {})  # drawn in other tests
    fast = made_study(tmp_path / "a" / "digits")
    lines = [*curve("0000", [0.5, 0.91]), run_line("0000", 30.0)]
    slow = results_folder(tmp_path / "b" / "digits", lines)
    sentence = winner_sentence([("one", fast), ("other", slow)])
    assert ": one, " in sentence
    assert numbers_in(sentence) == [90, 2.2, 30]
    other = results_folder(tmp_path / "c", [], objective=Objective(target=0.5))
    assert differing([fast, other]) == ["targets"]
    parsed = ParsedPage(page_text([fast, slow]))
    assert parsed.tags.count("h1") == 1
    ids = [value for _, name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {"s1", "s2", "winners"} <= set(ids)


@pytest.mark.usefixtures("one_picture")
def test_the_report_command_compares_studies(tmp_path, monkeypatch, capsys):
    for name in ("one", "two"):
        results_folder(tmp_path / name, [])
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", "one", "two", "--compare", "--out", "both.html"]) == 0
    text = ParsedPage((tmp_path / "both.html").read_text()).text
    assert winner_sentence([(name, load(name)) for name in ("one", "two")]) in text
    for arguments, words in (
        (["one", "two"], "--compare"),
        (["one", "--compare"], "--compare"),
        (["one", "--out", "x"], "--compare"),
        (["one", "two", "--compare", "--out", "one"], os.strerror(errno.EISDIR)),
        (["one", "two", "--compare", "--out", "no/x.html"], os.strerror(errno.ENOENT)),
    ):
        assert cli.run("report", arguments) == 2
        assert words in capsys.readouterr().err
