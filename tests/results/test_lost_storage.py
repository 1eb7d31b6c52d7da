"""Killed drivers, lost servers and refused credentials: what of a study below a URL is left."""

from contextlib import contextmanager

import pytest

from raybench.results.records import read_records
from raybench.results.storage import open_storage
from raybench.results.store import RECORDS_FILE, STUDY_FILE, Store
from raybench.spec.errors import ErrorCode, StudyError
from tests.below_url import WRITER, names, uploaded, wait_for, wanted, write
from tests.factories import start_python
from tests.made_results import run_line
from tests.refusals import refused


@contextmanager
def writer(url, study):
    """Another process that writes below a URL; to be killed."""
    with start_python(WRITER.format(url=url, study=study)) as process:
        assert process.stdout.readline() == "open\n"
        yield process


def test_the_same_machine_goes_on_at_once_with_what_was_not_uploaded(url, study, said, server):
    write(url, study, range(5), said)
    with writer(url, study) as process:
        server.door.shut()
        try:
            while int(process.stdout.readline()) < 20:
                pass
        finally:
            process.kill()
            process.wait()
            server.door.open()
    with open_storage(url, warn=said.append) as place:
        kept = list(read_records(place.folder).runs)
    assert len(kept) >= 20
    assert names(url) == kept


def test_refused_credentials_are_said_and_nothing_is_lost(url, study, said, server):
    place = open_storage(url, warn=said.append)
    store = Store(place.folder)
    store.write_text(STUDY_FILE, study)
    for number in range(20):
        if number == 10:
            wait_for(lambda: uploaded(url) == 10)
            server.refuse(True)
        store.append(run_line(f"{number:05d}", 1.0, learning_rate=0.01))
    try:
        wait_for(lambda: said)
        server.refuse(False)
        wait_for(lambda: uploaded(url) == 20)
        wait_for(lambda: len(said) == 2)
        server.refuse(True)
        store.append(run_line("00020", 1.0, learning_rate=0.01))
        store.close()
        with pytest.raises(StudyError) as end:
            place.close()
        with refused(ErrorCode.UNREACHABLE, url):
            open_storage(url)
    finally:
        server.refuse(False)
    assert str(place.folder) in str(end.value)
    assert str(place.folder) in said[0]
    assert 2 <= len(said) <= 3, "that it is refused and that it is back; tried often"
    for text in (str(end.value), *said):
        assert "\n" not in text
        assert "fake-secret" not in text
    assert names(url) == wanted(20)
    with open_storage(url, warn=said.append):
        pass
    assert names(url) == wanted(21)


def test_a_spool_that_lost_records_gets_them_back(url, study, said):
    folder = write(url, study, range(5), said)
    lines = (folder / RECORDS_FILE).read_text().splitlines(keepends=True)
    (folder / RECORDS_FILE).write_text("".join(lines[:2]) + lines[2][:20])
    write(url, study, range(5, 6), said)
    assert names(url) == wanted(6)
