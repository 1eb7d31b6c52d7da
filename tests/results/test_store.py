"""Files of a results folder: records of every kind, torn and invalid ones, errors, and the kind
of a study."""

import copy
import io
import json
import math
import shutil
from typing import Any

import pytest
from rich.console import Console

from raybench.report.show import show
from raybench.report.study import load
from raybench.results.records import read_records
from raybench.results.store import (
    RECORDS_FILE,
    STUDY_FILE,
    Store,
    StudyFiles,
    StudyKind,
    keep_error,
    mend_last_line,
    study_kind,
)
from raybench.spec.documents import parse_yaml
from raybench.spec.errors import ErrorCode, StudyError, UserError
from tests.factories import read_lines
from tests.made_results import curve, results_folder, run_line
from tests.refusals import refused

LINES = [{"kind": "eval", "trial": "0000", "index": n} for n in range(3)]


def written(folder, lines=LINES):
    with Store(folder) as store:
        for line in lines:
            store.append(line)
    return folder / RECORDS_FILE


def read(folder):
    """Return the decoded lines of the records file."""
    return read_lines(folder / RECORDS_FILE)


def test_append_returns_after_the_record_is_written(tmp_path):
    with Store(tmp_path / "a" / "b") as store:
        for number, line in enumerate(LINES, start=1):
            store.append(line)
            assert read(tmp_path / "a" / "b") == LINES[:number]


def test_a_record_torn_at_any_byte_is_repaired(tmp_path):
    path = tmp_path / RECORDS_FILE
    assert not mend_last_line(path)
    complete = written(tmp_path).read_bytes()
    odd = ['{"a": "ü'.encode()[:-1], b'{"a": 1,\x00\x00', b"\xff\xfe\x80"]
    for content in [
        *(complete[:n] for n in range(len(complete) + 1)),
        *(complete + tail for tail in odd),
    ]:
        path.write_bytes(content)
        records = read(tmp_path)
        assert records == LINES[: len(records)]
        assert len(records) >= content.count(b"\n")
        assert mend_last_line(path) == (path.read_bytes() != content)
        assert read(tmp_path) == records
        assert path.read_bytes().count(b"\n") == len(records)


@pytest.mark.parametrize("broken", ["{oops}", '{"kind": "eval"', "not json"])
def test_a_broken_line_is_left_out_and_reported(tmp_path, broken):
    lines = [run_line("0000", 1.0), run_line("0001", 2.0)]
    complete = results_folder(tmp_path, lines)
    path = tmp_path / RECORDS_FILE
    path.write_text("\n".join([json.dumps(lines[0]), broken, json.dumps(lines[1])]) + "\n")
    study = load(tmp_path)
    assert study.trials.equals(complete.trials)
    (note,) = study.study["notes"]
    assert note.startswith("records.jsonl: line 2 (it")
    console = Console(file=io.StringIO(), width=200)
    show(console, study)
    assert note in " ".join(console.file.getvalue().split())
    path.write_text(f"{broken}\n" * 2)
    with refused(ErrorCode.INVALID_FILE, RECORDS_FILE, "line 1"):
        load(tmp_path)


def test_records_are_clean_json_without_nan(tmp_path):
    line = {"a": math.nan, "b": [math.inf, 1.5], "c": {"d": -math.inf, "e": (math.nan,)}, "f": 0}
    words = {"message": "caf\udce9 \x1b[31mred\x1b[0m", "hosts": ["a\nb"], "spec": {"k": "\x07"}}
    text = written(tmp_path, [line | words]).read_text()
    clean = {"message": "caf\ufffd red", "hosts": ["a b"], "spec": {"k": ""}}
    expected = {"a": None, "b": [None, 1.5], "c": {"d": None, "e": [None]}, "f": 0} | clean
    assert json.loads(text, parse_constant=pytest.fail) == expected
    assert "\\ud" not in text
    assert math.isnan(line["a"]), "the given record is not changed"


def test_a_folder_that_cannot_be_created_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "sub"):
        with refused(ErrorCode.NOT_WRITABLE, f"--out {folder}"):
            Store(folder)


