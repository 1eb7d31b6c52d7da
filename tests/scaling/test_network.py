"""`--network`: what lies between hosts, by a ratio."""

import math
from pathlib import Path

import pandas as pd
import pytest

from raybench.commands import cli
from raybench.scaling.fit_command import SURE, NetworkRatio
from raybench.scaling.throughput import PRIORS

pytestmark = pytest.mark.usefixtures("without_pollux")

STEPS = """num_workers,num_nodes,batch_size_per_worker,step_s
1,1,32,0.05\n2,1,32,0.06\n4,1,32,0.065\n1,1,64,0.08\n4,1,64,0.095\n"""


def test_a_ratio_is_taken_as_it_is() -> None:
    found = NetworkRatio(3.0)
    mean, sd = found.priors["log_network"]
    assert (mean, sd) == (pytest.approx(math.log(3)), SURE)
    assert found.priors | {"log_network": PRIORS["log_network"]} == PRIORS
    for number in ("3", "2.2", "4.2"):
        assert number in found.words()


@pytest.mark.parametrize("text", ["0", "nan"])
def test_a_wrong_network_is_refused(text: str, capsys) -> None:
    assert cli.main(["scale", "--fit", "steps.csv", "--network", text]) == cli.WRONG_INPUT
    assert text in capsys.readouterr().err


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
