"""`raybench scale` as a user runs it: interrupted, run again; what it measures is in
test_live_session.py."""

import signal
from pathlib import Path

import pytest

import raybench

from .commands import has_run, start, until
from .commands import raybench as run

pytestmark = [pytest.mark.ray, pytest.mark.all]
STUDY = f"""\
base:
  workload: {Path(__file__).with_name("own_loops.py")}:plain
  framework: python
  model: {{slowness: 20}}
  epochs: 4
num_workers: [1]
batch_sizes: [64, 128]
repeats: 2
"""


def test_ctrl_c_writes_results_and_the_same_command_continues(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(STUDY)
    folder = tmp_path / "results" / "tiny"
    process = start("scale", "tiny.yaml", cwd=tmp_path, log=tmp_path / "log")
    until(lambda: has_run(folder, "scaling"), process, tmp_path / "log")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=600) == 130, (tmp_path / "log").read_text()
    first = raybench.load(folder)
    finished = first.trials[first.trials["stop"] != "interrupted"].set_index("trial")["train_s"]
    assert 1 <= len(finished) < 4
    run("scale", "tiny.yaml", cwd=tmp_path)
    trials = raybench.load(folder).trials
    assert sorted(trials["state"]) == ["complete"] * 4
    after = trials.set_index("trial")["train_s"]
    assert all(after[name] == seconds for name, seconds in finished.items())
