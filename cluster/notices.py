"""Where a node learns that its cloud takes it back: one protocol, one class per source.

A source is asked on the node it is about. It answers None while nothing is announced; that it can't be asked is an `InfraError`, which the
watcher logs and outlives. Sources are configuration and cross Ray; keys are read where they are used and never kept.

Sources of the formats: AWS EC2 user guide, "Spot Instance interruption notices" and "EC2 instance rebalance recommendations" (instance
metadata service, version 2: a session token first); Kubernetes API `GET /api/v1/nodes/NAME`, `spec.taints`; the taints are those that the
node termination handlers of AWS, Google and Azure and the node life-cycle controller set.
"""

from __future__ import annotations

import json
import logging
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from coevo.config import SpotConfig
from coevo.errors import CoevoError, ConfigError, InfraError, boundary

__all__ = [
    "AwsNotice",
    "FileNotice",
    "KubernetesNotice",
    "Notice",
    "NoticeKind",
    "NoticeSource",
    "WatchPlan",
    "notice_source",
    "watch_node",
]

log = logging.getLogger(__name__)

TAINTS = (
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "cloud.google.com/impending-node-termination",
    "kubernetes.azure.com/scalesetpriority-eviction",
    "karpenter.sh/disrupted",
    "node.kubernetes.io/out-of-service",
    "DeletionCandidateOfClusterAutoscaler",
    "ToBeDeletedByClusterAutoscaler",
)
"""Taints that announce the end of a node. Others (pressure, cordons, GPU reservations) do not."""

REBALANCE_TAINTS = ("aws-node-termination-handler/rebalance-recommendation",)


class NoticeKind(StrEnum):
    """What was announced."""

    TERMINATE = "terminate"
    """The node will be taken away."""
    REBALANCE = "rebalance"
    """The node is at higher risk; often nothing follows."""


@dataclass(frozen=True, slots=True)
class Notice:
    """An announcement. `deadline` is the Unix time of the end, None where the source names none; `detail` its own words."""

    kind: NoticeKind
    deadline: float | None
    detail: str


class NoticeSource(Protocol):
    """See the module. `node_id` is Ray's id of the node that asks."""

    def read(self, node_id: str) -> Notice | None: ...


@dataclass(frozen=True, slots=True)
class FileNotice:
    """A folder with `<node id>.json`, `{"kind": ..., "seconds": ...}` or empty: for drills, and for clouds that run a script on notice."""

    folder: str

    def read(self, node_id: str) -> Notice | None:
        """The node's file. `seconds` count from the file's own time."""
        path = Path(self.folder) / f"{node_id}.json"
        try:
            text, written_at = path.read_text(encoding="utf-8"), path.stat().st_mtime
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InfraError("the notice can't be read", seen=f"{path}: {error}", fix="mend its rights") from error
        facts = _json(text or "{}", str(path))
        seconds = facts.get("seconds")
        deadline = None if seconds is None else written_at + float(seconds)
        return Notice(NoticeKind(facts.get("kind", NoticeKind.TERMINATE)), deadline, f"file {path.name}")


