import json
import math

import pytest

from raybench.core.documents import parse_yaml
from raybench.core.errors import UserError
from raybench.results.store import RECORDS_FILE, Store, read_records

LINES = [{"kind": "eval", "trial": "0000", "index": n} for n in range(3)]


def written(folder, lines=LINES):
    store = Store(folder)
    for line in lines:
        store.append(line)
    store.close()
    return folder / RECORDS_FILE


def test_what_is_appended_is_read_in_order(tmp_path):
    written(tmp_path / "a" / "b")
    assert read_records(tmp_path / "a" / "b") == LINES


def test_a_record_is_in_the_file_when_append_returns(tmp_path):
    store = Store(tmp_path)
    for number, line in enumerate(LINES, start=1):
        store.append(line)
        assert read_records(tmp_path) == LINES[:number]
    store.close()


def test_a_reopened_folder_goes_on(tmp_path):
    written(tmp_path, LINES[:1])
    written(tmp_path, LINES[1:])
    assert read_records(tmp_path) == LINES


@pytest.mark.parametrize("torn", ['{"kind": "ev', "{", '{"a": "ü', '{"a": 1,\x00\x00'])
def test_a_torn_last_line_is_left_out_and_mended_on_reopening(tmp_path, torn):
    path = written(tmp_path)
    with path.open("ab") as file:
        file.write(torn.encode())
    assert read_records(tmp_path) == LINES
    written(tmp_path, [{"kind": "run"}])
    assert read_records(tmp_path) == [*LINES, {"kind": "run"}]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_file_of_one_torn_line_is_emptied(tmp_path):
    (tmp_path / RECORDS_FILE).write_text('{"kind"')
    assert read_records(tmp_path) == []
    written(tmp_path, LINES[:1])
    assert read_records(tmp_path) == LINES[:1]


def test_every_place_of_a_tear_is_survived(tmp_path):
    whole = written(tmp_path).read_bytes()
    for length in range(len(whole) + 1):
        (tmp_path / RECORDS_FILE).write_bytes(whole[:length])
        kept = read_records(tmp_path)
        assert kept == LINES[: len(kept)]
        assert len(kept) >= whole[:length].count(b"\n")


def test_reopening_loses_no_record_that_could_be_read(tmp_path):
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])  # torn between the record and its newline
    assert read_records(tmp_path) == LINES
    written(tmp_path, [])
    assert read_records(tmp_path) == LINES


def test_bytes_that_are_no_text_are_a_torn_line_too(tmp_path):
    path = written(tmp_path)
    with path.open("ab") as file:
        file.write(b"\xff\xfe\x80")
    assert read_records(tmp_path) == LINES


@pytest.mark.parametrize("broken", ["{oops}", '{"kind": "eval"', "not json"])
def test_a_broken_line_elsewhere_is_refused_with_its_number(tmp_path, broken):
    path = written(tmp_path)
    lines = path.read_text().splitlines()
    lines[1] = broken
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=r"records\.jsonl, line 2: is not JSON"):
        read_records(tmp_path)


def test_no_number_is_null(tmp_path):
    line = {"a": math.nan, "b": [math.inf, 1.5], "c": {"d": -math.inf, "e": (math.nan,)}, "f": 0}
    path = written(tmp_path, [line])
    expected = {"a": None, "b": [None, 1.5], "c": {"d": None, "e": [None]}, "f": 0}
    assert read_records(tmp_path) == [expected]

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    json.loads(path.read_text(), parse_constant=refuse)
    assert math.isnan(line["a"]), "the given record was changed"


@pytest.mark.parametrize("text", ["a\nb", "\u2028\u2029", "\x85", "ü\x1c", '"{}'])
def test_a_message_never_breaks_a_line(tmp_path, text):
    lines = [{"message": text}, {"message": "next"}]
    written(tmp_path, lines)
    assert read_records(tmp_path) == lines


@pytest.mark.parametrize("below", ["", "sub", "sub/sub"])
def test_a_folder_that_cannot_be_made_is_the_users_mistake(tmp_path, below):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"^--out .*cannot be written .*name another folder\.$"):
        Store(tmp_path / "file" / below)
    assert (tmp_path / "file").read_text() == "in the way"


def test_records_that_cannot_be_opened_are_the_users_mistake(tmp_path):
    (tmp_path / RECORDS_FILE).mkdir()
    with pytest.raises(UserError, match=r"cannot be written .Is a directory"):
        Store(tmp_path)


def test_a_folder_without_records_is_no_results_folder(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=r"holds no records\.jsonl"):
            read_records(folder)


def test_files_are_written_whole_and_leave_nothing_behind(tmp_path):
    store = Store(tmp_path)
    store.write_yaml("best.yaml", {"b": 1e-5, "a": [1]}, comment="one\ntwo")
    store.write_text("t.csv", "x\n")
    store.write_bytes("m.bin", b"\x00\xff")
    store.write_bytes("m.bin", b"\x01")
    store.close()
    text = (tmp_path / "best.yaml").read_text()
    assert text.startswith("# one\n# two\nb: ")
    assert parse_yaml(text, "best.yaml") == {"b": 1e-5, "a": [1]}
    assert (tmp_path / "m.bin").read_bytes() == b"\x01"
    assert {path.name for path in tmp_path.iterdir()} == {
        "best.yaml",
        "m.bin",
        RECORDS_FILE,
        "t.csv",
    }


def test_clear_forgets_and_goes_on(tmp_path):
    written(tmp_path)
    store = Store(tmp_path)
    store.clear()
    store.append(LINES[2])
    store.close()
    assert read_records(tmp_path) == [LINES[2]]
