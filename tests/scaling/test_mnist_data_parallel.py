"""Study 5: its cells, its published figures, and what its comparisons conclude."""

from collections import Counter

from made_up_study import Machine, compared, usual

from raybench.scaling.published import STUDIES
from raybench.spec.scaling_study import study_cells


def test_the_full_matrix_of_study_5_is_that_of_its_108_rows() -> None:
    cells = study_cells(STUDIES["mnist_data_parallel"].study(False))
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
