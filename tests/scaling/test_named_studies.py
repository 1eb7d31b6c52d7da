"""The named studies: their cells, their published figures, and what their comparisons conclude."""

import math
import sys
from collections import Counter
from typing import Any

import pytest
from made_up_study import PARAMETERS, Machine, MadeUp

from raybench.core.documents import validate
from raybench.core.scaling_file import set_in_scaling
from raybench.core.scaling_study import ScalingStudy, study_cells
from raybench.core.spec import RunSpec
from raybench.scaling.named import (
    batch_size_vs_workers,
    bottleneck_probe,
    finetune_lr_schedule,
    mnist_data_parallel,
    synthetic_throughput,
)
from raybench.scaling.named.claims import NOT_MEASURED, Claim, claim, measured, pairs, ratios
from raybench.scaling.named.find import STUDIES
from raybench.workloads.base import LayerWorkload
from raybench.workloads.find import load_workload_dataset, require_framework
from raybench.workloads.layer_shapes import num_parameters


def usual(spec: RunSpec) -> float:
    """Seconds of a step: per sample, per step, for the exchange."""
    slow = 2.0 if spec.framework == "torch" else 1.0
    exchange = 0.02 if spec.num_workers > 1 and spec.exchange_gradients else 0.0
    return slow * (0.001 * spec.batch_size_per_worker + 0.002) * spec.accumulate + exchange


def compared(name: str, machine: Machine, *, quick: bool = True) -> dict[str, Claim]:
    found = STUDIES[name].compare(MadeUp(STUDIES[name].study(quick), machine))
    return {one.claim: one for one in found}


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_whole(name: str, quick: bool) -> None:
    study = STUDIES[name].study(quick)
    assert study.name == name
    cells = study_cells(study)
    assert len(cells) >= 8
    for cell in cells:
        # Judged by nothing that would end a run early.
        assert cell.spec.objective.kind == "best_at_budget"
        assert cell.spec.objective.max_train_seconds == 1e6
        assert cell.spec.epochs >= 2, "the first epoch is the warm-up"
    if quick:
        assert {cell.spec.num_workers for cell in cells} <= {1, 2}
        assert study.repeats >= 3


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("setting", ["framework=torch", "dataset.image_size=16", "epochs=7"])
def test_set_has_its_effect_in_every_named_study(name: str, quick: bool, setting: str) -> None:
    key, value = setting.split("=")
    content = set_in_scaling(STUDIES[name].study(quick).document(), [setting])
    for cell in study_cells(validate(ScalingStudy, content, name)):
        found: Any = cell.spec
        for part in key.split("."):
            found = getattr(found, part)
        assert str(found).removesuffix(".0") == value


@pytest.mark.parametrize("name", STUDIES)
def test_the_docstring_says_claim_source_and_command(name: str) -> None:
    text = sys.modules[f"raybench.scaling.named.{name}"].__doc__ or ""
    assert f"python -m raybench.scale {name} --quick" in text
    for word in ("Claims:", "Source:", "confound", "Full size", "uick:"):
        assert word.lower() in text.lower(), word


@pytest.mark.parametrize("name", STUDIES)
def test_the_data_of_a_quick_study_need_no_download(name: str) -> None:
    names = {cell.spec.dataset.name for cell in study_cells(STUDIES[name].study(True))}
    assert names <= {"digits", "synthetic", "workload"} | (
        {"mnist"} if name == "mnist_data_parallel" else set()
    )


@pytest.mark.parametrize("name", STUDIES)
def test_every_claim_is_told_of_a_quick_study(name: str) -> None:
    claims = compared(name, Machine(usual, compile_s=1.0))
    assert len(claims) >= 5
    unmeasured = [one.claim for one in claims.values() if one.ours == NOT_MEASURED]
    # More GPUs than a quick study has, or its larger model.
    larger = ("4 GPUs", "8 GPUs", "Sub-batches", "The large TensorFlow model")
    assert all(one.startswith(larger) for one in unmeasured)
    for one in claims.values():
        assert one.published
        assert "nan" not in one.ours


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_of_which_nothing_was_measured_says_so(name: str) -> None:
    results = MadeUp(STUDIES[name].study(True), Machine(usual))
    results.__dict__["scaling"] = results.scaling.assign(n=0)
    found = STUDIES[name].compare(results)
    assert {one.holds for one in found} == {None}
    assert {one.ours for one in found} == {"not measured here"}


