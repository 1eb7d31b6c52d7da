"""`--network`: what lies between hosts, by a ratio or a doctor's document."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from raybench.commands import cli
from raybench.scaling.fit_command import SURE, read_network
from raybench.scaling.throughput import PRIORS
from raybench.spec.errors import ErrorCode
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("without_pollux")

STEPS = """num_workers,num_nodes,batch_size_per_worker,step_s
1,1,32,0.05\n2,1,32,0.06\n4,1,32,0.065\n1,1,64,0.08\n4,1,64,0.095\n"""


def document(folder: Path, *, workers: tuple[int, int] = (2, 2), **seconds: object) -> str:
    """A doctor's, with seconds by bytes between hosts and inside."""
    levels = zip(("network", "inside"), workers, strict=True)
    found = {
        level: {"workers": number, "sizes": [{"bytes": n, "seconds": s} for n, s in times]}
        for level, number in levels
        if isinstance(times := seconds[level], list)
    }
    path = folder / "doctor.json"
    path.write_text(json.dumps({"network": None, "inside": None} | found))
    return str(path)


def test_a_ratio_is_taken_as_it_is() -> None:
    found = read_network("3")
    assert (found.ratio, found.log_sd) == (3.0, SURE)
    mean, sd = found.priors["log_network"]
    assert (mean, sd) == (pytest.approx(math.log(3)), SURE)
    assert found.priors | {"log_network": PRIORS["log_network"]} == PRIORS
    for number in ("3", "2.2", "4.2"):
        assert number in found.words()


@pytest.mark.parametrize(
    ("inside_workers", "between", "inside", "ratio", "log_sd"),
    [
        # 7 / 4 of the bytes of 8 workers pass the slowest link; small messages are not gradients.
        (8, [(2**10, 900.0), (2**25, 5.0)], [(2**10, 1.0), (2**25, 1.75)], 5.0, SURE),
        # Sizes that disagree widen the prior.
        (
            *(2, [(2**20, 2.0), (2**25, 8.0)], [(2**20, 1.0), (2**25, 1.0)]),
            *(4.0, math.hypot(SURE, math.log(2))),
        ),
    ],
)
def test_the_ratio_is_of_the_times_as_if_two_workers_took_part(
    tmp_path: Path,
    inside_workers: int,
    between: object,
    inside: object,
    ratio: float,
    log_sd: float,
) -> None:
    workers = (2, inside_workers)
    found = read_network(document(tmp_path, workers=workers, network=between, inside=inside))
    assert (found.ratio, found.log_sd) == pytest.approx((ratio, log_sd))


def test_a_doctor_s_document_alone_or_in_an_answer_is_read(tmp_path: Path) -> None:
    path = Path(document(tmp_path, network=[(2**25, 3.0)], inside=[(2**25, 1.5)]))
    path.write_text(json.dumps({"details": json.loads(path.read_text())}))
    assert read_network(str(path)).ratio == pytest.approx(2.0)
    document(tmp_path, network=[(2**25, 3.0)], inside=None)
    with refused(ErrorCode.INVALID_FILE, "doctor.json"):
        read_network(str(path))
    for text in ("{}", "no json", '{"network": {"workers": 2}, "inside": {"workers": 2}}'):
        path.write_text(text)
        with refused(ErrorCode.INVALID_FILE, "doctor --json"):
            read_network(str(path))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("0", ErrorCode.INVALID_VALUE),
        ("nan", ErrorCode.INVALID_VALUE),
        ("nowhere.json", ErrorCode.NOT_FOUND),
    ],
)
def test_a_wrong_network_is_refused(text: str, code: ErrorCode) -> None:
    with refused(code, "--network", text):
        read_network(text)


def test_a_study_measures_its_own_network(capsys) -> None:
    assert cli.main(["scale", "--network", "3"]) == cli.WRONG_INPUT
    err = capsys.readouterr().err
    assert "--network" in err
    assert "--fit" in err


def test_a_network_that_is_known_is_no_guess(tmp_path: Path) -> None:
    file, out = tmp_path / "steps.csv", tmp_path / "predicted.csv"
    file.write_text(STEPS)
    widths, steps = [], []
    for given in ((), ("--network", "1"), ("--network", "10")):
        call = ["--fit", str(file), "--predict", "16", "--out", str(out), *given]
        assert cli.run("scale", call) == cli.DONE
        table = pd.read_csv(out)
        widths.append((table["high_s"] / table["low_s"]).median())
        steps.append(table["step_s"].median())
    assert widths[1] < 0.7 * widths[0]
    assert steps[2] > 1.5 * steps[1]
