"""One Ray cluster of two nodes on this machine, for one file of tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

NODES = 2
CPUS = 2  # of each node; Ray only counts them
GPUS = 2  # of each node; none exists, and Ray does not look


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[None]:
    """This process is connected; backends borrow the connection."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    logging.getLogger("ray").setLevel(logging.ERROR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")  # whatever token Ray finds in the home
        node = {"num_cpus": CPUS, "num_gpus": GPUS, "object_store_memory": 100 << 20}
        cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        for _ in range(NODES - 1):
            cluster.add_node(**node)
        ray.init(address=cluster.address, configure_logging=False, log_to_driver=False)
        yield
        ray.shutdown()
        cluster.shutdown()