def test_files_are_written_atomically(tmp_path):
    with Store(tmp_path) as store:
        store.write_yaml("best.yaml", {"b": 1e-5, "a": [1]}, comment="one\ntwo")
        store.write_text("t.csv", "x\n")
        store.write_bytes("m.bin", b"\x00\xff")
        store.write_bytes("m.bin", b"\x01")
    text = (tmp_path / "best.yaml").read_text()
    assert text.startswith("# one\n# two\nb: ")
    assert parse_yaml(text, "best.yaml") == {"b": 1e-5, "a": [1]}
    assert (tmp_path / "m.bin").read_bytes() == b"\x01"
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"best.yaml", "m.bin", "t.csv", RECORDS_FILE}


POINT = curve("0000", [0.5])[0]
RUN = run_line("0001", 2.0)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("null", ()),
        ({"kind": ["run"]}, ("eval, run, prediction",)),
        ({"kind": "run"}, ("'trial'",)),
        ({"kind": "eval", "trial": 3}, ("'trial'",)),
        ({"kind": "prediction", "trial": "0000"}, ("'framework'",)),
        (POINT | {"samples": 10**30}, ("'samples'",)),
        (POINT | {"train_s": True}, ("'train_s'",)),
        (RUN | {"best_value": 5.0}, ()),
        (RUN | {"test_value": -0.1}, ()),
        (RUN | {"wall_s": -1.0}, ()),
        (RUN | {"ledger": RUN["ledger"] | {"train": -1.0}}, ()),
        (RUN | {"ledger": {"train": "x"}}, ("'ledger.queue",)),
        (RUN | {"spec": {"framework": "torch"}}, ("'spec.workload",)),
        (RUN | {"spec": RUN["spec"] | {"num_workers": 0}}, ("'spec.num_workers",)),
    ],
)
def test_invalid_records_are_left_out_and_reported(tmp_path, line, names):
    results_folder(tmp_path, [run_line("0000", 1.0)])
    with (tmp_path / RECORDS_FILE).open("a") as file:
        file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")
    records = read_records(tmp_path)
    assert list(records.runs) == ["0000"]
    assert all(name in records.left_out for name in ("line 2 (", *names))
    assert "\n" not in records.left_out


@pytest.mark.parametrize(
    "content",
    [
        "versions: {}",
        "study: 3",
        "study: {objective: {kind: time_to_target}}",
        "study: {objective: {kind: time_to_target, target: 0.9}, space: [1]}",
        "study: {objective: {kind: time_to_target, target: 0.9}, price: much}",
        "{study: {objective: {kind: time_to_target, target: 0.9}}, notes: 3}",
        "{format: 2, study: {objective: {kind: time_to_target, target: 0.9}}}",
    ],
)
def test_invalid_study_files_are_refused(tmp_path, content):
    results_folder(tmp_path, [run_line("0000", 1.0)])
    (tmp_path / STUDY_FILE).write_text(content)
    code = ErrorCode.STUDY_CHANGED if "format: 2" in content else ErrorCode.INVALID_FILE
    with refused(code, tmp_path / STUDY_FILE):
        load(tmp_path)


@pytest.mark.all
def test_changed_values_in_records_never_raise_a_traceback(tmp_path):
    """With any value changed, in a run for each wrong value, the study is read or refused on one
    line."""
    results_folder(tmp_path, [])
    point, run = copy.deepcopy((POINT, RUN))
    spec, refused = run["spec"], {}
    for part in (point, run, spec, run["ledger"]):
        others = () if part is spec else (-1, [], True)  # pydantic validates specs
        for key, original in list(part.items()):
            lines = []
            for number, value in enumerate((None, "x", 10**400, *others)):
                part[key] = value
                name = {} if key == "trial" else {"trial": f"{number:04d}"}
                lines += [json.dumps(line | name) for line in (point, run)]
            part[key] = original
            (tmp_path / RECORDS_FILE).write_text("".join(f"{line}\n" for line in lines))
            try:
                notes = load(tmp_path).study.get("notes", [])
            except UserError as error:
                notes = [str(error)]
            refused |= {(id(part), key): note for note in notes}
    assert len(refused) > 60
    assert not [sentence for sentence in refused.values() if "\n" in sentence]


