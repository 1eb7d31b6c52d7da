"""Two workers that exchange gradients in all supported ways, in both frameworks.

They are compared with one worker of twice the batch, resumed, and compared with replicas in one
process (TensorFlow only, on logical devices of the CPU; `nn.DataParallel` of torch needs GPUs).
One group per framework does all tasks because its start takes long.
"""

import importlib.util
import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import checkpointed_runs
import headed_model
import numpy as np
import pytest
from local_runs import RankContext, new_trainer, single_worker, small_spec
from optim_reference import IN_GROUPS, TOLERANCE, after_all_steps
from test_worker_equality import CASES, assert_same_result, check_two_are_one, specs_of_two
from test_worker_equality import spec_of as equal_spec
from two_worker_script import RATE, SPECS, STEPS, spec_of
from worker_processes import cached_folder, run_python, run_two
from worker_script import flat_weights

from raybench.scaling.fits import noise_scales
from raybench.spec.run import RunSpec
from raybench.stats.step_times import NoiseSums
from raybench.training.samples import make_step

FRAMEWORKS = ("torch", "tensorflow")
pytestmark = [pytest.mark.all, pytest.mark.timeout(1800)]
MIDDLE = checkpointed_runs.MIDDLE
UNSYNCHRONIZED = {"sync_batch_norm": False, "gpus_per_worker": 0}
NORMALIZED = {
    "torch": [UNSYNCHRONIZED],
    "tensorflow": [UNSYNCHRONIZED, {}, {"frozen_epochs": 1.0}],
}
"""Cases of batch normalization. torch synchronizes statistics on GPUs only, so its single case
averages those of the workers."""
SINGLE_PROCESS = {"strategy": "single_process", "num_workers": 2}
DROPOUT = checkpointed_runs.spec_of("tensorflow", "sgd", num_workers=2, batch_size_per_worker=8)
"""Run whose replicas differ by running averages and dropout."""
WORKERS = [*(equal_spec("tensorflow", *case, num_workers=2) for case in CASES), DROPOUT]
"""Runs with plain gradients, with an adaptive optimizer and two passes, and with dropout."""
RESUMED = {
    **{"batch_size_per_worker": 8, "record_steps": True},
    **{"ema_decay": 0.9, "precision": "fp16"},
}


def normalized_spec(framework: str, num_workers: int, **changes: object) -> RunSpec:
    content = {
        "num_workers": num_workers,
        "batch_size_per_worker": 8 // num_workers,
        "sync_batch_norm": True,
        "gpus_per_worker": 1,
        "learning_rate": 1e-2,
        "optimizer": "sgd",
    }
    return small_spec(framework, **(content | changes))


def tasks_of(framework: str) -> dict[str, Any]:
    """Return the tasks of a group in addition to those of `two_worker_script` itself."""
    two = {"num_workers": 2, "batch_size_per_worker": 8}
    # Muon has states of several kinds. `test_checkpoints` has all optimizers.
    checkpointed = checkpointed_runs.spec_of(framework, "muon", **two).document()
    return {
        "checkpointed_runs": [("muon", checkpointed, at) for at in (-1, MIDDLE)],
        "headed_model": [
            normalized_spec(framework, 2, **case).document() for case in NORMALIZED[framework]
        ],
        "worker_script": [*specs_of_two(framework), DROPOUT.document()],
    }


@dataclass
class Group:
    """Results of a group of two workers."""

    framework: str
    folder: Path
    results: list[dict[str, Any]]
    """Saved results by rank."""

    def weights(self, name: str, rank: int = 0) -> list[np.ndarray]:
        saved = np.load(self.folder / f"{name}-{rank}.npz")
        return [saved[f"w{index}"] for index in range(len(saved.files))]


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Group]:
    groups = {}
    for framework in FRAMEWORKS:
        if importlib.util.find_spec(framework) is None:
            pytest.skip(f"no {framework}")
        run = partial(run_two, "two_worker_script.py", framework, tasks_of(framework))
        folder = cached_folder(tmp_path_factory, framework, run)
        results = [json.loads((folder / f"results-{rank}.json").read_text()) for rank in range(2)]
        groups[framework] = Group(framework, folder, results)
    return groups


@pytest.fixture(params=FRAMEWORKS)
def group(request: pytest.FixtureRequest, groups: dict[str, Group]) -> Group:
    return groups[request.param]


def distance(weights: list[np.ndarray], other_weights: list[np.ndarray]) -> float:
    """Return the largest difference of a weight."""
    pairs = zip(weights, other_weights, strict=True)
    return max(float(np.abs(array - other).max()) for array, other in pairs)


@pytest.mark.parametrize("name", [name for name in SPECS if name != "alone"])
def test_workers_with_exchange_have_equal_weights(group, name):
    assert distance(group.weights(name, 0), group.weights(name, 1)) == 0


