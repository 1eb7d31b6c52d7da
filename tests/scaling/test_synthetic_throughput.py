"""Study 4: its cells, its published figures, and what its comparisons conclude."""

from made_up_study import Machine, compared, usual

from raybench.scaling.published import STUDIES
from raybench.spec.scaling_study import study_cells


def test_study_4_says_that_torch_runs_under_the_names_of_others() -> None:
    specs = [
        cell.spec
        for quick in (True, False)
        for cell in study_cells(STUDIES["synthetic_throughput"].study(quick))
    ]
    assert {spec.framework for spec in specs} == {"torch"}
    text = STUDIES["synthetic_throughput"].file.read_text()
    assert "Here torch runs" in text
    assert "--set framework=tensorflow" in text


def test_study_4_says_that_both_its_data_are_in_memory() -> None:
    claims = compared("synthetic_throughput", Machine(usual))
    assert "Synthetic data give the same speed as real data, both in memory" in claims
    for cell in study_cells(STUDIES["synthetic_throughput"].study(True)):
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
