"""Ctrl-C in the search: what is finished stays, and the same command continues."""

import signal
from pathlib import Path

import pytest

import raybench
from raybench.results.records import read_records
from raybench.results.verdict import judge
from tests.factories import read_lines

from .commands import start, until

pytestmark = pytest.mark.ray
SPACE = Path(__file__).with_name("small.yaml")
TORCH = ("--set", "space.framework=[torch]", "--set", "space.batch_size_per_worker=[16, 32]")


@pytest.mark.all
@pytest.mark.timeout(600)
def test_ctrl_c_writes_results_and_the_same_command_continues(tmp_path: Path) -> None:
    """In the search (in the race: test_signals.py); nothing runs twice, what is left runs."""
    folder = tmp_path / "results" / "small"
    records, log = folder / "records.jsonl", tmp_path / "log"
    confirm = ("--set", "confirm.race=4", "--set", "confirm.fresh=1")
    again: list[str | Path] = ["tune", SPACE, *TORCH, *confirm]
    process = start(*again, cwd=tmp_path, log=log)
    until(lambda: has_run(folder), process, log)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=600) == 130, log.read_text()
    assert (folder / "trials.csv").is_file()
    assert len([run for run in read_records(folder).runs.values() if run.is_answer]) < 4
    process = start(*again, cwd=tmp_path, log=log)
    assert process.wait(timeout=600) == 0, log.read_text()
    runs = read_records(folder).runs
    assert {run.role: run.state for run in runs.values()}.keys() >= {"trial", "race", "confirm"}
    assert {run.state for run in runs.values() if run.role != "race"} == {"complete"}
    # Two race once, and again unless one is too far behind; the same ones for the cheapest.
    seeds = {name: run.spec.seed for name, run in runs.items() if run.role == "race"}
    assert seeds == {name: 3000 + int(name[-1]) for name in seeds}
    assert 2 <= len(seeds) <= 8
    lines = [line for line in read_lines(records) if line["kind"] == "run"]
    # One that was disturbed runs again, and says so.
    ended = [(line["trial"], line["reruns"]) for line in lines if line["stop"] != "interrupted"]
    assert len(ended) == len(set(ended)), "none ran twice"
    verdict = judge(raybench.load(folder))
    assert verdict is not None
    assert verdict.is_confirmed


def has_run(folder: Path, role: str = "trial") -> bool:
    """Whether a run of that role is recorded."""
    records = folder / "records.jsonl"
    return records.is_file() and f'"role": "{role}"' in records.read_text()
