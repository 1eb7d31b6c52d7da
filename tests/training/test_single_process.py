"""Replicas in one process train what workers in processes of their own do (TensorFlow, on logical
devices of the CPU; torch's nn.DataParallel has GPUs alone)."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from continued import MIDDLE, spec_of
from optim_reference import IN_GROUPS, TOLERANCE, after_all_steps
from test_worker_equality import CASES, two_workers
from test_worker_equality import spec_of as equal_spec

from raybench.spec.run import RunSpec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.all,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="no tensorflow"),
]
SINGLE = {"strategy": "single_process", "num_workers": 2}


def in_one_process(specs: list[RunSpec], folder: Path) -> None:
    documents = json.dumps([spec.document() for spec in specs])
    script = str(Path(__file__).with_name("one_process.py"))
    ended = subprocess.run(
        [sys.executable, script, documents, str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]


OWN = spec_of("tensorflow", "sgd", num_workers=2, batch_size_per_worker=8)
"""What each replica has of its own: running averages and dropout."""
WORKERS = [*(equal_spec("tensorflow", *case, num_workers=2) for case in CASES), OWN]
"""Plain gradients and an adaptive optimizer over two passes beside it."""
MORE = {
    **{"batch_size_per_worker": 8, "record_steps": True},
    **{"ema_decay": 0.9, "precision": "fp16"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one process has saved all runs; its start is what takes long."""
    found = tmp_path_factory.mktemp("one_process")
    again = spec_of("tensorflow", "adam", **MORE, **SINGLE)
    in_one_process([*(one.model_copy(update=SINGLE) for one in WORKERS), again], found)
    return found


def test_two_workers_and_two_replicas_equal_one_worker_with_twice_the_batch(folder: Path) -> None:
    two_workers("tensorflow", folder, OWN)
    check_the_paper(folder)
    for index, spec in enumerate(WORKERS):
        place = index if spec is not OWN else len(CASES) + 1  # after the library's optimizer
        two, one = (dict(np.load(folder / f"{name}.npz")) for name in (f"{place}-0", str(index)))
        assert one.keys() == two.keys()
        assert one["steps"] == two["steps"]
        losses = slice(0, 1 if "regularised" in spec.workload else 2)
        # Float32 sums in another order (measured: weights within 3e-8, the last ones bit by bit).
        np.testing.assert_allclose(one["sums"][losses], two["sums"][losses], rtol=1e-4)
        assert one["sums"][3] == two["sums"][3]
        if "regularised" not in spec.workload:  # there each worker evaluates with its averages
            assert abs(one["sums"][2] - two["sums"][2]) <= 1
        for name in (name for name in one if name.startswith("weights")):
            np.testing.assert_allclose(one[name], two[name], atol=1e-6, rtol=1e-4)


def check_the_paper(folder: Path) -> None:
    """Every Keras optimizer ends where its paper does, on both workers, in tf.function."""
    for rank in range(2):
        weights = np.load(folder / f"paper-{rank}.npz")
        for name in IN_GROUPS:
            for index, values in enumerate(after_all_steps(name, outputs_last=True)):
                np.testing.assert_allclose(weights[f"{name}{index}"], values, **TOLERANCE)


def test_a_continued_run_equals_a_whole_one(folder: Path) -> None:
    whole, rest = (dict(np.load(folder / f"{name}.npz")) for name in ("whole", "rest"))
    np.testing.assert_array_equal(whole.pop("facts")[MIDDLE + 1 :], rest.pop("facts"))
    assert whole.keys() == rest.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(array, rest[name], err_msg=name)
    check_copies(list(whole.values()))
    for line in json.loads((folder / "curve.json").read_text()):
        assert line["steps"]
        assert line.get("noise_scale") is None
        assert line.get("evenness") is None


def check_copies(copies: list[np.ndarray]) -> None:
    """Both replicas hold the same but for the streams of dropout: running averages are joined."""
    first, second = copies[: len(copies) // 2], copies[len(copies) // 2 :]
    pairs = zip(first, second, strict=True)
    assert sum(not np.array_equal(one, other) for one, other in pairs) == 1
