"""Signals at any moment of a command: exit code, message, and no process left. The same command
resumes the study, in each of its phases."""

import signal
import time
from pathlib import Path

import pytest

import raybench
from raybench.results.records import read_records
from raybench.results.verdict import verdict_of
from tests.factories import read_lines

from .commands import raybench as raybench_command
from .watched import Watched, has_run, read_text

pytestmark = [pytest.mark.ray, pytest.mark.apart, pytest.mark.timeout(1800)]
INTERRUPTED = 130
IMPORTING_S = 0.5
"""Seconds until which Python may not have reached raybench's code, and ends as any program does."""
NUM_TRIALS = 3
"""Number of trials of a search that soon reaches its other phases."""
SOON_S = 120.0
"""Limit in seconds of the end after two signals."""
SPACE = f"""
workload: {Path(__file__).with_name("own_loops.py")}:plain
objective: {{kind: time_to_target, target: TARGET, hold: 1, max_train_seconds: 2}}
search: {{trials: TRIALS, seed: 0, early_stopping: false}}
confirm: {{race: 3, fresh: 3}}
space:
  num_workers: [1]
  learning_rate: {{low: 1.0e-3, high: 6.0e-3, log: true}}
fixed: {{framework: python, model: {{slowness: 20}}}}
"""
"""Study with runs of 0.8 s, whose workers import no framework."""

HANGS = """
import time

def train(run):
    with run.training():
        time.sleep(0.05)
    run.report(accuracy=0.5, samples=100)
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            pass
"""
HANGING = """
objective: {target: 0.9, max_train_seconds: 2}
search: {trials: 3, concurrency: 1}
confirm: {race: 0}
space: {learning_rate: {low: 0.01, high: 0.1}}
fixed: {framework: python}
"""


def write_space(folder: Path, phase: str | None) -> Path:
    """Write the space of a search that has the phase; if it is None, of a search that takes more
    than 10 s."""
    target = "auto" if phase == "reference" else "0.9"
    trials = 24 if phase is None else NUM_TRIALS
    file = folder / "small.yaml"
    file.write_text(SPACE.replace("TARGET", target).replace("TRIALS", str(trials)))
    return file


def strike(
    number: signal.Signals, when: float | str, folder: Path, *, phase: str | None, times: int = 1
) -> None:
    """Run a search that has the phase (see `write_space`) and check how a signal ends it. The
    signal is sent after a line with the beginning `when`, or after `when` seconds."""
    with Watched("tune", write_space(folder, phase), cwd=folder) as run:
        if isinstance(when, str):
            run.wait_for_line(when)
        else:
            run.wait_for(lambda: time.monotonic() > run.began + float(when))
        for _ in range(times):
            run.process.send_signal(number)
            time.sleep(0.1)
        code = run.wait(600.0 if times == 1 else SOON_S)
        assert "Traceback" not in run.stdout + run.stderr, run.printed
        is_early = when == IMPORTING_S and code == -number
        if not is_early:
            assert code == INTERRUPTED, f"exit code {code}\n{run.printed}"
            assert times > 1 or says_so(run.stdout, run.stderr), run.printed
        run.expect_none_left()
    assert not (results(folder) / "optuna.log.lock").exists(), (
        "a stale lock delays the next command by 30 s"
    )


def says_so(stdout: str, stderr: str) -> bool:
    """Whether one sentence says that the command was interrupted."""
    sentences = [line for line in stderr.splitlines() if line.startswith("raybench:")]
    last = stdout.strip().splitlines()[-1:]
    return len(sentences) == 1 or (not sentences and bool(last) and "interrupted" in last[0])


def results(folder: Path) -> Path:
    """Return the results folder of the study."""
    return folder / "results" / "small"


@pytest.mark.parametrize("command", [pytest.param("train", marks=pytest.mark.all), "tune"])
def test_one_signal_ends_a_loop_that_never_answers(command, tmp_path):
    """What the loop has reported is kept."""
    (tmp_path / "loop.py").write_text(HANGS)
    given = ["--train", "loop.py:train", "--out", "results/small"]
    if command == "tune":
        (tmp_path / "space.yaml").write_text(HANGING)
        given = ["space.yaml", *given]
    else:
        given += ["--set", "framework=python", "--set", "epochs=9"]
    with Watched(command, *given, cwd=tmp_path) as run:
        records = results(tmp_path) / "records.jsonl"
        run.wait_for(lambda: '"kind": "eval"' in read_text(records))
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == INTERRUPTED, run.printed
        assert "Traceback" not in run.printed
        run.expect_none_left()
    (record,) = read_records(results(tmp_path)).runs.values()
    assert (record.state, record.stop, record.best_value) == ("stopped", "interrupted", 0.5)


