"""Runs are ranked only against runs with the same layout of workers and GPU model."""

import pytest

from raybench.results.ranking import gpu_models, ranked_runs
from raybench.results.records import read_records
from raybench.results.trials import NOT_EXCHANGED
from raybench.results.verdict import reached_target, verdict_of, verdicts_of
from raybench.search.confirm_budget import ConfirmBudget
from raybench.spec.study import build_study
from tests.made_results import results_folder, run_line, shown

SPREAD = {"placement_strategy": "spread"}


def on(line, *workers, gpus=(), waited_for=None):
    """Return a run line with workers per node and GPU models."""
    layout = {"workers_per_node": list(workers), "accelerators": list(gpus)}
    return line | layout | {"waited_for": waited_for}


PACKED = on(run_line("0000", 4.0, num_workers=2), 2)
OVER_TWO = on(run_line("0001", 1.0, num_workers=2), 1, 1, waited_for="2 CPUs: 1 free on a, 1 on b")
SPREAD_OUT = on(run_line("0002", 2.0, num_workers=2, **SPREAD), 1, 1)
WIDE = on(run_line("0003", 3.0, num_workers=4), 2, 2)
OLD = run_line("0004", 5.0, num_workers=2)


def test_runs_on_more_hosts_than_others_of_their_size_are_not_ranked(tmp_path):
    results = results_folder(tmp_path, [OVER_TWO, PACKED, WIDE])
    # Four workers fit on no single host.
    assert list(ranked_runs(results.trials)["trial"]) == ["0003", "0000"]
    assert verdict_of(results).fastest == "0003"
    text = shown(results)
    assert all(words in text for words in ("2 hosts", "trial 0001"))
    assert "0001" not in list(reached_target(results)["trial"])


def test_runs_on_several_hosts_are_ranked_if_none_of_their_size_used_fewer(tmp_path):
    results = results_folder(tmp_path, [OVER_TWO, WIDE])
    assert verdict_of(results).fastest == "0001"
    assert results.trials["unranked"].isna().all()
    assert "Not ranked" not in shown(results)


@pytest.mark.parametrize("part", ["space", "fixed", None])
def test_a_spread_run_wins_only_if_the_study_requested_it(tmp_path, part):
    study = {} if part is None else {part: {"placement_strategy": ["pack", "spread"]}}
    results = results_folder(tmp_path, [PACKED, SPREAD_OUT], study=study)
    assert verdict_of(results).fastest == ("0002" if part else "0000")
    assert ("did not ask" in shown(results)) == (part is None)


def test_each_gpu_model_has_its_own_winner(tmp_path):
    gpu = {"gpus_per_worker": 1}
    lines = [
        on(run_line("0000", 2.0, **gpu), 1, gpus=["H100"]),
        on(run_line("0001", 3.0, **gpu), 1, gpus=["A100"]),
        on(run_line("0002", 9.0, **gpu), 1, gpus=["A100"]),
    ]
    for number, (seconds, model) in enumerate([(3.5, "A100"), (3.5, "A100"), (1.0, "H100")]):
        run = run_line(f"0001-confirm{number}", seconds, role="confirm", **gpu)
        lines.append(on(run, 1, gpus=[model]))
    results = results_folder(tmp_path, lines)
    assert gpu_models(results.trials) == ["H100", "A100"]
    verdicts = verdicts_of(results)
    fastest = {kind: verdict.fastest for kind, verdict in verdicts.items()}
    assert fastest == {"H100": "0000", "A100": "0001"}
    assert (verdicts["A100"].is_confirmed, results.confirmed["runs"].tolist()) == (True, [2])
    text = shown(results)
    for line in ("A100: Train", "H100: Not confirmed"):
        assert text.count(line) == 1
    on_model_of_winner = set(reached_target(results)["trial"])
    assert on_model_of_winner == {"0001", "0002"}


def test_topology_columns_are_on_the_screen_only_if_they_differ(tmp_path):
    results = results_folder(tmp_path / "mixed", [PACKED, OVER_TWO, WIDE, OLD])
    columns = ["num_nodes", "accelerators", "waited_for"]
    rows = results.trials.set_index("trial")[columns]
    assert rows.loc["0001"].tolist()[0] == 2
    assert rows.loc["0001", "waited_for"] == "2 CPUs: 1 free on a, 1 on b"
    assert rows["num_nodes"].isna().tolist() == [False, False, False, True]
    same = results_folder(tmp_path / "same", [PACKED, on(run_line("0005", 4.0), 1)])
    assert set(columns) <= set(same.trials.columns)
    heads = [shown(study).split("Search: ")[1].split("0000")[0] for study in (results, same)]
    assert ["hosts" in head for head in heads] == [True, False]


def test_the_best_ranked_run_on_each_gpu_model_is_confirmed(tmp_path):
    lines = [OVER_TWO, SPREAD_OUT, PACKED, on(run_line("0005", 8.0, gpus_per_worker=1), 1)]
    lines[-1] |= {"accelerators": ["A100"]}
    results_folder(tmp_path, lines)
    content = {"objective": {"target": 0.9}, "confirm": {"race": 1}, "space": {"num_workers": [1]}}
    budget, winners = ConfirmBudget(build_study(content, "test")[0]), []
    for run in read_records(tmp_path).runs.values():
        budget.add(run)
        winners.append([cost.trial for cost in budget.winners()])
    assert winners[0] == ["0001"], "until a run of its size uses fewer hosts"
    assert winners[-1] == ["0000", "0005"]


def test_runs_without_exchange_are_never_ranked(tmp_path):
    apart = on(run_line("0005", 0.5, num_workers=2, exchange_gradients=False), 2)
    alone = run_line("0006", 0.1, exchange_gradients=False)
    over_two = on(run_line("0007", 1.5, num_workers=2), 1, 1)
    results = results_folder(tmp_path, [apart, alone, over_two])
    assert list(ranked_runs(results.trials)["trial"]) == ["0007"]
    assert verdict_of(results).fastest == "0007"
    assert list(reached_target(results)["trial"]) == ["0007"]
    reasons = results.trials.set_index("trial")["unranked"]
    assert reasons["0005"] == reasons["0006"] == NOT_EXCHANGED
    assert NOT_EXCHANGED in shown(results)
