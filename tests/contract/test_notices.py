"""Notice sources against the services that they read, spoken by loopback servers. Promises:

1. AWS: a session token first (IMDSv2), sent with every question; 404 is "nothing announced"; the notice's time becomes the deadline.
2. Kubernetes: the pod's own token; only taints that announce the end count; a deleted node is one that ends.
3. What the service refuses, garbles or does not answer is an `InfraError` that holds no token (I11).
4. Proxies of the environment are not asked.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from cluster.notices import AwsNotice, KubernetesNotice, Notice, NoticeKind
from coevo.errors import InfraError

TOKEN = "session-token"
ACTION = "/latest/meta-data/spot/instance-action"
ADVICE = "/latest/meta-data/events/recommendations/rebalance"


@pytest.fixture(autouse=True)
def proxied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 4: a proxy that nobody answers."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


@pytest.fixture
def metadata(httpserver: HTTPServer) -> HTTPServer:
    """An instance without notices."""

    def token(request: Request) -> Response:
        return Response(TOKEN) if request.headers.get("X-aws-ec2-metadata-token-ttl-seconds") else Response("", 400)

    httpserver.expect_request("/latest/api/token", method="PUT").respond_with_handler(token)
    return httpserver


def announce(server: HTTPServer, path: str, body: str) -> None:
    def answer(request: Request) -> Response:
        return Response(body) if request.headers.get("X-aws-ec2-metadata-token") == TOKEN else Response("", 401)

    server.expect_request(path, method="GET").respond_with_handler(answer)


def aws(server: HTTPServer) -> AwsNotice:
    return AwsNotice(endpoint=server.url_for("").rstrip("/"))


def test_an_instance_without_notice(metadata: HTTPServer) -> None:
    """Promise 1. The server answers 404 for both documents, as EC2 does."""
    for path in (ACTION, ADVICE):
        metadata.expect_request(path).respond_with_data("", status=404)
    assert aws(metadata).read("n") is None


def test_an_interruption(metadata: HTTPServer) -> None:
    """Promise 1."""
    announce(metadata, ACTION, '{"action": "terminate", "time": "2026-11-30T17:02:00Z"}')
    assert aws(metadata).read("n") == Notice(NoticeKind.TERMINATE, 1796058120.0, "AWS: terminate")


def test_a_recommendation(metadata: HTTPServer) -> None:
    """Promise 1."""
    metadata.expect_request(ACTION).respond_with_data("", status=404)
    announce(metadata, ADVICE, '{"noticeTime": "2026-11-30T17:00:00Z"}')
    found = aws(metadata).read("n")
    assert found is not None
    assert (found.kind, found.deadline) == (NoticeKind.REBALANCE, None)


@pytest.fixture
def pod(httpserver: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubernetesNotice:
    """A pod on node worker-7 with a service account."""
    (tmp_path / "token").write_text("pod-token\n")
    monkeypatch.setenv("NODE_NAME", "worker-7")
    return KubernetesNotice(api=httpserver.url_for("").rstrip("/"), account=str(tmp_path))


def node(server: HTTPServer, *taints: str, deleted: bool = False) -> None:
    metadata = {"name": "worker-7"} | ({"deletionTimestamp": "2026-11-30T17:00:00Z"} if deleted else {})
    document = {"metadata": metadata, "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]} if taints else {}}
    server.clear()
    server.expect_request("/api/v1/nodes/worker-7", headers={"Authorization": "Bearer pod-token"}).respond_with_json(document)


def test_taints(httpserver: HTTPServer, pod: KubernetesNotice) -> None:
    """Promise 2."""
    node(httpserver)
    assert pod.read("n") is None
    node(httpserver, "node.kubernetes.io/memory-pressure", "nvidia.com/gpu", "node.kubernetes.io/unschedulable")
    assert pod.read("n") is None
    node(httpserver, "nvidia.com/gpu", "cloud.google.com/impending-node-termination")
    assert pod.read("n") == Notice(NoticeKind.TERMINATE, None, "Kubernetes: taint cloud.google.com/impending-node-termination")
    node(httpserver, "aws-node-termination-handler/rebalance-recommendation")
    assert pod.read("n") == Notice(NoticeKind.REBALANCE, None, "Kubernetes: taint aws-node-termination-handler/rebalance-recommendation")
    node(httpserver, deleted=True)
    assert pod.read("n") == Notice(NoticeKind.TERMINATE, None, "Kubernetes: the node is being deleted")
    httpserver.clear()
    httpserver.expect_request("/api/v1/nodes/worker-7").respond_with_data("", status=404)
    assert pod.read("n") is not None


def test_a_rotated_token_is_read_anew(httpserver: HTTPServer, pod: KubernetesNotice) -> None:
    """Promise 2: the kubelet replaces the file every hour."""
    node(httpserver)
    pod.read("n")
    Path(pod.account, "token").write_text("next-token")
    with pytest.raises(InfraError, match="HTTP 5"):
        pod.read("n")


def test_trouble_is_an_infra_error_without_tokens(metadata: HTTPServer, pod: KubernetesNotice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 3, I11."""
    announce(metadata, ACTION, "soon")
    metadata.expect_request("/api/v1/nodes/worker-7").respond_with_data("no", status=403)
    cases = (aws(metadata), pod, AwsNotice(endpoint="http://127.0.0.1:9", timeout_s=0.5))
    for source in cases:
        with pytest.raises(InfraError) as caught:
            source.read("n")
        assert TOKEN not in str(caught.value)
        assert "pod-token" not in str(caught.value)
    monkeypatch.delenv("NODE_NAME")
    with pytest.raises(InfraError, match="NODE_NAME"):
        pod.read("n")
