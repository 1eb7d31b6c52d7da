"""`optuna-dashboard results/.../optuna.log`: what its pages are made of, asked of its server."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raybench.search.sampling.optuna_study import JOURNAL_FILE
from tests.search.made_up import make_search, record, run_all


def answer(app: Callable[..., Any], path: str) -> dict[str, Any]:
    """Ask a WSGI server for a page of JSON."""
    status: list[str] = []
    asked = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "SERVER_NAME": "here", "SERVER_PORT": "80"}
    asked |= {"wsgi.url_scheme": "http"}
    pages = app(asked | {"wsgi.input": io.BytesIO()}, lambda line, head, *rest: status.append(line))
    assert status[0].startswith("200")
    found: dict[str, Any] = json.loads(b"".join(pages))
    return found


def test_the_dashboard_shows_what_a_trial_was_and_what_its_value_is(tmp_path: Path) -> None:
    dashboard = pytest.importorskip(
        "optuna_dashboard", reason="it is not installed: pip install optuna-dashboard"
    )
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    one = make_search(tmp_path)
    run_all(one, lambda name, spec: record(name, spec, 2.0), most=3)
    storage = JournalStorage(JournalFileBackend(str(tmp_path / JOURNAL_FILE)))
    app = dashboard.wsgi(storage)
    (study,) = answer(app, "/api/studies")["study_summaries"]
    assert study["study_name"] == "raybench"
    page = answer(app, f"/api/studies/{study['study_id']}")
    assert page["objective_names"] == ["log seconds to target, on the fastest split"]
    assert [trial["state"] for trial in page["trials"]] == ["Complete"] * 3
    shown = {one["key"]: one["value"] for one in page["trials"][0]["user_attrs"]}
    assert shown["trial"] == "0000"
    assert shown["configuration"].startswith("torch 1x")
    assert float(shown["time_to_target_s"]) == 2.0
    assert 0 < float(shown["learning_rate"]) < 1
    assert "best_accuracy" in shown
