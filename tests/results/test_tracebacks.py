from pathlib import Path

from raybench.results.store import Store, keep_error


def test_a_traceback_is_kept_in_a_file_that_the_message_names(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        text = "Traceback (most recent call last):\n  File ...\nRuntimeError: no"
        message = keep_error(store, "0003", "RuntimeError: no", text)
    assert message == "RuntimeError: no (traceback: errors/0003.txt)"
    assert (tmp_path / "errors" / "0003.txt").read_text().splitlines() == text.splitlines()


def test_without_a_traceback_there_is_no_file(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        assert keep_error(store, "0003", "the worker was lost", "") == "the worker was lost"
    assert not (tmp_path / "errors").exists()
