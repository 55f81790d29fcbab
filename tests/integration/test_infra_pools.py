"""The pools of infra/ on a real Ray cluster of this machine: node types as Ray reads them, processes as the run asks for them.

Promises:
1. Ray's own reader of a RayCluster finds in our file the node types that the AWS file states: resources, labels, priorities, idle times.
2. On nodes with those resources each kind of process of infra/run.yaml lands in its pool, and none on the head (R17).
3. An engine that asks for on-demand while spot proves bad starts only on an on-demand node.
4. The entrypoints start there: the same command, as a dry run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml

from cluster.local_nodes import LocalNodes, NodeSpec
from cluster.placement import actor_placement, worker_bundle
from cluster.session import AuthMode, SessionConfig, open_session
from coevo.config import PlacementConfig, load_config

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
CONFIG = load_config(INFRA / "run.yaml")
CUT_CPUS = 0.1


def node_types() -> dict[str, dict[str, Any]]:
    """Group name -> what Ray's autoscaler reads from our RayCluster."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    document = yaml.safe_load((INFRA / "kuberay" / "raycluster.yaml").read_text("utf-8"))
    document["metadata"]["namespace"] = "coevo"
    types = _derive_autoscaling_config_from_ray_cr(document)["available_node_types"]
    return {("head" if name.startswith("head") else name): node for name, node in types.items()}


def test_ray_reads_what_the_aws_file_states() -> None:
    stated = yaml.safe_load((INFRA / "aws" / "cluster.yaml").read_text("utf-8"))["available_node_types"]
    read = node_types()
    assert read.keys() == stated.keys()
    for name, node in stated.items():
        kinds = {key: value for key, value in read[name]["resources"].items() if key != "memory"}
        assert kinds == node["resources"], name
        assert read[name]["labels"] == node["labels"], name
        assert read[name].get("priority") == node.get("priority"), name
        assert read[name].get("idle_timeout_s") == node.get("idle_timeout_s"), name
        assert (read[name]["min_workers"], read[name]["max_workers"]) == (node["min_workers"], node["max_workers"]), name


def spec(name: str) -> NodeSpec:
    """A node with the labels and GPUs of a group. Ray starts a process per logical CPU ahead, so CPUs are cut on both sides."""
    offered = node_types()[name]["resources"]
    custom = {key: value for key, value in offered.items() if key.startswith("coevo-")}
    return NodeSpec(num_cpus=min(1, offered["CPU"]), num_gpus=offered.get("GPU", 0), resources=custom)


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[LocalNodes, dict[str, str]]]:
    """Head and one spot node per pool, joined by this process; group name -> node id."""
    with LocalNodes(spec("head"), jobs=False, auth=AuthMode.DISABLED) as started:
        where = {"head": started.head.id}
        where |= {name: started.add(spec(name)).id for name in ("rollout-spot", "weak-l40s-spot", "train-h100-spot")}
        with open_session(SessionConfig(address=started.address, auth=AuthMode.DISABLED)):
            yield started, where


class Where:
    """Says on which node it runs."""

    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


def actor(options: Mapping[str, Any]) -> Any:
    remote: Any = ray.remote
    return remote(Where).options(**options).remote()


def asks(placement: PlacementConfig, resources: Mapping[str, float]) -> dict[str, Any]:
    return actor_placement(CUT_CPUS, placement.num_gpus, resources)


def test_each_kind_of_process_lands_in_its_pool(nodes: tuple[LocalNodes, dict[str, str]]) -> None:
    started, where = nodes
    pools = CONFIG.cluster.pools
    bundle = worker_bundle(pools.train)
    assert bundle.pop("CPU") == pools.train.num_cpus
    trainer = {"num_cpus": CUT_CPUS, "num_gpus": bundle.pop("GPU"), "resources": bundle}
    actors = {
        "weak-l40s-spot": [actor(asks(pools.weak, pools.weak.resources)) for _ in range(CONFIG.weak.replicas)],
        "rollout-spot": [actor(asks(pools.rollout, pools.rollout.resources)) for _ in range(CONFIG.rollout.workers)],
        "train-h100-spot": [actor(trainer) for _ in range(CONFIG.train.workers)],
    }
    for name, started_actors in actors.items():
        assert set(ray.get([one.node.remote() for one in started_actors], timeout=240)) == {where[name]}, name
    assert started.head.workers("Where") == []

    fallback = actor(asks(pools.weak, pools.weak.on_demand_resources or {}))
    answer = fallback.node.remote()
    assert ray.wait([answer], timeout=3)[1] == [answer], "no on-demand node is there yet"
    node = started.add(spec("weak-l40s-on-demand"))
    assert ray.get(answer, timeout=240) == node.id


def entrypoints() -> dict[str, list[str]]:
    job = yaml.safe_load((INFRA / "kuberay" / "rayjob.yaml").read_text("utf-8"))["spec"]["entrypoint"]
    script = (INFRA / "skypilot" / "skypilot.sh").read_text("utf-8")
    (sky,) = re.findall(r"exec (coevo .*)", script)
    return {"kuberay": shlex.split(job), "skypilot": shlex.split(sky)}


@pytest.mark.parametrize("launcher", ["kuberay", "skypilot"])
def test_the_entrypoint_starts(launcher: str, nodes: tuple[LocalNodes, dict[str, str]]) -> None:
    """Through the image's own entry script, with the paths of this machine in the place of the image's."""
    started, _ = nodes
    command = [str(INFRA / "run.yaml") if part == "/opt/coevo/run.yaml" else part for part in entrypoints()[launcher]]
    environment = {**os.environ, **started.environment, "RAY_ADDRESS": started.address}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        [str(INFRA / "entrypoint.sh"), *command, "--dry-run"], capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert "GPU hours" in done.stdout