@pytest.mark.parametrize(
    ("number", "when"),
    [
        pytest.param(signal.SIGINT, 0.5, marks=pytest.mark.all),
        (signal.SIGTERM, 1.0),  # it has hung once
        pytest.param(signal.SIGHUP, 3.5, marks=pytest.mark.all),
        pytest.param(signal.SIGTERM, "reference", marks=pytest.mark.all),
    ],
)
def test_every_signal_at_every_moment(number, when, tmp_path):
    strike(number, when, tmp_path, phase=when if isinstance(when, str) else None)


@pytest.mark.all
def test_a_study_is_resumed_whatever_ended_its_drivers(tmp_path):
    """Ray's store is killed during the search, then Ctrl-C ends the race, and two signals the solo
    runs; then the same command runs to the end. No run is repeated, and none is missing."""
    with Watched("tune", write_space(tmp_path, "race"), cwd=tmp_path) as run:
        run.wait_for_line("search 2/")
        kept = set(read_records(results(tmp_path)).runs)
        (store,) = (p for p in run.left() if p.cmdline()[0].endswith("/gcs_server"))
        store.kill()
        assert run.wait() == 1, run.printed
        (sentence,) = run.stderr.splitlines()
        assert sentence.startswith("raybench: "), run.printed
        run.expect_none_left()
    assert kept <= set(read_records(results(tmp_path)).runs)
    strike(signal.SIGINT, "race", tmp_path, phase="race")
    assert (results(tmp_path) / "trials.csv").is_file()
    strike(signal.SIGINT, "confirm 1/", tmp_path, phase="race", times=2)
    with Watched("tune", tmp_path / "small.yaml", cwd=tmp_path) as run:
        assert run.wait() == 0, run.printed
        assert "Traceback" not in run.stderr, run.printed
        assert "confirmed by" in run.stdout, run.printed
        run.expect_none_left()
    runs = read_records(results(tmp_path)).runs
    assert sorted(name for name, one in runs.items() if one.role == "trial") == [
        f"{number:04d}" for number in range(NUM_TRIALS)
    ]
    assert {one.role for one in runs.values()} >= {"trial", "race", "confirm"}
    assert {one.state for one in runs.values() if one.role != "race"} == {"complete"}
    seeds = {name: one.spec.seed for name, one in runs.items() if one.role == "race"}
    assert seeds == {name: 3000 + int(name[-1]) for name in seeds}
    # A repeat differs from its source in its seed only, so it has the same placement.
    for one in (one for one in runs.values() if one.role in ("race", "confirm")):
        assert one.spec.model_copy(update={"seed": 0}) == runs[one.source or ""].spec
    lines = [x for x in read_lines(results(tmp_path) / "records.jsonl") if x["kind"] == "run"]
    ended = [line["trial"] for line in lines if line["stop"] != "interrupted"]
    assert len(ended) == len(set(ended)), "no run was repeated"
    assert verdict_of(raybench.load(results(tmp_path))).is_confirmed


SCALING_STUDY = f"""\
base:
  workload: {Path(__file__).with_name("own_loops.py")}:plain
  framework: python
  model: {{slowness: 20}}
  epochs: 4
num_workers: [1]
batch_sizes: [64, 128]
repeats: 2
"""


@pytest.mark.all
def test_ctrl_c_of_scale_writes_results_and_the_same_command_continues(tmp_path):
    (tmp_path / "tiny.yaml").write_text(SCALING_STUDY)
    folder = tmp_path / "results" / "tiny"
    with Watched("scale", "tiny.yaml", cwd=tmp_path) as study:
        study.wait_for(lambda: has_run(folder, "scaling"))
        study.process.send_signal(signal.SIGINT)
        assert study.wait() == INTERRUPTED, study.printed
    first = raybench.load(folder)
    finished = first.trials[first.trials["stop"] != "interrupted"].set_index("trial")["train_s"]
    assert 1 <= len(finished) < 4
    raybench_command("scale", "tiny.yaml", cwd=tmp_path)
    trials = raybench.load(folder).trials
    assert sorted(trials["state"]) == ["complete"] * 4
    after = trials.set_index("trial")["train_s"]
    assert all(after[name] == seconds for name, seconds in finished.items())