@pytest.mark.parametrize(("name", "max_distance"), [("compiled", 1e-3), ("recorded", 0)])
def test_compilation_recording_and_buckets_change_no_weight(group, name, max_distance):
    assert distance(group.weights("plain"), group.weights(name)) <= max_distance


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_compressed_gradients_train_nearly_equal_weights(group, name):
    plain, compressed = group.results[0]["plain"][-1], group.results[0][name][-1]
    assert compressed["train_loss"] == pytest.approx(plain["train_loss"], rel=0.01)
    assert abs(compressed["value"] - plain["value"]) <= 0.02
    differences = [
        np.abs(array - compressed_array).ravel()
        for array, compressed_array in zip(group.weights("plain"), group.weights(name), strict=True)
    ]
    # After 12 steps the mean difference is below a thirtieth of a step. Single weights differ more:
    # Adam takes full steps for tiny gradients, which fp16 rounds to 0.
    assert 0 < np.concatenate(differences).mean() < RATE / 30


def test_skipped_steps_are_equal_on_all_workers(group):
    plain, half = group.results[0]["plain"][-1], group.results[0]["half"][-1]
    assert half["skipped_steps"] == group.results[1]["half"][-1]["skipped_steps"] > 0
    assert half["train_loss"] == pytest.approx(plain["train_loss"], rel=0.3)
    assert all(math.isfinite(value) for value in half["noise_scale"].values())


def test_workers_without_exchange_train_independently(group):
    first, second = group.weights("alone", 0), group.weights("alone", 1)
    assert distance(first, second) > 1e-3
    assert [results["uneven_steps"] for results in group.results] == [4, 1]
    # Each worker learns from its own 45 digits.
    losses = [line["train_loss"] for line in group.results[0]["alone"]]
    assert losses[-1] < losses[0]
    assert group.results[0]["alone"][-1]["bytes_exchanged_per_step"] == 0
    assert "noise_scale" not in group.results[0]["alone"][-1]


def test_evaluations_have_bytes_and_times_of_their_steps(group):
    runs = group.results[0]
    sent = [
        runs[name][-1].get("bytes_exchanged_per_step") for name in ("plain", "recorded", "bf16")
    ]
    num_parameters = sum(array.size for array in group.weights("plain"))
    assert sent == [None, 4 * num_parameters, 2 * num_parameters]
    for rank in range(2):
        assert "steps" not in group.results[rank]["plain"][-1]
        before = 0.0
        for line in group.results[rank]["recorded"]:
            steps, seconds = line["steps"], line["train_s"] - before
            before = line["train_s"]
            assert steps["num"] == 5  # the sixth step is shorter and not timed
            assert 0 < steps["median_s"] <= steps["max_s"] < seconds
            assert line["memory_peak_bytes"] > 50e6
    shared = [[line["steps"] for line in results["recorded"]] for results in group.results]
    assert shared[0] == shared[1]


def gradient_parts(framework: str, num_samples: int) -> list[np.ndarray]:
    """Return the part of each worker in the gradient, by SGD steps of rate 1 in one process."""
    spec = spec_of(framework, num_workers=1, optimizer="sgd", momentum=0.0)
    trainer, _, _ = new_trainer(spec)
    initial, parts = trainer.save(), []
    for rank in range(2):
        trainer.load(initial)
        before = flat_weights(trainer, framework)
        step = make_step(spec_of(framework), np.arange(num_samples), RankContext(rank, 2), 1.0)
        trainer.train([step])
        parts.append(before.astype(np.float64) - flat_weights(trainer, framework))
    trainer.close()
    return parts


