"""Fixtures of the logger tests: a recorded study, evaluation lines, and a logging session."""

import json
import shutil
from pathlib import Path

import pytest

from raybench.loggers.follow import Feed
from raybench.loggers.to_tensorboard import open_sink
from raybench.results.records import record_of
from raybench.results.store import plain
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation

FIXTURE = Path(__file__).parents[1] / "fixtures" / "digits_study"
SPEC = RunSpec(objective=Objective(target=0.9, max_train_seconds=60.0), learning_rate=0.25)


@pytest.fixture
def study(tmp_path):
    """A copy of the recorded study."""
    return Path(shutil.copytree(FIXTURE, tmp_path / "digits"))


@pytest.fixture
def point():
    """Return a function that makes evaluation lines, 1 s and 100 samples apart."""

    def made(trial, index, value=0.5, *, spec=SPEC):
        numbers = {"epoch": 1.0, "train_loss": 2.0, "learning_rate": 0.25, "samples_per_s": 100.0}
        progress = {"samples": 100 * (index + 1), "train_s": 1.0 + index, "value": value}
        line = Evaluation(index=index, **numbers, **progress).line(trial, role="trial", spec=spec)
        return json.loads(json.dumps(line))

    return made


@pytest.fixture
def session(tmp_path):
    """Return a function that logs lines to TensorBoard as one session does, and returns the number
    of runs that ended."""

    def run(*lines, close=True):
        sink = open_sink(tmp_path, "study")
        feed = Feed(sink)
        for line in lines:
            feed.take(*record_of(plain(line)), line)
        feed.flush()
        if close:
            feed.close()
        sink.close()
        return feed.num_ended

    return run
