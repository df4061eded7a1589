"""A node of a Ray cluster that dies during rollouts, and one that joins.

Ray's nodes are on this machine. The training is in this process, on the head, which has no CPU for workers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("ray")

import ray
from ray.cluster_utils import Cluster
from ray.util import placement_group, placement_group_table
from tests.faults.test_ray_faults import SETTINGS, gone

from ramet.plugins import load_plugins

NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}
NAMES = ("first", "second")  # resources of the nodes
LOST, JOINED = 2, 3  # steps
WITHIN_S = 240.0  # a busy machine starts an actor in half a minute


@pytest.fixture
def cluster(plugin: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A head and two nodes. This process is connected, and the run borrows the connection."""
    monkeypatch.setenv("RAMET_PLUGINS", "faults_plugin,ray_plugin")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # whatever token Ray finds in the home
    load_plugins.cache_clear()
    logging.getLogger("ray").setLevel(logging.ERROR)
    head = {**NODE, "num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, shutdown_at_exit=False, head_node_args=head)
    for name in NAMES:
        cluster.add_node(**NODE, resources={name: 1})
    ray.init(address=cluster.address, configure_logging=False, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    load_plugins.cache_clear()


def waited_for(condition: Callable[[], Any], what: str) -> None:
    ends_at = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < ends_at, f"{what}: not within {WITHIN_S:g} s"
        time.sleep(0.05)


def node_of_policy() -> dict[str, Any]:
    """The node that must live. Bundles of the policy are packed, the engines' are spread."""
    [policy] = [group for group in placement_group_table().values() if group["strategy"] == "PACK"]
    [used] = policy["bundles_to_node_id"].values()
    return next(node for node in ray.nodes() if node["NodeID"] == used)


def lose_the_other_node(cluster: Cluster) -> None:
    """Kill it, and leave no room for its engine anywhere."""
    kept = node_of_policy()
    [name] = set(NAMES) & kept["Resources"].keys()
    ray.get(placement_group([{"CPU": 0.3, name: 1}]).ready(), timeout=WITHIN_S)
    [lost] = [node for node in cluster.worker_nodes if node.node_id != kept["NodeID"]]
    cluster.remove_node(lost, allow_graceful=False)


def test_the_run_continues_without_a_node_that_dies_and_a_node_that_joins_gets_its_engine(
    workspace, cluster, tmp_path, caplog
):
    """Calls of tools wait until the node has died in step 2, and until the other has joined in step 3."""
    failed: list[BaseException] = []
    ended = threading.Event()

    def happen() -> None:
        try:
            waited_for(lambda: len(list(tmp_path.glob(f"waiting_{LOST}_*"))) == 2, "calls on both nodes")
            lose_the_other_node(cluster)
            waited_for(lambda: "is lost" in caplog.text, "the loss")
            (tmp_path / f"continue_{LOST}").touch()
            waited_for(lambda: list(tmp_path.glob(f"waiting_{JOINED}_*")), "the next step")
            assert "is replaced after" not in caplog.text
            cluster.add_node(**NODE)
            waited_for(lambda: "is replaced after" in caplog.text, "the replacement")
        except BaseException as error:
            failed.append(error)
        finally:
            for step in (LOST, JOINED):
                (tmp_path / f"continue_{step}").touch()
            ended.wait()  # Linux ends the node that was added with the thread that has started it

    struck = [f"tools.ray_tool.params.folder={tmp_path}", f"tools.ray_tool.params.wait=[{LOST},{JOINED}]"]
    more = ["cluster=ray", "cluster.rollout_workers=2", "run.deterministic=false", "run.threads=1"]
    happening = threading.Thread(target=happen)
    happening.start()
    try:
        workspace.train("nodes", *SETTINGS, *more, *struck, steps=4)
    finally:
        ended.set()
        happening.join()
    assert not failed, failed
    lines = workspace.metrics("nodes")
    assert [line["rollout/rollouts"] for line in lines] == [18] * 4
    assert [line["rollout/masked_share"] for line in lines] == [0] * 4
    assert all(line["train/version_lag_max"] == 0 for line in lines)
    assert "(1 of at most 3 within" in caplog.text and "(2 of at most 3 within" not in caplog.text
    assert len(list(tmp_path.glob(f"waiting_{JOINED}_*"))) == 1
    assert gone()