@pytest.mark.parametrize("name", STEPS)
def test_logged_norms_equal_those_of_numpy(group, name):
    parts = gradient_parts(group.framework, STEPS[name])
    whole = float(np.sum(np.square(parts[0] + parts[1])))
    assert whole > 0
    for rank, part in enumerate(parts):
        logged = group.results[rank]["logs"][name]
        expected = [float(np.sum(np.square(part))), whole]
        # The expected values are differences of float32 weights, hence the tolerance.
        assert logged == pytest.approx(expected, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("name", ["recorded", "passes", "bf16"])
def test_noise_scales_of_both_frameworks_agree(groups, name):
    curves = [groups[framework].results[0][name] for framework in FRAMEWORKS]
    for torch_line, keras_line in zip(*curves, strict=True):
        torch_noise, keras_noise = torch_line["noise_scale"], keras_line["noise_scale"]
        # The short last step of an epoch counts for the noise but not for step times.
        num_steps = torch_line["steps"]["num"] + 1
        assert torch_noise["num_steps"] == keras_noise["num_steps"] == num_steps
        for key in ("gradient", "noise"):
            assert torch_noise[key] == pytest.approx(keras_noise[key], rel=0.1, abs=1e-3)
    (scale,) = noise_scales([NoiseSums(**curves[0][0]["noise_scale"])])
    assert scale > 0


def in_one_process(specs: list[RunSpec], folder: Path) -> None:
    documents = json.dumps([spec.document() for spec in specs])
    script = str(Path(__file__).with_name("replicas_script.py"))
    run_python(script, documents, str(folder))


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which a single process has saved the runs of all replicas."""
    resumed = checkpointed_runs.spec_of("tensorflow", "adam", **RESUMED, **SINGLE_PROCESS)
    specs = [*(spec.model_copy(update=SINGLE_PROCESS) for spec in WORKERS), resumed]
    return cached_folder(tmp_path_factory, "one_process", partial(in_one_process, specs))


def test_workers_and_replicas_equal_one_worker_with_twice_the_batch(groups, one_process):
    workers = groups["tensorflow"].folder
    check_two_are_one("tensorflow", workers)
    for index, spec in enumerate(WORKERS):
        place = index if spec is not DROPOUT else len(specs_of_two("tensorflow"))
        by_workers = dict(np.load(workers / f"{place}-0.npz"))
        by_replicas = dict(np.load(one_process / f"{index}.npz"))
        # Workers with batch normalization evaluate with other averages than replicas.
        is_evaluated = spec is not DROPOUT
        # Float32 sums in another order (measured difference of weights: 3e-8).
        tolerance = {"atol": 1e-6, "rtol": 1e-4}
        assert_same_result(by_replicas, by_workers, is_evaluated=is_evaluated, **tolerance)


@pytest.mark.parametrize("name", IN_GROUPS)
def test_keras_optimizer_on_two_workers_follows_the_paper(groups, name):
    for rank in range(2):
        weights = np.load(groups["tensorflow"].folder / f"paper-{rank}.npz")
        for index, values in enumerate(after_all_steps(name, outputs_last=True)):
            np.testing.assert_allclose(weights[f"{name}{index}"], values, **TOLERANCE)


def test_resumed_replicas_equal_those_of_an_uninterrupted_run(one_process):
    whole, rest = (dict(np.load(one_process / f"{name}.npz")) for name in ("whole", "rest"))
    np.testing.assert_array_equal(whole.pop("curve")[MIDDLE + 1 :], rest.pop("curve"))
    np.testing.assert_equal(whole, rest)
    copies = list(whole.values())
    pairs = zip(copies[: len(copies) // 2], copies[len(copies) // 2 :], strict=True)
    differing = [not np.array_equal(first, second) for first, second in pairs]
    assert sum(differing) == 2, "only the random streams of dropout and Keras"
    for line in json.loads((one_process / "curve.json").read_text()):
        assert line["steps"]
        assert line.get("noise_scale") is None
        assert line.get("evenness") is None


def check_average_statistics(ranks: list[dict[str, np.ndarray]]) -> None:
    """Check that workers train with statistics of their own samples, and that evaluation averages
    these and copies other buffers from rank 0."""
    for name in ("norm.running_mean", "norm.running_var"):
        own = [rank[f"own.{name}"] for rank in ranks]
        assert (abs(own[0] - own[1]) > 1e-4).any()
        for rank in ranks:
            np.testing.assert_allclose(rank[name], (own[0] + own[1]) / 2, rtol=1e-6, atol=1e-7)
    assert (ranks[0]["own.seen"] != ranks[1]["own.seen"]).all()
    for rank in ranks:
        np.testing.assert_array_equal(rank["seen"], ranks[0]["own.seen"])


def test_workers_with_batch_norm_equal_one_with_twice_the_batch(group):
    """The shares of the last batch differ."""

    def saved(index: int) -> list[dict[str, np.ndarray]]:
        return [dict(np.load(group.folder / f"headed{index}-{rank}.npz")) for rank in range(2)]

    check_average_statistics(saved(0))
    for index, case in enumerate(NORMALIZED[group.framework][1:], start=1):
        spec = normalized_spec(group.framework, 1, **case)
        expected = headed_model.train_result(spec, single_worker(group.framework))
        for by_workers in saved(index):
            for name, value in expected.items():
                if "seen" in name:
                    continue
                # The running variance of Keras over workers uses the biased variance.
                rtol = 1e-2 if name.endswith("running_var") else 1e-4
                np.testing.assert_allclose(
                    by_workers[name], value, rtol=rtol, atol=1e-6, err_msg=name
                )
        assert not expected["per_worker"]


def test_resumed_workers_equal_those_of_an_uninterrupted_run(group):
    for rank in range(2):
        whole, resumed = (
            dict(np.load(group.folder / f"muon{at}-{rank}.npz")) for at in (-1, MIDDLE)
        )
        assert resumed.pop("seconds")[0] > whole.pop("seconds")[MIDDLE]
        np.testing.assert_array_equal(whole.pop("curve")[MIDDLE + 1 :], resumed.pop("curve"))
        np.testing.assert_equal(whole, resumed)
