"""A study followed by its files alone: what is read, what is shown, how it ends."""

import json
import os
import platform
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from raybench.commands import cli, watch
from raybench.report.live.replay import FolderSource, UrlSource, source_of
from raybench.results.lock import OWNER_FILE, StudyLock
from raybench.results.storage import open_storage
from raybench.results.store import RECORDS_FILE, STUDY_FILE, Store
from raybench.search import watched as module
from raybench.search.watched import Watched
from raybench.spec.documents import to_yaml
from raybench.spec.study import SearchSpec, StudySpec
from tests.report.live.made_live import OBJECTIVE, evaluation, record

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
STUDY = StudySpec(
    objective=OBJECTIVE,
    search=SearchSpec(trials=12),
    space={"learning_rate": {"low": 0.1, "high": 0.2}},
)
YAML = to_yaml(
    {"study": STUDY.document(), "cluster": {"nodes": [{"cpus": 4, "gpus": 0}]}, "concurrency": 2}
)


def finished(name: str, seconds: float | None, moment: str, **options: Any) -> dict[str, Any]:
    return record(name, seconds, **options).line() | {"finished": f"2026-11-23T12:{moment}+00:00"}


NOBODY = 2**22 + 1
"""No process has this number."""
FIRST = [
    evaluation(0, 0.5).line("0000"),
    finished("0000", 2.0, "00:10"),
    evaluation(0, 0.6).line("0001"),
    evaluation(1, 0.7).line("0001"),
]


