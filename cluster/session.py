"""The one place that starts or joins Ray.

Inside a job of Ray's Jobs server the address is `env`: Ray names the cluster in RAY_ADDRESS, and its own mode of authentication.

A local session is private: it never joins a cluster it did not start (`address` is explicit, so neither RAY_ADDRESS nor what a killed
driver left behind is picked up), ports are chosen by Ray, and its processes die with the driver (Linux parent-death signal; elsewhere Ray's
reaper). Authentication is set explicitly: with `token`, a token is drawn per process and handed on through the environment only.

Limits: one session per process at a time. SIGTERM is turned into an orderly exit only when the session is opened in the main thread.
"""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any

import ray

import cluster
from cluster.drain import no_query
from coevo.config import FROM_ENVIRONMENT
from coevo.errors import ConfigError, PrerequisiteError

__all__ = [
    "FROM_ENVIRONMENT",
    "NAMESPACE",
    "QUIET_ENVIRONMENT",
    "AuthMode",
    "Session",
    "SessionConfig",
    "open_session",
    "package_path",
    "session_is_local",
]

NAMESPACE = "coevo"
"""Ray namespace of every named actor."""

QUIET_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""What worker processes see: one thread each (two spin on a busy machine), nothing sent anywhere, nothing downloaded."""

_LOCAL_TRIES = 3
_KNOCK_TIMEOUT_S = 10.0

_joined = False

MIN_LOGICAL_CPUS = 4
"""Ray Data and Ray Train were seen to stall with 2."""


class AuthMode(StrEnum):
    """How the processes of the cluster recognise each other."""

    TOKEN = "token"
    """Bearer token; drawn for a local session, taken from RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH when joining."""
    DISABLED = "disabled"
    """None: for loopback on a machine without other users."""


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """How to get a Ray cluster.

    Attributes:
        address: Empty starts a private local cluster; else the address of one to join ("auto" is refused: name the cluster);
            `env` joins the one that RAY_ADDRESS names, as in a submitted job.
        num_cpus: Logical CPUs of a local cluster; they only ration placement.
        num_gpus: Logical GPUs of a local cluster; None lets Ray count them.
        object_store_bytes: Cap of the local object store.
        auth: See `AuthMode`; None = TOKEN for a local cluster, and what RAY_AUTH_MODE says (else TOKEN) for one that is joined.
        temp_dir: Folder of Ray's sockets and logs; empty for Ray's default. Keep it short: socket paths end at 107 bytes.
        log_to_driver: Whether worker output appears on the driver's terminal.
        environment: More variables for the workers.
    """

    address: str = ""
    num_cpus: int = MIN_LOGICAL_CPUS
    num_gpus: int | None = 0
    object_store_bytes: int = 256 << 20
    auth: AuthMode | None = None
    temp_dir: str = ""
    log_to_driver: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Session:
    """An open session: Ray is initialised in this process.

    Attributes:
        namespace: Namespace of named actors.
        local: True when this process owns the cluster.
        log_dir: Ray's log folder of a local session; empty otherwise.
    """

    namespace: str
    local: bool
    log_dir: str


@contextmanager
def open_session(config: SessionConfig | None = None) -> Iterator[Session]:
    """Start or join Ray for the duration of the block; leaves nothing running, also on exceptions and SIGTERM.

    Raises:
        ConfigError: An impossible setting, or a session is open already.
        PrerequisiteError: Ray could not be started or reached.
    """
    settings = _resolved(config or SessionConfig())
    _check(settings)
    with _sigterm_exits():
        global _joined
        session = _connect(settings)
        _joined = not session.local
        try:
            with _sigterm_exits():
                yield session
        finally:
            with no_query():
                ray.shutdown()
            _joined = False


def session_is_local() -> bool:
    """False while this process is part of a cluster that it joined: servers then listen beyond loopback."""
    return not _joined


def _resolved(config: SessionConfig) -> SessionConfig:
    """The address and the mode of authentication that the environment decides."""
    address, auth = config.address, config.auth
    if address == FROM_ENVIRONMENT:
        address = os.environ.get("RAY_ADDRESS", "")
        if not address:
            fix = "this address is for jobs of Ray's Jobs server (coevo submit); elsewhere give HOST:PORT"
            raise PrerequisiteError("the environment names no Ray cluster", seen="RAY_ADDRESS is not set", fix=fix)
    if auth is None:
        inherited = os.environ.get("RAY_AUTH_MODE", "") if address else ""
        known = [mode for mode in AuthMode if mode.value == inherited]
        auth = known[0] if known else AuthMode.TOKEN
    return replace(config, address=address, auth=auth)


def _check(config: SessionConfig) -> None:
    if ray.is_initialized():
        raise ConfigError("a Ray session is open in this process already", fix="use the open one, or close it first")
    if config.address in ("auto", "local"):
        raise ConfigError(
            "the cluster to use is not named", seen=config.address, fix="leave address empty for a local one, or give HOST:PORT"
        )
    if not config.address and config.num_cpus < MIN_LOGICAL_CPUS:
        raise ConfigError(
            "too few logical CPUs for Ray Data and Train",
            seen=config.num_cpus,
            fix=f"at least {MIN_LOGICAL_CPUS}; they ration, not pin",
        )


def _connect(config: SessionConfig) -> Session:
    _set_auth(config)
    wanted = QUIET_ENVIRONMENT | dict(config.environment)
    if config.address:
        _require_listener(config.address)
        arguments: dict[str, Any] = {"address": config.address, "runtime_env": {"env_vars": wanted}}
    else:
        arguments = _local_arguments(config)
        # Ray starts as many processes at once as there are cores, whatever num_cpus says, and warns on the terminal beyond four times that.
        wanted |= {"PYTHONPATH": package_path(), "RAY_worker_maximum_startup_concurrency": str(config.num_cpus)}
    # A local cluster's processes inherit the environment of this moment; the driver gets its own back afterwards.
    with _environment({} if config.address else wanted):
        context = _init(arguments, config, tries=1 if config.address else _LOCAL_TRIES)
    session_dir = str(getattr(context, "address_info", {}).get("session_dir") or "")
    return Session(NAMESPACE, not config.address, str(Path(session_dir, "logs")) if session_dir and not config.address else "")


def _init(arguments: Mapping[str, Any], config: SessionConfig, *, tries: int) -> Any:
    """`ray.init`; a local start is tried again, because Ray gives its node manager 30 s, fixed, and a busy machine may need more."""
    try:
        return ray.init(namespace=NAMESPACE, log_to_driver=config.log_to_driver, logging_level=logging.ERROR, **arguments)
    except Exception as error:
        ray.shutdown()
        if tries > 1:
            return _init(arguments, config, tries=tries - 1)
        what = "the Ray cluster can't be reached" if config.address else "a local Ray cluster can't be started"
        fix = "check the address, RAY_AUTH_TOKEN and the versions of Ray and Python" if config.address else "check load, memory and /tmp"
        raise PrerequisiteError(what, seen=f"{config.address or 'local'}: {error}", fix=fix) from error


def _require_listener(address: str) -> None:
    """Knock before Ray does: Ray itself tries for minutes, and may end the process."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError("a cluster address needs host and port", seen=address, fix="write HOST:PORT, for example 10.0.0.5:6379")
    try:
        socket.create_connection((host, int(port)), timeout=_KNOCK_TIMEOUT_S).close()
    except OSError as error:
        fix = "check the address, and that the cluster's head is up"
        raise PrerequisiteError("the Ray cluster can't be reached", seen=f"{address}: {error}", fix=fix) from error


def _set_auth(config: SessionConfig) -> None:
    os.environ["RAY_AUTH_MODE"] = (config.auth or AuthMode.TOKEN).value
    if config.auth is AuthMode.TOKEN and not config.address:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    # Ray reads both once, at import, so a process that imported Ray earlier has to be told to read them again.
    raylet: Any = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def _local_arguments(config: SessionConfig) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "address": "local",
        "num_cpus": config.num_cpus,
        "object_store_memory": config.object_store_bytes,
        "include_dashboard": False,
    }
    if config.num_gpus is not None:
        arguments["num_gpus"] = config.num_gpus
    if config.temp_dir:
        arguments["_temp_dir"] = config.temp_dir
    return arguments


def package_path() -> str:
    """The folder of our packages first, so that workers find the same ones as the driver, whatever its working folder."""
    root = str(Path(cluster.__file__).resolve().parents[1])
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != root]
    return os.pathsep.join([root, *inherited])


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _sigterm_exits() -> Iterator[None]:
    """SIGTERM raises SystemExit(143) in the main thread, so that `finally` blocks run. Entered twice: Ray sets its own handler at start."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def _exit(signum: int, frame: FrameType | None) -> None:
    del frame
    raise SystemExit(128 + signum)
