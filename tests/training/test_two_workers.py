"""Two workers that exchange gradients in every way there is, in both frameworks; that continue,
and equal one worker with twice the batch, batch normalisation too; replicas in one process that do
the same (TensorFlow, on logical devices of the CPU; torch's nn.DataParallel has GPUs alone).

One group of each framework serves all tests here: its start is what takes long.
"""

import importlib.util
import json
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import continued
import headed
import numpy as np
import pytest
from exchanging import RATE, STEPS, part_of_batch, spec_of
from group import once, ran, run_two
from local import alone, new_trainer, small_spec
from one_worker import weights_of
from optim_reference import IN_GROUPS, TOLERANCE, after_all_steps
from test_worker_equality import CASES, check_two_are_one, specs_of_two
from test_worker_equality import spec_of as equal_spec

from raybench.scaling.fits import noise_scales
from raybench.spec.run import RunSpec
from raybench.stats.step_times import NoiseSums

FRAMEWORKS = ("torch", "tensorflow")
pytestmark = [pytest.mark.all, pytest.mark.timeout(1800)]
MIDDLE, END = continued.MIDDLE, continued.END
CONTINUED = [("muon", at) for at in (-1, MIDDLE, END)]
"""Runs to continue: whole (-1), and from an evaluation on. Muon has states of several kinds. All
optimizers are in test_checkpoints.py, and new processes in tests/e2e."""
APART: dict[str, object] = {"sync_batch_norm": False, "gpus_per_worker": 0}
NORMALISED = {"torch": [APART], "tensorflow": [APART, {}, {"frozen_epochs": 1.0}]}
"""Cases of batch normalization. torch synchronizes on GPUs only, so its one case averages the
statistics of workers."""
SINGLE = {"strategy": "single_process", "num_workers": 2}
OWN = continued.spec_of("tensorflow", "sgd", num_workers=2, batch_size_per_worker=8)
"""A run whose replicas differ: running averages and dropout."""
WORKERS = [*(equal_spec("tensorflow", *case, num_workers=2) for case in CASES), OWN]
"""Plain gradients and an adaptive optimizer over two passes beside it."""
MORE = {
    **{"batch_size_per_worker": 8, "record_steps": True},
    **{"ema_decay": 0.9, "precision": "fp16"},
}


def normalised_spec(framework: str, num_workers: int, **changes: object) -> RunSpec:
    content: dict[str, object] = {
        "num_workers": num_workers,
        "batch_size_per_worker": 8 // num_workers,
        "sync_batch_norm": True,
        "gpus_per_worker": 1,
        "learning_rate": 1e-2,
        "optimizer": "sgd",
    }
    return small_spec(framework, **(content | changes))


def given(framework: str) -> dict[str, Any]:
    """Return the tasks of a group besides the exchange."""
    two = {"num_workers": 2, "batch_size_per_worker": 8}
    return {
        "continued": [
            (name, continued.spec_of(framework, name, **two).document(), at)
            for name, at in CONTINUED
        ],
        "headed": [
            normalised_spec(framework, 2, **case).document() for case in NORMALISED[framework]
        ],
        "one_worker": [*specs_of_two(framework), OWN.document()],
    }


@dataclass
class Group:
    """Results of a group of two workers."""

    framework: str
    folder: Path
    found: list[dict[str, Any]]

    def weights(self, name: str, rank: int = 0) -> list[np.ndarray]:
        saved = np.load(self.folder / f"{name}-{rank}.npz")
        return [saved[f"w{index}"] for index in range(len(saved.files))]


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Group]:
    made = {}
    for framework in FRAMEWORKS:
        if importlib.util.find_spec(framework) is None:
            pytest.skip(f"no {framework}")
        run = partial(run_two, "exchanging.py", framework, given(framework))
        folder = once(tmp_path_factory, framework, run)
        found = [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(2)]
        made[framework] = Group(framework, folder, found)
    return made


@pytest.fixture(params=FRAMEWORKS)
def group(request: pytest.FixtureRequest, groups: dict[str, Group]) -> Group:
    return groups[request.param]