def text_of(lines: list[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(line)}\n" for line in lines)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A study whose driver lives: it is this process."""
    (tmp_path / STUDY_FILE).write_text(YAML)
    (tmp_path / RECORDS_FILE).write_text(text_of(FIRST))
    owner = {"pid": os.getpid(), "host": platform.node(), "since": "now", "command": "x"}
    (tmp_path / OWNER_FILE).write_text(json.dumps(owner))
    return tmp_path


def append(folder: Path, text: str) -> None:
    with (folder / RECORDS_FILE).open("a") as file:
        file.write(text)


def test_only_what_is_new_is_read_and_in_whole_lines(folder: Path) -> None:
    source = FolderSource(str(folder))
    assert len(source.news().lines) == 4
    assert source.news().lines == []
    line = text_of([evaluation(2, 0.8).line("0001")])
    append(folder, line[:50])
    assert source.news().lines == [], "torn"
    append(folder, line[50:] + line[:9])
    (found,) = source.news().lines
    assert json.loads(found)["index"] == 2
    # Cut and written anew, longer than before: `raybench train` does it.
    (folder / RECORDS_FILE).write_text(text_of([*FIRST[::-1], *FIRST]))
    news = source.news()
    assert (news.is_anew, len(news.lines)) == (True, 8)
    (folder / "other").write_text(text_of(FIRST[:1]))
    (folder / "other").rename(folder / RECORDS_FILE)
    news = source.news()
    assert (news.is_anew, len(news.lines)) == (True, 1)
    (folder / RECORDS_FILE).unlink()
    assert source.news().lines == []


def test_a_study_that_runs_is_followed_to_its_end(folder: Path) -> None:
    watched = Watched(FolderSource(str(folder)), 0.0)
    assert not watched.look(1e9)
    state = watched.state
    assert (state.phase, state.pace.num_done, state.pace.num_runs) == ("search", 1, 12)
    assert (state.num_workers, state.best is not None) == (4, True)
    assert list(state.runs) == ["0001"]
    assert state.runs["0001"].values == [0.6, 0.7]
    # It ends; another is heard of, and a third, of which the machines have room for two.
    append(folder, text_of([finished("0001", None, "00:20"), evaluation().line("0002")]))
    assert not watched.look(1e9)
    assert (state.pace.num_done, list(state.runs)) == (2, ["0002"])
    append(folder, text_of([evaluation().line(name) for name in ("0003", "0004")]))
    watched.look(1e9)
    assert set(state.runs) == {"0003", "0004"}, "0002 is of a session that was killed"
    race = [
        evaluation(0, 0.9).line("0000-race0"),
        finished("0000-race0", 1.0, "00:30", role="race", source="0000"),
        evaluation(0, 0.9).line("0000-race1"),
    ]
    append(folder, text_of(race))
    watched.look(1e9)
    assert (state.phase, state.pace.num_done) == ("race", 1)
    assert state.runs["0000-race1"].label.startswith("torch 2x128 adam 0.001")
    assert state.best is not None
    assert state.best.trial == "0000"
    (folder / OWNER_FILE).unlink()
    watched.look(1e9)
    assert watched.look(1e9)
    assert watched.notes() == ["The study was interrupted: the same command continues."]


def test_who_does_not_write_is_told_from_who_has_died(folder: Path, monkeypatch: Patch) -> None:
    source = FolderSource(str(folder))
    watched = Watched(source, 0.0)
    watched.look(1e9)
    assert (source.driver(), watched.notes()) == ("lives", [])
    long_ago = 1_000_000_000
    os.utime(folder / RECORDS_FILE, (long_ago, long_ago))
    (note,) = watched.notes()
    assert note.startswith("Nothing written for ")
    assert note.endswith("; its driver lives.")
    owner = json.loads((folder / OWNER_FILE).read_text())
    (folder / OWNER_FILE).write_text(json.dumps(owner | {"host": "elsewhere"}))
    watched.look(1e9)
    assert watched.notes()[0].endswith("; its driver may have died.")
    (folder / OWNER_FILE).write_text(json.dumps(owner | {"pid": NOBODY}))
    assert source.driver() == "died"
    (folder / OWNER_FILE).write_text("{")
    assert source.driver() == "unknown"
    (folder / OWNER_FILE).unlink()
    with StudyLock(folder):
        assert source.driver() == "lives"
    assert source.driver() == "ended"


@pytest.mark.parametrize(
    ("line", "why"),
    [('{"kind": "x"}', "its kind is none of"), ("[]", "no keys"), ("{", "property name")],
)
def test_a_line_that_is_no_record_is_named(folder: Path, line: str, why: str) -> None:
    number = len((folder / RECORDS_FILE).read_text().splitlines()) + 1
    append(folder, line + "\n")
    watched = Watched(FolderSource(str(folder)), 0.0)
    watched.look(1.0)
    assert f"line {number} (" in watched.notes()[0]
    assert why in watched.notes()[0]


def test_studies_that_are_no_search_are_shown_too(tmp_path: Path) -> None:
    for study in ({"objective": OBJECTIVE.model_dump(mode="json"), "run": True}, {"x": 1}):
        (tmp_path / STUDY_FILE).write_text(to_yaml({"study": study}))
        (tmp_path / RECORDS_FILE).write_text(text_of(FIRST))
        watched = Watched(FolderSource(str(tmp_path)), 0.0)
        watched.look(1e9)
        assert watched.state.pace.num_done == 1
    assert watched.state.pace.num_runs is None


def test_a_study_of_another_version_is_shown_without_what_is_left(folder: Path) -> None:
    content = {"study": STUDY.document() | {"confirm": {"top": 3}}}
    (folder / STUDY_FILE).write_text(to_yaml(content))
    watched = Watched(FolderSource(str(folder)), 0.0)
    watched.look(1e9)
    assert (watched.state.pace.num_done, watched.state.pace.num_runs) == (1, None)
    (note,) = watched.notes()
    assert note.startswith(
        "What is left is not known: study.yaml: study: unknown key 'confirm.top'"
    )


def test_a_finished_study_ends_with_its_tables(folder: Path, capsys: Capture) -> None:
    (folder / OWNER_FILE).unlink()
    (folder / RECORDS_FILE).write_text(text_of(FIRST[:2]))
    assert watch.main([str(folder)]) == cli.DONE
    printed = capsys.readouterr().out
    assert "trial 0000" in printed
    assert printed.rstrip().endswith("The study has ended.")
    assert watch.main([str(folder), "--once"]) == cli.DONE
    printed = capsys.readouterr().out
    assert "trial 0000" in printed, "the answer of what has ended, looked at once too"
    owner = {"pid": NOBODY, "host": platform.node()}
    (folder / OWNER_FILE).write_text(json.dumps(owner))
    assert watch.main([str(folder)]) == cli.FAILED
    assert "Its driver died: the same command continues." in capsys.readouterr().out
    race = Path(__file__).parents[2] / "fixtures" / "digits_race"
    assert watch.main([str(race), "--once"]) == cli.DONE
    assert "147 runs" in capsys.readouterr().out


def test_in_a_pipe_a_study_is_lines_until_it_ends(
    folder: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    naps = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 1:
            append(folder, text_of([finished("0001", 3.0, "00:20")]))
        elif len(naps) == 2:
            (folder / OWNER_FILE).unlink()

    monkeypatch.setattr(time, "sleep", nap)
    assert watch.main([str(folder), "--interval", "0.5"]) == cli.DONE
    lines = capsys.readouterr().out.splitlines()
    assert " watching" in lines[0]
    assert " search 2/12 finished trial=0001 time_to_target_s=3 " in lines[1]
    assert set(naps) == {0.5}


def test_ctrl_c_ends_the_watching_alone(folder: Path, capsys: Capture, monkeypatch: Patch) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    assert watch.main([str(folder)]) == cli.INTERRUPTED
    assert capsys.readouterr().err == "raybench: interrupted.\n"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nowhere"], "nowhere: is no folder; name the results folder of a study."),
        (["."], ".: holds no study; name the results folder, or the URL, of one."),
        (["--interval", "0", "."], "--interval 0: name seconds, 0.1 or more."),
        (["ftp://a/b"], "is no store that is known"),
    ],
)
def test_a_wrong_place_is_a_sentence(
    arguments: list[str], why: str, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert watch.main(arguments) == cli.WRONG_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line


def test_a_command_that_has_just_begun_is_waited_for(folder: Path) -> None:
    for name in (STUDY_FILE, RECORDS_FILE):
        (folder / name).unlink()
    watched = Watched(source_of(str(folder)), 0.0)
    assert not watched.look(1.0)
    assert watched.notes() == ["The command has begun; nothing is recorded yet."]
    (folder / STUDY_FILE).write_text(YAML)
    (folder / RECORDS_FILE).write_text(text_of(FIRST))
    watched.look(2.0)
    assert (watched.state.pace.num_runs, module.QUIET_S) == (12, 300.0)


def test_below_a_url_only_new_parts_are_fetched(url: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr("raybench.results.staging.PART_BYTES", 3000)
    with open_storage(url) as place, Store(place.folder) as store:
        store.write_text(STUDY_FILE, YAML)
        for number in range(4):
            store.append(finished(f"000{number}", 2.0, f"00:{10 + number}"))
        source = UrlSource(url)
        assert source.driver() == "unknown", "a lease is held; whether its owner lives, time tells"
    assert len(source.news().lines) == 4
    assert source.news().lines == []
    assert source.driver() == "ended"
    with open_storage(url) as place, Store(place.folder) as store:
        store.append(finished("0009", 2.0, "00:30"))
    get = Mock(side_effect=source._bucket.get)
    monkeypatch.setattr(source._bucket, "get", get)
    (line,) = source.news().lines
    assert json.loads(line)["trial"] == "0009"
    assert get.call_count == 1
