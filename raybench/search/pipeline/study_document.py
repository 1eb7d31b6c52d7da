"""What `study.yaml` says of a study and of its sessions."""

from collections.abc import Sequence
from typing import Any

from raybench.cluster.layout import Node
from raybench.core.study import StudySpec
from raybench.results.provenance import command, machine, versions


def study_document(
    study: StudySpec,
    earlier: dict[str, Any],
    *,
    nodes: Sequence[Node],
    concurrency: int,
    set_by: list[str],
    notes: list[str],
) -> dict[str, Any]:
    """Return it with this session on `nodes`; `earlier` is what the file held before."""
    target = "the user"
    if "target" in study.auto:
        target = next((one for one in set_by if one.startswith("target")), "not set yet")
    session: dict[str, Any] = {
        "command": command(),
        "versions": versions(),
        "machine": machine(),
        "cluster": {"nodes": [{"cpus": node.cpus, "gpus": node.gpus} for node in nodes]},
        "concurrency": concurrency,
    }
    # What the trials of earlier sessions ran with stays; this session stands behind them.
    first = {key: earlier.get(key, session[key]) for key in session}
    later = [*(earlier.get("continued") or []), *([session] if earlier else [])]
    return {
        "study": study.document(),
        "target_set_by": target,
        "set_by_reference": set_by,
        "notes": notes,
        **first,
        "continued": later,
    }