@pytest.mark.parametrize(
    ("trial", "name"),
    [
        ("0018.torch2", "0018.torch2.txt"),
        ("../../etc/passwd", "_.._etc_passwd.txt"),
        ("..", "_.txt"),
        ("a b\n\udce9", "a_b__.txt"),
        ("x" * 300, "x" * 100 + ".txt"),
    ],
)
def test_the_traceback_of_a_failure_is_written(tmp_path, trial, name):
    store = StudyFiles(tmp_path)
    text = 'Traceback:\n  File "m.py"\n\x1b[31mcaf\udce9\x1b[0m'
    path = store.write_error(trial, text)
    assert path == tmp_path / "errors" / name
    assert path.read_text() == 'Traceback:\n  File "m.py"\ncaf\ufffd\n'
    store.write_error(trial, "again")
    assert path.read_text() == "again\n"
    assert [file.name for file in path.parent.iterdir()] == [name]


def test_the_message_of_a_failure_names_the_file_of_its_traceback(tmp_path):
    with Store(tmp_path) as store:
        assert keep_error(store, "0003", "no", "") == "no"
        assert not (tmp_path / "errors").exists()
        assert keep_error(store, "0003", "no", "Traceback") == "no (traceback: errors/0003.txt)"
        assert (tmp_path / "errors" / "0003.txt").read_text() == "Traceback\n"
        log = store.write_log("0003", b"\x1b[31mloss 0.5\xff\n")
        assert log.read_text() == "loss 0.5\ufffd\n"
        assert keep_error(store, "0003", "no", "", log=log) == "no (output: logs/0003.txt)"
        named = "no (traceback: errors/0003.txt, output: logs/0003.txt)"
        assert keep_error(store, "0003", "no", "Traceback", log=log) == named
    assert (tmp_path / "errors" / "0003.txt").read_text() == "Traceback\noutput: logs/0003.txt\n"


def replace_records(folder):
    (folder / RECORDS_FILE).rename(folder / "old")
    (folder / RECORDS_FILE).write_text("")


@pytest.mark.parametrize(
    ("harm", "is_gone"),
    [
        (shutil.rmtree, True),
        (lambda folder: folder.rename(folder.with_name("elsewhere")), True),
        (lambda folder: (folder / RECORDS_FILE).unlink(), False),
        (replace_records, False),
    ],
)
def test_a_folder_deleted_during_the_study_raises_a_study_error(tmp_path, harm, is_gone):
    folder = tmp_path / "study"
    with Store(folder) as store:
        harm(folder)
        writes = [lambda: store.append(LINES[1])]
        if is_gone:
            writes += [lambda: store.write_yaml("s", {}), lambda: store.write_error("0000", "x")]
        for write in writes:
            with pytest.raises(StudyError) as refusal:
                write()
            assert "\n" not in str(refusal.value)
    assert folder.exists() != is_gone


OBJECTIVE: dict[str, Any] = {"objective": {"target": 0.95}}


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ({"study": OBJECTIVE | {"space": {"num_workers": [1, 2]}}}, StudyKind.SEARCH),
        ({"study": OBJECTIVE | {"run": True}}, StudyKind.TRAINING),
        ({"study": OBJECTIVE | {"diagnosis": {"num_workers": 2}}}, StudyKind.DIAGNOSIS),
        ({"study": OBJECTIVE, "scaling_study": {}}, StudyKind.SCALING),
        ({"study": OBJECTIVE, "compare": {"sides": []}}, StudyKind.COMPARISON),
        ({"study": OBJECTIVE, "imported": {"from": "runs.csv"}}, StudyKind.IMPORTED),
        ({}, StudyKind.SEARCH),
        ({"study": "not a study"}, StudyKind.SEARCH),
    ],
)
def test_the_kind_follows_from_the_keys(content, kind):
    assert study_kind(content) is kind
