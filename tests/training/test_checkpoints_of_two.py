"""Two workers continued in new processes equal those that were not interrupted."""

import json
from pathlib import Path

import numpy as np
import pytest
from continued import END, MIDDLE, spec_of
from group import run_two
from local import FRAMEWORKS

OPTIMIZERS = ("lars", "schedule_free_adamw", "muon")
"""Of the kinds of state that there are; test_checkpoints.py has all of them, in one process."""
SCRIPT = Path(__file__).with_name("continued.py")


@pytest.mark.all
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.slow
def test_two_workers_continue_in_new_processes(framework: str, tmp_path: Path) -> None:
    specs = {
        name: spec_of(framework, name, num_workers=2, batch_size_per_worker=8)
        for name in OPTIMIZERS
    }
    documents = {name: spec.document() for name, spec in specs.items()}
    first = [(name, documents[name], -1) for name in OPTIMIZERS]
    points = [*((name, MIDDLE) for name in OPTIMIZERS), ("lars", END)]
    run_two([str(SCRIPT), json.dumps(first)], tmp_path)
    for rank in range(2):
        (tmp_path / f"done-{rank}").unlink()
    rest = [(name, documents[name], at) for name, at in points]
    run_two([str(SCRIPT), json.dumps(rest)], tmp_path)
    for rank in range(2):
        for name, at in points:
            one = dict(np.load(tmp_path / f"{name}-1-{rank}.npz"))
            other = dict(np.load(tmp_path / f"{name}{at}-{rank}.npz"))
            assert other["seconds"][0] > one["seconds"][at]
            np.testing.assert_array_equal(one.pop("facts")[at + 1 :], other.pop("facts"))
            assert one.keys() == other.keys()
            for key in one.keys() - {"seconds"}:
                np.testing.assert_array_equal(one[key], other[key], err_msg=f"{name} {key}")
