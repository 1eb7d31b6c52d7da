"""A worker group that fits on no host of a cluster that can start hosts."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.factories import wait_for
from tests.refusals import shortage_in

from .commands import RAY
from .commands import head as running

pytestmark = [pytest.mark.ray, pytest.mark.all, pytest.mark.timeout(900)]
LISTS = (
    "cluster_synced_files",
    "rsync_exclude",
    "rsync_filter",
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
)
"""Keys of a cluster file that `ray up` fills in."""
SHELL = """
import time
from raybench.cluster.session import Session
from raybench.spec.run import ResourceRequest
import ray
with Session(address="auto") as session:
    assert session.capacity.grows
    two = ResourceRequest("python", 1, cpus_per_worker=2)
    session.capacity.refuse_infeasible(two)
    print("nodes", len(session.nodes()), flush=True)
    asking = session.pool.acquire.remote("0000", two)
    while not session.waiting():
        time.sleep(0.2)
    print("waits for", session.waiting()["0000"].what, flush=True)
    lent = ray.get(asking, timeout=600)
    print("waited for", lent.waited_for, flush=True)
    print("nodes", len(session.nodes()), flush=True)
"""


@pytest.fixture
def head(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A head with one CPU, whose autoscaler starts hosts with two, all on this machine."""
    config = {
        "cluster_name": "fake",
        "max_workers": 1,
        "idle_timeout_minutes": 1,
        "upscaling_speed": 1.0,
        "provider": {
            "type": "fake_multinode",
            "gcs_address": "127.0.0.1:6399",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "auth": {},
        "docker": {},
        "head_node_type": "ray.head.default",
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        **{key: [] for key in LISTS},
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
            "two": {"resources": {"CPU": 2}, "node_config": {}, "min_workers": 0, "max_workers": 1},
        },
    }
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(config))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_ADDRESS")}
    environment |= {
        "HOME": str(tmp_path),
        "RAY_AUTH_MODE": "disabled",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_FAKE_CLUSTER": "1",
    }
    with running("--port=6399", "--num-cpus=1", f"--autoscaling-config={file}", **environment):
        yield environment | {"RAY_ADDRESS": "127.0.0.1:6399"}


def test_a_host_is_asked_for_and_used(head):
    def has_started() -> bool:
        words = [RAY, "status"]
        return subprocess.run(words, env=head, capture_output=True, timeout=600).returncode == 0

    wait_for(has_started)
    done = subprocess.run(
        [sys.executable, "-c", SHELL], env=head, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "nodes 1"
    assert shortage_in(lines[1])[:2] == ["2 CPUs", "1"]
    assert lines[1].startswith("waits ")
    assert lines[3] == "nodes 2"
