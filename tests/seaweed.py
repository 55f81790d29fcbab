"""A real S3 server (SeaweedFS) on loopback, started and stopped by the tests.

`tests/conftest.py` offers it as the session fixture `seaweed`; each test takes a bucket prefix of its own with `seaweed.source()`.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cluster.s3 import S3Source

__all__ = ["BUCKET", "KEYS", "SeaweedServer", "serve_seaweed"]

BUCKET = "coevo-tests"
KEYS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "not-a-secret-on-loopback", "AWS_EC2_METADATA_DISABLED": "true"}
"""Environment of every process that talks to the server."""

_READY_S = 120.0
_DIE_WITH_ME = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
"""Linux's PR_SET_PDEATHSIG with SIGKILL, then the real command: a killed test process leaves no server behind."""


@dataclass
class SeaweedServer:
    """A running server. `endpoint` is its URL, `port` the S3 port."""

    port: int
    process: subprocess.Popen[bytes]
    _prefixes: Iterator[int] = field(default_factory=itertools.count)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def source(self, *, endpoint: str = "", **settings: object) -> S3Source:
        """A source with a prefix of its own; `endpoint` when a proxy stands in front."""
        prefix = f"test-{next(self._prefixes)}"
        return S3Source(bucket=BUCKET, prefix=prefix, endpoint=endpoint or self.endpoint, region="us-east-1", **settings)  # type: ignore[arg-type]


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@contextmanager
def serve_seaweed(folder: Path) -> Iterator[SeaweedServer]:
    """Serve from `folder`, with one bucket, until the block ends. Sets the keys in this process's environment meanwhile."""
    identity = {
        "name": "tester",
        "credentials": [{"accessKey": KEYS["AWS_ACCESS_KEY_ID"], "secretKey": KEYS["AWS_SECRET_ACCESS_KEY"]}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    identities = folder / "identities.json"
    identities.write_text(json.dumps({"identities": [identity]}))
    with (folder / "weed.log").open("wb") as log:
        ports = free_ports(8)
        process = subprocess.Popen(_command(folder, identities, ports), stdout=log, stderr=log, cwd=folder, start_new_session=True)
        before = {name: os.environ.get(name) for name in KEYS}
        os.environ.update(KEYS)
        try:
            server = SeaweedServer(ports[3], process)
            _make_bucket(server, folder / "weed.log")
            yield server
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)


def _command(folder: Path, identities: Path, ports: list[int]) -> list[str]:
    flags = {
        "dir": folder,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.port": ports[0],
        "volume.port": ports[1],
        "filer.port": ports[2],
        "s3.port": ports[3],
        "master.port.grpc": ports[4],
        "volume.port.grpc": ports[5],
        "filer.port.grpc": ports[6],
        "s3.port.grpc": ports[7],
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.config": identities,
        "master.volumeSizeLimitMB": 256,
        "master.telemetry": "false",
        "volume.max": 32,
        "volume.minFreeSpace": "1",
    }
    weed = Path(sys.executable).parent / "weed"
    return [sys.executable, "-c", _DIE_WITH_ME, str(weed), "server", "-s3", *(f"-{name}={value}" for name, value in flags.items())]


def _make_bucket(server: SeaweedServer, log: Path) -> None:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    config = Config(connect_timeout=2, read_timeout=10, retries={"total_max_attempts": 1})
    client = boto3.client("s3", endpoint_url=server.endpoint, region_name="us-east-1", config=config)
    deadline, error = time.monotonic() + _READY_S, ""
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"")
            client.delete_object(Bucket=BUCKET, Key="ready")
            return
        except (BotoCoreError, ClientError) as caught:
            error = str(caught)
            time.sleep(0.2)
    raise RuntimeError(f"SeaweedFS did not start: {error}\n{log.read_text(errors='replace')[-3000:]}")