def test_a_claim_is_of_the_values_that_are_known() -> None:
    def of(*values: float) -> Claim:
        return claim("It is fast", "2 times", values, lambda value: value > 1)

    assert of(math.nan, 2.0, math.inf, 4.0) == of(2.0, 4.0)
    assert of(math.nan, 2.0).ours == "2 times"
    assert of(math.nan) == of() == Claim("It is fast", "2 times", NOT_MEASURED, None)


def test_a_claim_that_pairs_disagree_on_is_not_told() -> None:
    def of(*values: float) -> bool | None:
        return claim("It is fast", "2 times", values, lambda value: value > 1).holds

    assert [of(2.0), of(2, 2, 0.5, 3), of(2, 2, 0.5), of(2, 0.5)] == [True, True, None, None]
    assert [of(0.5), of(0.5, 0.5, 2, 0.5), of(0.5, 0.5, 2)] == [False, False, None]


FIGURES = [
    *("samples_per_s", "first_epoch_samples_per_s", "step_median_s", "speedup_same_batch"),
    *("efficiency_same_batch", "accuracy", "best_accuracy"),
]


@pytest.mark.parametrize("name", STUDIES)
def test_a_cell_without_figures_is_left_out_of_every_claim(name: str) -> None:
    results = MadeUp(STUDIES[name].study(True), Machine(usual, compile_s=1.0))
    scaling = results.scaling
    for row in range(len(scaling)):
        holes = scaling.copy()
        holes.loc[row, FIGURES] = math.nan
        results.__dict__["scaling"] = holes
        for one in STUDIES[name].compare(results):
            assert "nan" not in one.ours, one
            assert one.holds is None or one.ours != "not measured here", one


@pytest.mark.parametrize("name", STUDIES)
def test_a_full_study_is_compared_too(name: str) -> None:
    claims = compared(name, Machine(usual, compile_s=1.0), quick=False)
    assert all(one.ours != NOT_MEASURED for one in claims.values())
    assert sum(one.holds is None for one in claims.values()) <= 2, "where made-up pairs disagree"


def test_workloads_of_the_studies_train_in_their_framework() -> None:
    """Their data load, with the shape that the layers take."""
    for name in ("finetune_lr_schedule", "synthetic_throughput", "bottleneck_probe"):
        cells = study_cells(STUDIES[name].study(True))
        for spec in {cell.spec.workload: cell.spec for cell in cells}.values():
            workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
            require_framework(workload, spec.framework)
            assert tuple(dataset.input_shape) == tuple(workload.input_shape)


# Each study


def test_the_full_matrix_of_study_5_is_that_of_its_108_rows() -> None:
    cells = study_cells(mnist_data_parallel.study(False))
    assert len(cells) == 108
    assert Counter(cell.spec.num_workers for cell in cells) == {1: 36, 2: 36, 4: 36}
    assert {cell.scalings for cell in cells} == {("weak",)}
    spec = cells[0].spec
    assert (spec.optimizer, spec.learning_rate, spec.epsilon) == ("adam", 1e-3, 1e-7)
    assert (spec.beta1, spec.beta2, spec.weight_decay, spec.epochs) == (0.9, None, 0.0, 2.0)
    assert spec.learning_rate_scaling == "none"


def test_published_speedups_of_study_5_are_those_of_its_rates() -> None:
    claims = compared("mnist_data_parallel", Machine(usual))
    slower = claims["The small TensorFlow model gets slower with more GPUs"]
    assert "0.80 to 1.10 times at 2, 0.65 to 0.99 times at 4" in slower.published
    assert "1.20 to 1.45 times at 2" in slower.published
    torch = claims["PyTorch speeds up with more GPUs"].published
    assert "1.18 to 1.21 times at 4" in torch
    assert "1.76 to 2.03 times at 4" in torch


def test_a_machine_that_scales_refutes_that_more_workers_are_slower() -> None:
    scales = compared("mnist_data_parallel", Machine(usual))
    slows = compared("mnist_data_parallel", Machine(lambda spec: usual(spec) * spec.num_workers**2))
    words = "The small TensorFlow model gets slower with more GPUs"
    assert scales[words].holds is False
    assert slows[words].holds is True


