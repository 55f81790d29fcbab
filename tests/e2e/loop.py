"""Runs `coevo` as users do, in a process of its own, and reads what it left in the store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coevo.records import Attempt, Status
from coevo.store import LocalSource
from coevo.store.artifacts import StageManifest
from tests.e2e.artifacts import artifacts

__all__ = ["CONFIG", "Loop"]

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "jobs" / "configs" / "tiny.yaml"


@dataclass(frozen=True)
class Loop:
    """One run of the tiny config in a store of its own."""

    store: Path
    name: str = "tiny"
    printed: list[str] = field(default_factory=list)

    @property
    def recording(self) -> str:
        """The override that records the weak model beside the store, or answers from there."""
        return f"weak.recording={self.store.parent / 'recording'}"

    def command(self, verb: str, *overrides: str) -> list[str]:
        settings = [f"store={self.store}", f"name={self.name}", *overrides]
        flags = [part for setting in settings for part in ("--set", setting)]
        return [sys.executable, "-m", "jobs.cli", verb, str(CONFIG), *flags, "--display", "plain"]

    def run(self, verb: str, *overrides: str, timeout_s: float = 900.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(verb, *overrides), cwd=self.store.parent, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def kill_when(self, ready: Callable[[], bool], *, verb: str = "run", overrides: Sequence[str] = (), timeout_s: float = 600.0) -> int:
        """Start `verb`, SIGKILL the driver as soon as `ready()`; its return code (-9 when the kill met it alive)."""
        log = (self.store.parent / f"{self.name}.log").open("ab")
        driver = subprocess.Popen(self.command(verb, *overrides), cwd=self.store.parent, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + timeout_s
        while driver.poll() is None and not ready():
            assert time.monotonic() < deadline, "the moment to kill never came"
            time.sleep(0.05)
        if driver.poll() is None:
            os.kill(driver.pid, signal.SIGKILL)
        return driver.wait(timeout=60)

    def keys(self, part: str) -> list[str]:
        store = LocalSource(str(self.store)).open()
        return [info.key for info in store.list(f"{self.name}/{part}")]

    def artifacts(self) -> dict[str, Any]:
        """See `tests.e2e.artifacts`."""
        return artifacts(LocalSource(str(self.store)).open(), self.name)

    def manifests(self) -> dict[str, StageManifest]:
        store = LocalSource(str(self.store)).open()
        found = [key for key in self.keys("") if key.endswith("/manifest.json") and "/train/" not in key]
        return {one.stage: one for one in (StageManifest.from_bytes(store.get(key)) for key in found)}

    def outcomes(self) -> Counter[str]:
        """Episode id -> attempts that ended in an outcome (not in infrastructure trouble)."""
        store = LocalSource(str(self.store)).open()
        attempts = (Attempt.from_bytes(store.get(key)) for key in self.keys("attempts/"))
        return Counter(one.id for one in attempts if one.outcome != Status.INFRA_ERROR)