@dataclass(frozen=True, slots=True)
class AwsNotice:
    """EC2 instance metadata.

    Attributes:
        endpoint: Of the metadata service.
        timeout_s: Of one request.
    """

    endpoint: str = "http://169.254.169.254"
    timeout_s: float = 2.0

    def read(self, node_id: str) -> Notice | None:
        """The interruption notice, else the rebalance recommendation, of this instance."""
        del node_id
        token = self._ask("/latest/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        if token is None:
            raise InfraError(
                "the metadata service gives no session token", seen=self.endpoint, fix="allow IMDSv2 (hop limit 2 in containers)"
            )
        held = {"X-aws-ec2-metadata-token": token}
        action = self._ask("/latest/meta-data/spot/instance-action", headers=held)
        if action is not None:
            facts = _json(action, "spot/instance-action")
            return Notice(NoticeKind.TERMINATE, _moment(facts.get("time")), f"AWS: {facts.get('action', 'terminate')}")
        advice = self._ask("/latest/meta-data/events/recommendations/rebalance", headers=held)
        if advice is not None:
            seen = _json(advice, "rebalance").get("noticeTime", "")
            return Notice(NoticeKind.REBALANCE, None, f"AWS: rebalance recommendation of {seen}")
        return None

    def _ask(self, path: str, *, headers: Mapping[str, str], method: str = "GET") -> str | None:
        return _http(f"{self.endpoint}{path}", method=method, headers=headers, timeout_s=self.timeout_s)


@dataclass(frozen=True, slots=True)
class KubernetesNotice:
    """Taints of the pod's node, read with the pod's service account (it needs `get` on `nodes`).

    Attributes:
        api: URL of the API server; empty takes KUBERNETES_SERVICE_HOST and _PORT.
        node_name_env: Variable that holds the node's name (downward API, `spec.nodeName`).
        account: Folder with the service account's `token` and `ca.crt`.
        taints: Keys that announce the end.
        timeout_s: Of one request.
    """

    api: str = ""
    node_name_env: str = "NODE_NAME"
    account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    taints: tuple[str, ...] = TAINTS
    timeout_s: float = 5.0

    def read(self, node_id: str) -> Notice | None:
        """The first telling taint of the node, or its deletion."""
        del node_id
        name = os.environ.get(self.node_name_env, "")
        if not name:
            fix = f"set {self.node_name_env} from fieldRef spec.nodeName in the pod's template"
            raise InfraError("the pod does not know its node", seen=f"{self.node_name_env} is not set", fix=fix)
        node = self._node(name)
        taints = {str(taint.get("key", "")) for taint in node.get("spec", {}).get("taints") or ()}
        telling = [key for key in self.taints if key in taints]
        if telling:
            return Notice(NoticeKind.TERMINATE, None, f"Kubernetes: taint {telling[0]}")
        if node.get("metadata", {}).get("deletionTimestamp"):
            return Notice(NoticeKind.TERMINATE, None, "Kubernetes: the node is being deleted")
        advised = [key for key in REBALANCE_TAINTS if key in taints]
        return Notice(NoticeKind.REBALANCE, None, f"Kubernetes: taint {advised[0]}") if advised else None

    def _node(self, name: str) -> dict[str, Any]:
        account = Path(self.account)
        try:
            token = (account / "token").read_text(encoding="utf-8").strip()  # rotated by the kubelet: read anew each time
        except OSError as error:
            raise InfraError("the pod has no service account", seen=str(error), fix="set automountServiceAccountToken: true") from error
        url = f"{self._api()}/api/v1/nodes/{urllib.parse.quote(name, safe='')}"
        authority = account / "ca.crt"
        context = ssl.create_default_context(cafile=str(authority)) if url.startswith("https") and authority.is_file() else None
        found = _http(url, headers={"Authorization": f"Bearer {token}"}, timeout_s=self.timeout_s, context=context)
        if found is None:  # the object is gone: so will be the machine
            return {"metadata": {"deletionTimestamp": "gone"}}
        return _json(found, url)

    def _api(self) -> str:
        if self.api:
            return self.api
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise InfraError("no Kubernetes API server is known", seen="KUBERNETES_SERVICE_HOST is not set", fix="run in a pod, or set api")
        return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def notice_source(config: SpotConfig) -> NoticeSource | None:
    """The source that the config names; None where there is nothing to watch."""
    if config.notice == "none":
        return None
    if config.notice == "file":
        if config.folder is None:
            raise ConfigError("no folder for the notices", seen="cluster.spot.folder", fix="name the folder")
        return FileNotice(str(Path(config.folder).resolve()))
    return AwsNotice() if config.notice == "aws" else KubernetesNotice()


@dataclass(frozen=True, slots=True)
class WatchPlan:
    """What a watcher does; crosses Ray.

    Attributes:
        source: Where notices come from.
        period_s: Seconds between two looks.
        on_rebalance: Whether a recommendation is acted on as well.
    """

    source: NoticeSource
    period_s: float = 5.0
    on_rebalance: bool = False


def watch_node(
    plan: WatchPlan,
    node_id: str,
    *,
    drain: Callable[[str, Notice], None],
    stopped: Callable[[float], bool],
) -> Notice | None:
    """Look until a notice was acted on; None when stopped first.

    Args:
        plan: What to do.
        node_id: Which node this is.
        drain: Asks the cluster; an `InfraError` is tried again at the next look.
        stopped: Waits so many seconds; True when the watch is over.
    """
    said = ""
    while not stopped(plan.period_s):
        try:
            with boundary(InfraError, "a notice source failed"):
                notice = plan.source.read(node_id)
            if notice is not None and (notice.kind is NoticeKind.TERMINATE or plan.on_rebalance):
                log.warning("node %s: %s", node_id[:8], notice.detail)
                drain(node_id, notice)
                return notice
        except CoevoError as error:
            if str(error) != said:  # a source that is down would fill the log
                said = str(error)
                log.warning("%s", said)
    return None


def _http(
    url: str, *, headers: Mapping[str, str], timeout_s: float, method: str = "GET", context: ssl.SSLContext | None = None
) -> str | None:
    """The body; None for 404. Proxies of the environment are not for these addresses."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise InfraError("a notice source refused the request", seen=f"{url}: HTTP {error.code}", fix="check its rights") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InfraError("a notice source does not answer", seen=f"{url}: {error}", fix="check cluster.spot.notice") from error


def _json(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise InfraError("a notice is not JSON", seen=f"{where}: {text[:200]!r}", fix="check cluster.spot.notice") from error
    if not isinstance(found, dict):
        raise InfraError("a notice is not a JSON object", seen=f"{where}: {text[:200]!r}", fix="check cluster.spot.notice")
    return found


def _moment(text: object) -> float | None:
    """Unix time of an RFC 3339 text; None for anything else."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