def test_which_framework_leads_is_read_the_right_way_round() -> None:
    words = "TensorFlow is faster than PyTorch"
    claims = compared("mnist_data_parallel", Machine(usual))
    assert claims[words].holds is True
    other = compared(
        "mnist_data_parallel",
        Machine(lambda spec: usual(spec) * (10 if spec.framework == "tensorflow" else 1)),
    )
    assert other[words].holds is False


def test_a_larger_dataset_that_slows_the_steps_is_seen() -> None:
    words = "The size of the dataset does not change the rate"
    assert compared("mnist_data_parallel", Machine(usual))[words].holds is True
    slower = Machine(lambda spec: usual(spec) * spec.dataset.repeat)
    claim = compared("mnist_data_parallel", slower)[words]
    assert claim.holds is False
    assert claim.ours.startswith("0.5 times")


def test_compiling_is_what_makes_the_first_epoch_slow() -> None:
    words = "TensorFlow's first epoch is slow"
    assert compared("mnist_data_parallel", Machine(usual))[words].holds is False
    assert compared("mnist_data_parallel", Machine(usual, compile_s=60.0))[words].holds is True


def test_study_1_has_both_kinds_of_scaling_and_says_which() -> None:
    cells = study_cells(batch_size_vs_workers.study(False))
    strong = {
        (cell.spec.num_workers, cell.spec.global_batch_size)
        for cell in cells
        if "strong" in cell.scalings
    }
    assert strong == {(k, batch) for k in (1, 2, 4, 8) for batch in (32, 64, 128, 256, 512)}
    weak = {
        (cell.spec.num_workers, cell.spec.batch_size_per_worker)
        for cell in cells
        if "weak" in cell.scalings
    }
    assert weak == {(k, 64) for k in (1, 2, 4, 8)}
    rules = {
        (cell.spec.num_workers, cell.spec.learning_rate_scaling, cell.spec.batch_size_per_worker)
        for cell in cells
        if cell.spec.learning_rate_scaling != "none"
    }
    assert rules == {(k, rule, 64) for k in (2, 4, 8) for rule in ("linear", "sqrt")}
    assert cells[0].spec.workload == "cnn7"


def test_study_1_compares_the_same_global_batch() -> None:
    """1.6 times on two workers at each batch, whatever the batch itself does to the speed."""
    speed = {1: 1.0, 2: 1.6, 4: 2.5, 8: 3.0}

    def step(spec: RunSpec) -> float:
        return spec.global_batch_size**0.7 / speed[spec.num_workers]

    claims = compared("batch_size_vs_workers", Machine(step), quick=False)
    for workers, times in batch_size_vs_workers.SPEEDUPS.items():
        (one,) = [c for c in claims.values() if c.claim.startswith(f"{workers} GPUs train")]
        assert one.holds is True
        assert one.ours.startswith(f"{times:.3g} times")
    assert claims["Larger batches train faster"].holds is True


def test_study_1_tells_batch_sizes_from_worker_counts() -> None:
    def accuracy(spec: RunSpec) -> float:
        return 0.9 - 0.0002 * abs(spec.global_batch_size - 64) - 0.001 * spec.num_workers

    claims = compared("batch_size_vs_workers", Machine(usual, accuracy))
    assert claims["Accuracy depends on the batch size more than on the number of GPUs"].holds
    assert claims["A batch of 64 is the most accurate on average"].holds
    other = Machine(usual, lambda spec: 0.9 - 0.05 * spec.num_workers)
    claims = compared("batch_size_vs_workers", other)
    assert not claims["Accuracy depends on the batch size more than on the number of GPUs"].holds


def test_study_1_times_an_accuracy() -> None:
    words = "More GPUs reach an accuracy sooner"
    faster = Machine(lambda spec: spec.global_batch_size / spec.num_workers**0.5)
    claim = compared("batch_size_vs_workers", faster)[words]
    assert claim.holds is True
    assert claim.ours.startswith("1.41 times as soon")
    alike = Machine(lambda spec: spec.global_batch_size)
    assert compared("batch_size_vs_workers", alike)[words].holds is False
    never = Machine(faster.step_s, lambda spec: 0.5)
    assert compared("batch_size_vs_workers", never)[words].holds is None


