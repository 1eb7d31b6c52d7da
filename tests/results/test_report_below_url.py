"""`raybench report` of a study below a URL."""

from raybench.commands import report
from raybench.report.study import load
from raybench.results.bucket import Bucket
from tests.below_url import write


def test_a_report_is_made_of_a_copy(url, study, said, capsys):
    write(url, study, range(3), said)
    Bucket(url).put("model.pt", b"old")
    folder = load(url, files=("model.pt",)).folder
    assert (folder / "model.pt").read_bytes() == b"old"
    (folder / "best.yaml").write_text("of an earlier time")
    before = set(Bucket(url).entries())
    assert report.main([url, "--png"]) == 0
    assert set(Bucket(url).entries()) == before
    assert (folder / "best.yaml").read_text() != "of an earlier time"
    assert (folder / "trials.csv").read_bytes().count(b"\n") == 4
    assert "00000" in capsys.readouterr().out
