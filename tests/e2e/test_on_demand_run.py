"""Data on demand through `raybench.train`: shared by two workers, waited for on the clock."""

import shutil
from pathlib import Path

import pytest

import raybench

from .commands import raybench as run
from .slow_pictures import READ_S

pytestmark = [pytest.mark.ray, pytest.mark.all]


@pytest.mark.slow
def test_two_workers_wait_for_their_slow_pictures(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shutil.copy(Path(__file__).with_name("slow_pictures.py"), tmp_path)
    run(
        *("train", "--set", "workload=slow_pictures:SlowPictures", "--set", "dataset=workload"),
        *("--set", "num_workers=2", "--set", "batch_size_per_worker=32", "--set", "epochs=2"),
        *("--set", "objective={target: 1.0}", "--out", "results/slow"),
        cwd=tmp_path,
    )
    (row,) = raybench.load(tmp_path / "results" / "slow").trials.to_dict("records")
    assert row["state"] == "complete"
    steps = 2 * 20  # of 1,257 samples in global batches of 64
    assert steps * READ_S <= row["input_s"] <= row["train_s"]


@pytest.mark.slow
def test_a_picture_that_cannot_be_read_is_the_failure(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shutil.copy(Path(__file__).with_name("slow_pictures.py"), tmp_path)
    said = run(
        *("train", "--set", "workload=slow_pictures:TornPictures", "--set", "dataset=workload"),
        *("--set", "prefetch=2", "--set", "epochs=2", "--out", "results/torn"),
        cwd=tmp_path,
        code=1,
    )
    assert "OSError: picture of a seven is torn" in said