def test_study_1_tells_what_a_rule_of_the_learning_rate_does() -> None:
    words = "A learning rate that grows with the GPUs makes weak scaling more accurate"

    def accuracy(spec: RunSpec) -> float:
        return {"none": 0.8, "sqrt": 0.85, "linear": 0.9}[spec.learning_rate_scaling]

    quick = compared("batch_size_vs_workers", Machine(usual, accuracy))[words]
    assert (quick.holds, quick.ours) == (True, "10 points")
    full = compared("batch_size_vs_workers", Machine(usual, accuracy), quick=False)[words]
    assert full.ours == "7.5 points (5 to 10, 6 pairs)"
    other = Machine(usual, lambda spec: 1.7 - accuracy(spec))
    assert compared("batch_size_vs_workers", other)[words].holds is False


def test_study_4_says_that_torch_runs_under_the_names_of_others() -> None:
    specs = [
        cell.spec
        for quick in (True, False)
        for cell in study_cells(synthetic_throughput.study(quick))
    ]
    assert {spec.framework for spec in specs} == {"torch"}
    text = synthetic_throughput.__doc__ or ""
    assert "Here torch runs" in text
    assert "--set framework=tensorflow" in text


def test_study_2_separates_the_schedule_from_the_batch() -> None:
    """Its least accurate run had the larger batch and no schedule."""

    def accuracy(spec: RunSpec) -> float:
        return 0.98 if spec.schedule == "ramp_decay" else 0.76

    claims = compared("finetune_lr_schedule", Machine(usual, accuracy))
    assert claims["The schedule makes the model more accurate"].holds is True
    assert claims["A larger batch is far less accurate"].holds is False
    batch = Machine(usual, lambda spec: 0.98 if spec.batch_size_per_worker == 16 else 0.76)
    claims = compared("finetune_lr_schedule", batch)
    assert claims["A larger batch is far less accurate"].holds is True
    assert claims["The schedule makes the model more accurate"].holds is False


def test_study_2_judges_four_workers_by_four_alone() -> None:
    """Two workers that are no faster than one are half of the ideal, and no half of the time."""
    words = "4 GPUs take half the time of one"
    alike = Machine(lambda spec: spec.num_workers * spec.batch_size_per_worker)
    quick = compared("finetune_lr_schedule", alike)[words]
    assert quick.holds is None
    assert quick.ours.startswith("1 times as fast on 2 workers as on one")
    full = compared("finetune_lr_schedule", alike, quick=False)[words]
    assert full.holds is False
    assert full.ours.startswith("1 times as fast on 4 workers as on one")
    faster = Machine(lambda spec: spec.num_workers**0.4 * spec.batch_size_per_worker)
    assert compared("finetune_lr_schedule", faster, quick=False)[words].holds is True
    assert "2.01 times as fast with 16 a GPU, 2.36 with 32" in full.published


def test_study_5_asks_of_tensorflow_s_large_model_whether_it_speeds_up() -> None:
    words = "The large TensorFlow model speeds up with more GPUs"
    assert compared("mnist_data_parallel", Machine(usual))[words].holds is None
    full = compared("mnist_data_parallel", Machine(usual), quick=False)[words]
    assert full.holds is True
    assert "1.72 to 2.68 times at 2, 1.60 to 2.67 times at 4" in full.published
    assert "1.69 to 1.85 times at 2" in full.published
    slows = Machine(
        lambda spec: usual(spec) * spec.num_workers ** (2 * (spec.workload != "mnist_small"))
    )
    assert compared("mnist_data_parallel", slows, quick=False)[words].holds is False


def test_study_2_uses_the_schedule_of_its_notebooks() -> None:
    from raybench.core.schedule import build_schedule

    cells = study_cells(finetune_lr_schedule.study(False))
    (spec,) = [
        cell.spec
        for cell in cells
        if (cell.spec.num_workers, cell.spec.batch_size_per_worker) == (4, 16)
        and cell.spec.schedule == "ramp_decay"
        and not cell.spec.prefetch
    ]
    rate = build_schedule(spec, 1000)
    found = [rate(1000.0 * epoch) for epoch in range(10)]
    assert found == pytest.approx(
        [1e-5, 4.8e-5, 8.6e-5, 1.24e-4, 1.62e-4, 2e-4, 1.62e-4, 1.316e-4, 1.0728e-4, 8.7824e-5]
    )


