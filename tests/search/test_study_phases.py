"""Sessions of a study without a cluster."""

import io
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from raybench.cluster.layout import Capacity, Node
from raybench.results.records import read_records
from raybench.results.store import STUDY_FILE, Store
from raybench.runs.wait_watch import Deadline
from raybench.search import study as module
from raybench.search.resolve import STUDY_KEY_OVER, ResolvedStudy
from raybench.search.study import StudyPipeline
from raybench.search.tune import check_finished, refuse_spent
from raybench.spec.errors import ErrorCode
from tests.factories import begun
from tests.refusals import refused
from tests.search.made_up import STUDY, parts_of, record
from tests.search.stage import single_run_in


def pipeline_in(store: Store, content: dict[str, Any] = STUDY) -> StudyPipeline:
    study, space, _ = parts_of(content)
    session: Any = SimpleNamespace(capacity=Capacity((Node(4, 0),), 0.0), pool=None, notes=[])
    data: Any = SimpleNamespace(num_train_samples=1000)
    console, deadline = Console(file=io.StringIO()), Deadline(None)
    resolved = ResolvedStudy(study, space, data, "out", ())
    pipeline = StudyPipeline(resolved, session, store, console, deadline, 2, True)
    pipeline.__dict__["_baselines"] = {}
    return pipeline


def test_a_session_that_starts_after_the_budget_only_notes_it(tmp_path, monkeypatch):
    for begins in ("set_by_reference", "run_trials", "check_placements"):
        monkeypatch.setattr(module, begins, None)
    with Store(tmp_path) as store:
        pipeline = pipeline_in(store)
        pipeline.deadline = Deadline(100.0, interrupt=begun(120.0))
        pipeline._run_phases()
    (note,) = pipeline.state.notes
    assert " 100 s" in note
    assert " 120 s" in note


def test_a_driver_that_is_killed_in_the_search_leaves_the_best_reference(tmp_path, monkeypatch):
    with Store(tmp_path) as store:
        pipeline = pipeline_in(store)
        referenced = pipeline.study.model_copy(update={"is_set": True})
        monkeypatch.setattr(module, "single_runs", lambda *arguments, **options: nullcontext())
        monkeypatch.setattr(
            module, "set_by_reference", lambda *arguments, **options: (referenced, [])
        )
        monkeypatch.setattr(StudyPipeline, "_slots", lambda self: 1)
        store.append(record("reference0", role="reference").line())
        pipeline.__dict__["_baseline_value"] = lambda: 0.1
        assert pipeline._set_by_reference()
    assert (tmp_path / "best.yaml").is_file()


def test_a_budget_used_up_by_loading_data_starts_no_session():
    refuse_spent(Deadline(None))
    refuse_spent(Deadline(100.0))
    with refused(ErrorCode.NO_TIME, "9 s", "5 s", "--time-budget"):
        refuse_spent(Deadline(5.0, interrupt=begun(9.0)))


def test_new_trials_make_the_confirmation_unfinished(tmp_path, monkeypatch):
    with Store(tmp_path) as store:
        store.append(record("0000-confirm0", role="confirm", source="0000").line())
        store.write_yaml(STUDY_FILE, {})
        check_finished(4, "there", tmp_path)  # an earlier version's, which has no such key
        store.write_yaml(STUDY_FILE, {STUDY_KEY_OVER: True})
        check_finished(4, "there", tmp_path)
        monkeypatch.setattr(module, "run_trials", lambda trials, **options: trials.next())
        pipeline = pipeline_in(store)
        pipeline.state = replace(pipeline.state, is_over=True)
        search, budget = pipeline._open_search(read_records(tmp_path))
        pipeline._search(search, single_run_in(store, pipeline.deadline), budget)
        with refused(ErrorCode.NO_RESULT, "--more 4", "there"):
            check_finished(4, "there", tmp_path)


def test_a_study_that_learns_of_batch_statistics_counts_its_trials_again(tmp_path):
    values = {"num_workers": [1, 2], "optimizer": ["adam"], "learning_rate": [0.01, 0.02]}
    with Store(tmp_path) as store:
        pipeline = pipeline_in(store, STUDY | {"space": values})
        assert pipeline.state.num_trials == 60
        reference = record("reference0", role="reference")
        store.append(replace(reference, batch_statistics=True).line())
        search, _ = pipeline._open_search(read_records(tmp_path))
    assert search.num_trials == pipeline.state.num_trials == 4
