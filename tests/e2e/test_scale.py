"""`raybench scale` as a user runs it, interrupted and resumed; test_live_session.py checks what it
measures."""

import signal
from pathlib import Path

import pytest

import raybench

from .commands import raybench as run
from .watched import Watched, has_run

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
    with Watched("scale", "tiny.yaml", cwd=tmp_path) as study:
        study.wait_for(lambda: has_run(folder, "scaling"))
        study.process.send_signal(signal.SIGINT)
        assert study.wait() == 130, study.printed
    first = raybench.load(folder)
    finished = first.trials[first.trials["stop"] != "interrupted"].set_index("trial")["train_s"]
    assert 1 <= len(finished) < 4
    run("scale", "tiny.yaml", cwd=tmp_path)
    trials = raybench.load(folder).trials
    assert sorted(trials["state"]) == ["complete"] * 4
    after = trials.set_index("trial")["train_s"]
    assert all(after[name] == seconds for name, seconds in finished.items())