def test_prefetching_is_compared_with_the_same_run_without_it() -> None:
    words = "Prefetching speeds training up"
    helps = Machine(lambda spec: usual(spec) * (0.7 if spec.prefetch else 1.0))
    claim = compared("finetune_lr_schedule", helps)[words]
    assert claim.holds is True
    assert claim.ours.startswith("1.43 times")
    assert compared("finetune_lr_schedule", Machine(usual))[words].holds is False


def test_study_3_gives_more_parameters_the_larger_share() -> None:
    def step(spec: RunSpec) -> float:
        many = spec.workload.endswith(":SmallDecodedDigits")
        sends = (0.05 if many else 0.01) if spec.exchange_gradients else 0.0
        return 0.001 * spec.batch_size_per_worker + sends

    claims = compared("bottleneck_probe", Machine(step))
    assert all(
        claims[words].holds
        for words in (
            "A model of more parameters spends a larger share on communication",
            "A larger batch lowers the share of communication",
            "An exchange takes the same time whatever the batch size",
        )
    )
    found = claims["A model of more parameters spends a larger share on communication"].ours
    assert found.startswith("SmallDecodedDigits (525,322): ")
    assert ", DecodedDigits (124,202): " in found


def test_study_3_sees_slow_data() -> None:
    words = "Real data, decoded on demand, cost no more than synthetic ones in memory"
    assert compared("bottleneck_probe", Machine(usual))[words].holds is True
    slow = Machine(lambda spec: usual(spec) * (1.5 if spec.dataset.name == "workload" else 1.0))
    claim = compared("bottleneck_probe", slow)[words]
    assert claim.holds is False
    assert claim.ours.startswith("33.3 %")


@pytest.mark.parametrize("quick", [True, False])
def test_study_3_compares_data_that_are_decoded_with_data_in_memory(quick: bool) -> None:
    """Two arrays in memory differ in nothing that an input pipeline does."""
    specs = [cell.spec for cell in study_cells(bottleneck_probe.study(quick))]
    assert {spec.dataset.name for spec in specs} == {"workload", "synthetic"}
    for spec in {(one.workload, one.dataset.name): one for one in specs}.values():
        assert spec.prefetch == 0
        workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
        assert dataset.train.is_on_demand == (spec.dataset.name == "workload")
        assert tuple(dataset.input_shape) == tuple(workload.input_shape)
        assert len(dataset.train) == 1257
        assert isinstance(workload, LayerWorkload)
        count = num_parameters(workload.layers, workload.input_shape)
        assert count == PARAMETERS[spec.workload]


def test_study_4_says_that_both_its_data_are_in_memory() -> None:
    claims = compared("synthetic_throughput", Machine(usual))
    assert "Synthetic data give the same speed as real data, both in memory" in claims
    for cell in study_cells(synthetic_throughput.study(True)):
        assert cell.spec.dataset.name in ("digits", "synthetic")


def test_study_4_does_not_mix_weak_and_strong_scaling() -> None:
    """The same machine, whose exchange costs: strong scaling looks worse, and is another curve."""
    claims = compared("synthetic_throughput", Machine(usual))
    words = "Weak scaling (tf_cnn_benchmarks) is more efficient than strong scaling (Keras)"
    assert claims[words].holds is True
    assert "97% against 64% at 4 GPUs" in claims[words].published
    free = compared("synthetic_throughput", Machine(lambda spec: spec.batch_size_per_worker))
    assert free[words].holds is False


def test_study_4_knows_scaling_without_exchange() -> None:
    words = "Without exchange of gradients scaling is linear"
    assert compared("synthetic_throughput", Machine(usual))[words].holds is True
    crowded = Machine(lambda spec: usual(spec) * spec.num_workers**0.5)
    assert compared("synthetic_throughput", crowded)[words].holds is False


def test_pairs_differ_in_nothing_else() -> None:
    results = MadeUp(synthetic_throughput.study(True), Machine(usual))
    cells = measured(results)
    for one, other in pairs(cells, "num_workers"):
        assert (one.spec.num_workers, other.spec.num_workers) == (1, 2)
        assert one.scaling == other.scaling
        assert one.key("exchange_gradients") == other.key("exchange_gradients")
        if one.scaling == "strong":
            assert one.spec.global_batch_size == other.spec.global_batch_size
        else:
            assert one.spec.batch_size_per_worker == other.spec.batch_size_per_worker
    assert all(math.isfinite(value) for value in ratios(cells, "num_workers"))
    assert bottleneck_probe.NAME in STUDIES