def equal(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def distance(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    """The largest difference of a weight."""
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "name", ["plain", "recorded", "small_buckets", "fp16", "bf16", "half", "passes", "compiled"]
)
def test_workers_that_exchange_end_with_equal_weights(group: Group, name: str) -> None:
    assert equal(group.weights(name, 0), group.weights(name, 1))


@pytest.mark.parametrize(
    ("name", "least"), [("compiled", 1e-3), ("recorded", 0), ("small_buckets", 0)]
)
def test_compiling_recording_and_buckets_change_no_weight(
    group: Group, name: str, least: float
) -> None:
    assert distance(group.weights("plain"), group.weights(name)) <= least


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_compressed_gradients_train_alike_and_are_compressed(group: Group, name: str) -> None:
    plain, compressed = group.found[0]["plain"][-1], group.found[0][name][-1]
    assert compressed["train_loss"] == pytest.approx(plain["train_loss"], rel=0.01)
    assert abs(compressed["value"] - plain["value"]) <= 0.02
    differences = [
        np.abs(one - other).ravel()
        for one, other in zip(group.weights("plain"), group.weights(name), strict=True)
    ]
    # After 18 steps a weight is off by less than a thirtieth of one; Adam takes whole steps by
    # gradients that fp16 has made 0.
    assert 0 < np.concatenate(differences).mean() < RATE / 30


def test_steps_not_taken_are_the_same_on_all_workers(group: Group) -> None:
    plain, half = group.found[0]["plain"][-1], group.found[0]["half"][-1]
    assert half["skipped_steps"] == group.found[1]["half"][-1]["skipped_steps"] > 0
    assert half["train_loss"] == pytest.approx(plain["train_loss"], rel=0.3)
    assert all(math.isfinite(one) for one in half["noise_scale"].values())


def test_without_exchange_each_worker_trains_by_itself(group: Group) -> None:
    first, second = group.weights("alone", 0), group.weights("alone", 1)
    assert distance(first, second) > 1e-3
    assert [found["without_the_other"] for found in group.found] == [4, 1]
    # Both learn: on 45 digits each, less than together.
    losses = [line["train_loss"] for line in group.found[0]["alone"]]
    assert losses[-1] < losses[0]
    assert group.found[0]["alone"][-1]["bytes_exchanged_per_step"] == 0
    assert "noise_scale" not in group.found[0]["alone"][-1]


def test_every_evaluation_has_the_bytes_and_times_of_its_steps(group: Group) -> None:
    runs = group.found[0]
    sent = [
        runs[name][-1].get("bytes_exchanged_per_step") for name in ("plain", "recorded", "bf16")
    ]
    assert sent == [None, 4 * 402_442, 2 * 402_442]
    for rank in range(2):
        assert "steps" not in group.found[rank]["plain"][-1]
        before = 0.0
        for line in group.found[rank]["recorded"]:
            steps, seconds = line["steps"], line["train_s"] - before
            before = line["train_s"]
            assert steps["num"] == 5  # the sixth is short
            assert 0 < steps["p25_s"] <= steps["median_s"] <= steps["p75_s"] <= steps["p95_s"]
            assert steps["p95_s"] <= steps["max_s"] < seconds
            assert line["memory_peak_bytes"] > 50e6
    shared = [[line["steps"] for line in found["recorded"]] for found in group.found]
    assert shared[0] == shared[1]


def gradient_parts(framework: str, num_samples: int) -> list[np.ndarray]:
    """Return each worker's part of the gradient, from a step of SGD with rate 1 in one process."""
    spec = spec_of(framework, num_workers=1, optimizer="sgd", momentum=0.0)
    trainer, _, _ = new_trainer(spec)
    initial, parts = trainer.save(), []
    for rank in range(2):
        trainer.load(initial)
        before = np.concatenate([array.ravel() for array in weights_of(trainer, framework)])
        step = part_of_batch(num_samples, rank, 2)
        trainer.train([replace(step, learning_rate=1.0)])
        after = np.concatenate([array.ravel() for array in weights_of(trainer, framework)])
        parts.append(before.astype(np.float64) - after)
    trainer.close()
    return parts


@pytest.mark.parametrize("name", STEPS)
def test_the_norms_of_single_steps_are_those_of_numpy(group: Group, name: str) -> None:
    parts = gradient_parts(group.framework, STEPS[name])
    whole = float(np.sum(np.square(parts[0] + parts[1])))
    assert whole > 0
    for rank, part in enumerate(parts):
        logged = group.found[rank]["logs"][name]
        expected = [float(np.sum(np.square(part))), whole]
        # The reference is a difference of float32 weights.
        assert logged == pytest.approx(expected, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("name", ["recorded", "small_buckets", "passes", "bf16"])
def test_the_noise_of_both_frameworks_agrees(groups: dict[str, Group], name: str) -> None:
    curves = [groups[framework].found[0][name] for framework in FRAMEWORKS]
    for torch_line, keras_line in zip(*curves, strict=True):
        one, other = torch_line["noise_scale"], keras_line["noise_scale"]
        # The last step of an epoch is short: it has noise, but is not timed as a whole one.
        assert one["num_steps"] == other["num_steps"] == torch_line["steps"]["num"] + 1
        for key in ("gradient", "noise"):
            assert one[key] == pytest.approx(other[key], rel=0.1, abs=1e-3)
    (scale,) = noise_scales([NoiseSums(**curves[0][0]["noise_scale"])])
    assert scale > 0


def in_one_process(specs: list[RunSpec], folder: Path) -> None:
    documents = json.dumps([spec.document() for spec in specs])
    script = str(Path(__file__).with_name("one_process.py"))
    ran(script, documents, str(folder))


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which one process has saved all runs; its start takes long."""
    again = continued.spec_of("tensorflow", "adam", **MORE, **SINGLE)
    specs = [*(one.model_copy(update=SINGLE) for one in WORKERS), again]
    return once(tmp_path_factory, "one_process", partial(in_one_process, specs))


def test_two_workers_and_two_replicas_equal_one_worker_with_twice_the_batch(
    groups: dict[str, Group], one_process: Path
) -> None:
    workers = groups["tensorflow"].folder
    check_two_are_one("tensorflow", workers)
    check_the_paper(workers)
    for index, spec in enumerate(WORKERS):
        place = index if spec is not OWN else len(specs_of_two("tensorflow"))
        two, one = np.load(workers / f"{place}-0.npz"), np.load(one_process / f"{index}.npz")
        assert one.files == two.files
        assert one["steps"] == two["steps"]
        losses = slice(0, 1 if "regularised" in spec.workload else 2)
        # Float32 sums in another order (measured: weights within 3e-8, the last ones bit by bit).
        np.testing.assert_allclose(one["sums"][losses], two["sums"][losses], rtol=1e-4)
        assert one["sums"][3] == two["sums"][3]
        if "regularised" not in spec.workload:  # there each worker evaluates with its averages
            assert abs(one["sums"][2] - two["sums"][2]) <= 1
        for name in (name for name in one.files if name.startswith("weights")):
            np.testing.assert_allclose(one[name], two[name], atol=1e-6, rtol=1e-4)


def check_the_paper(folder: Path) -> None:
    """Every Keras optimizer ends where its paper does, on both workers, in tf.function."""
    for rank in range(2):
        weights = np.load(folder / f"paper-{rank}.npz")
        for name in IN_GROUPS:
            for index, values in enumerate(after_all_steps(name, outputs_last=True)):
                np.testing.assert_allclose(weights[f"{name}{index}"], values, **TOLERANCE)


def test_replicas_that_continue_equal_those_of_a_whole_run(one_process: Path) -> None:
    whole, rest = (dict(np.load(one_process / f"{name}.npz")) for name in ("whole", "rest"))
    np.testing.assert_array_equal(whole.pop("facts")[MIDDLE + 1 :], rest.pop("facts"))
    assert whole.keys() == rest.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(array, rest[name], err_msg=name)
    check_copies(list(whole.values()))
    for line in json.loads((one_process / "curve.json").read_text()):
        assert line["steps"]
        assert line.get("noise_scale") is None
        assert line.get("evenness") is None


def check_copies(copies: list[np.ndarray]) -> None:
    """Both replicas are equal except for the random streams of dropout and Keras."""
    first, second = copies[: len(copies) // 2], copies[len(copies) // 2 :]
    pairs = zip(first, second, strict=True)
    assert sum(not np.array_equal(one, other) for one, other in pairs) == 2


def check_average_statistics(ranks: list[dict[str, np.ndarray]]) -> None:
    """Check that each worker trains with the statistics of its own samples, and that evaluation
    averages them and copies other buffers from rank 0."""
    for name in ("norm.running_mean", "norm.running_var"):
        own = [rank[f"own.{name}"] for rank in ranks]
        assert (abs(own[0] - own[1]) > 1e-4).any()
        for rank in ranks:
            np.testing.assert_allclose(rank[name], (own[0] + own[1]) / 2, rtol=1e-6, atol=1e-7)
    assert (ranks[0]["own.seen"] != ranks[1]["own.seen"]).all()
    for rank in ranks:
        np.testing.assert_array_equal(rank["seen"], ranks[0]["own.seen"])


def test_two_workers_with_normalisation_equal_one_with_twice_the_batch(group: Group) -> None:
    """The last batch has unequal shares."""

    def found(index: int) -> list[dict[str, np.ndarray]]:
        return [dict(np.load(group.folder / f"headed{index}-{rank}.npz")) for rank in range(2)]

    check_average_statistics(found(0))
    for index, case in enumerate(NORMALISED[group.framework][1:], start=1):
        spec = normalised_spec(group.framework, 1, **case)
        one = headed.outcome(spec, alone(group.framework))
        for two in found(index):
            for name, value in one.items():
                if "seen" in name:
                    continue
                # Keras's running variance over workers is the biased one of a step.
                close = 1e-2 if name.endswith("running_var") else 1e-4
                np.testing.assert_allclose(two[name], value, rtol=close, atol=1e-6, err_msg=name)
        assert not one["per_worker"]


def test_two_workers_continue(group: Group) -> None:
    for rank in range(2):
        for name, at in CONTINUED:
            if at < 0:
                continue
            one = dict(np.load(group.folder / f"{name}-1-{rank}.npz"))
            other = dict(np.load(group.folder / f"{name}{at}-{rank}.npz"))
            assert other["seconds"][0] > one["seconds"][at]
            np.testing.assert_array_equal(one.pop("facts")[at + 1 :], other.pop("facts"))
            assert one.keys() == other.keys()
            for key in one.keys() - {"seconds"}:
                np.testing.assert_array_equal(one[key], other[key], err_msg=f"{name} {key}")
