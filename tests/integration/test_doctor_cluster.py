"""`coevo doctor --address`: every node answers for itself, the head that runs no work included."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.local_nodes import LocalNodes, NodeSpec
from cluster.session import AuthMode
from coevo import __version__
from jobs.checks import Outcome
from jobs.checks_remote import check_cluster
from tests.seaweed import SeaweedServer

pytestmark = pytest.mark.timeout(300)


def test_every_node_tells_its_versions_and_reaches_the_store(seaweed: SeaweedServer) -> None:
    """R15: one version of everything on all nodes; a node that can't reach the bucket is named."""
    source = seaweed.source(attempts=1)
    with LocalNodes(NodeSpec(num_cpus=0), [NodeSpec(num_cpus=1)], jobs=False, auth=AuthMode.DISABLED) as nodes:
        cluster, *told = check_cluster(nodes.address, source)
        assert cluster.seen == f"{nodes.address}: 2 nodes alive"
        assert len(told) == 2
        for check in told:
            assert check.outcome is Outcome.OK, check.line
            assert f"coevo {__version__}" in check.seen
        _, *lost = check_cluster(nodes.address, replace(source, endpoint="http://127.0.0.1:9"))
        for check in lost:
            assert check.outcome is Outcome.FAIL
            assert "store: StoreOutage" in check.seen
    (gone,) = check_cluster(nodes.address, source)
    assert gone.outcome is Outcome.FAIL
    assert "can't be reached" in gone.seen
