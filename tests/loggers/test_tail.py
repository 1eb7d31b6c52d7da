"""The new lines of a file that another process writes."""

from pathlib import Path

from raybench.loggers.tail import Tail


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_only_new_lines_are_read_and_whole_ones(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    tail = Tail(path)
    assert tail.news().lines == []
    append(path, "one\ntwo\nth")
    assert tail.news().lines == [b"one", b"two"]
    append(path, "ree")
    assert tail.news().lines == [], "torn"
    append(path, "\nfo")
    assert tail.news().lines == [b"three"]
    # Cut and written anew, longer than before: `raybench train` does it.
    path.write_text("two\none\nthree\nfour\n")
    news = tail.news()
    assert (news.is_anew, len(news.lines)) == (True, 4)
    (tmp_path / "other").write_text("one\n")
    (tmp_path / "other").rename(path)
    news = tail.news()
    assert (news.is_anew, news.lines) == (True, [b"one"])
    path.unlink()
    assert tail.news().lines == []
