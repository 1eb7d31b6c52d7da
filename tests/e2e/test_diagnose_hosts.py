"""`raybench diagnose` and `scale` over two real hosts: the verdict follows a slow link, and a slow
worker or reader is named."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from raybench.spec.documents import read_mapping

from .host_cluster import done, raybench, start_head, start_node
from .hosts import Host, Hosts, why_not

pytestmark = [
    pytest.mark.ray,
    pytest.mark.all,
    pytest.mark.apart,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
    pytest.mark.timeout(900),
]
LINK = "100mbit"
"""The 1.6 MB of gradients of `mnist_small` take an eighth of a second."""
SPEC = """
framework: torch
num_workers: 2
batch_size_per_worker: 32
placement_strategy: spread
objective: {kind: best_at_budget}
dataset: {name: digits, image_size: 28, validation_size: 64}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Host, Host]]:
    """Two hosts of a CPU each, the first of them Ray's head."""
    pytest.importorskip("torch")
    with Hosts(2) as hosts:
        head, other = hosts
        start_head(head, 1)
        start_node(other, head, 1)
        yield head, other


def test_the_verdict_follows_the_link(cluster: tuple[Host, Host], tmp_path: Path) -> None:
    spec, out = tmp_path / "spec.yaml", tmp_path / "out"
    spec.write_text(SPEC)
    for host in cluster:
        host.slow(LINK)
    given = ("diagnose", spec, "--repeats", "3", "--seconds", "0.25", "--out", out)
    done(raybench(cluster[0], *given))
    found = read_mapping(out / "diagnosis.yaml")
    assert found["verdict"] == "communication", found["sentence"]
    assert "by 2 workers on 2 hosts" in found["sentence"]
    assert any("batch_size_per_worker" in gain["change"] for gain in found["gains"])


def test_the_worker_that_the_other_waits_for_is_named(
    cluster: tuple[Host, Host], tmp_path: Path
) -> None:
    spec, out = tmp_path / "spec.yaml", tmp_path / "out"
    own = SPEC.replace("name: digits", "name: workload")
    spec.write_text(f"workload: tests.e2e.sleepy_workload:LateReader\n{own}")
    given = ("diagnose", spec, "--repeats", "3", "--seconds", "0.25", "--out", out)
    printed = done(raybench(cluster[0], *given))
    found = read_mapping(out / "diagnosis.yaml")
    (slow,) = found["slow_ranks"]
    assert (slow["rank"], slow["kind"]) == (1, "input")
    assert slow["times"] > 1.5
    assert "Worker 1 (host " in found["sentence"]
    assert "Worker 1 (host " in printed


STUDY = """
base:
  workload: tests.e2e.sleepy_workload:Sleepy
  epochs: 4
  placement_strategy: spread
  dataset: {name: digits, image_size: 28, validation_size: 64}
num_workers: [2]
batch_sizes: [128]
scaling: weak
axes: {exchange_gradients: [true, false]}
repeats: 2
"""


def test_scale_names_the_slow_worker(cluster: tuple[Host, Host], tmp_path: Path) -> None:
    study, out = tmp_path / "study.yaml", tmp_path / "out"
    study.write_text(STUDY)
    cluster[0].slow(None)
    cluster[1].slow(None)
    document = json.loads(done(raybench(cluster[0], "scale", study, "--out", out, "--json")))
    notes = " ".join(document["notes"])
    assert "Worker 1 (host " in notes
