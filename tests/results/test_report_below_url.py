"""`raybench report` of a study below a URL."""

from raybench.commands import report
from raybench.report.study import load
from raybench.results import storage
from raybench.results.bucket import Bucket
from raybench.results.storage import open_storage
from raybench.results.store import STUDY_FILE, Store
from tests.below_url import uploaded, wait_for, write
from tests.made_results import run_line


def test_a_report_uploads_what_it_made_and_nothing_else(url, study, said, capsys):
    write(url, study, range(3), said)
    Bucket(url).put("model.pt", b"old")
    folder = load(url, files=("model.pt",)).folder
    assert (folder / "model.pt").read_bytes() == b"old"
    (folder / "best.yaml").write_text("of an earlier time")
    Bucket(url).put("model.pt", b"trained again")
    before = set(Bucket(url).entries())
    assert report.main([url]) == 0
    assert Bucket(url).get("model.pt") == b"trained again"
    made = {"trials.csv", "curves.csv", "report.html"}
    assert set(Bucket(url).entries()) <= before | made | {"best.yaml", "cheapest.yaml"}
    assert Bucket(url).get("best.yaml") != b"of an earlier time"
    assert Bucket(url).get("trials.csv").count(b"\n") == 4
    assert report.main([url, "--png"]) == 0
    assert "00000" in capsys.readouterr().out
    assert any(key.endswith(".png") for key in Bucket(url).entries())


def test_a_report_beside_a_driver_leaves_its_files_alone(url, study, said, capsys):
    with open_storage(url, warn=said.append) as place, Store(place.folder) as store:
        store.write_text(STUDY_FILE, study)
        store.append(run_line("00000", 1.0, learning_rate=0.01))
        wait_for(lambda: uploaded(url) == 1)
        assert report.main([url]) == 0
        assert f"{url}: is in use by " in capsys.readouterr().out
        assert "trials.csv" not in Bucket(url).entries()


def test_a_report_of_records_that_went_on_is_not_uploaded(url, study, said, capsys, monkeypatch):
    """A driver that ends between a report's reading and its uploading has the last word."""
    write(url, study, range(3), said)

    def slow(*rest, **more):
        write(url, study, range(3, 4), said)
        Bucket(url).put("trials.csv", b"the driver's")

    monkeypatch.setattr(report, "show", slow)
    assert report.main([url]) == 0
    assert "has other records since they were read" in capsys.readouterr().out
    assert Bucket(url).get("trials.csv") == b"the driver's"


def test_a_report_without_the_right_to_write_is_printed_and_kept(
    url, study, said, capsys, monkeypatch
):
    write(url, study, range(3), said)

    def refuse(self, key, path):
        raise storage.BucketError("the credentials are refused.")

    monkeypatch.setattr(Bucket, "put_file", refuse)
    assert report.main([url]) == 1
    seen = capsys.readouterr()
    assert "00000" in seen.out
    assert "The report's files are in" in seen.err
