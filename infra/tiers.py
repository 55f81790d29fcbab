"""Run the test tiers in order and print the counts of each. Standard library only; runs inside the project's environment.

    .venv/bin/python infra/tiers.py [TIER ...]

A tier is a folder of tests/. Every tier runs, also after a failure in an earlier one; the exit code is 1 if any failed. A tier without
tests counts as empty, not as failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TIERS = ("unit", "contract", "integration", "e2e", "gpu")
TIMEOUTS_S = {"unit": 120, "contract": 300, "integration": 600, "e2e": 900, "gpu": 900}
PROCESSES = 2
SLOWEST = 12
"""Tests of a tier whose seconds are shown."""
SHARED = {"unit": "worksteal", "contract": "loadfile"}
"""How a tier is shared among processes: by test, or by file, with the servers that its tests share. Whole clusters have the machine to
themselves."""
NO_TESTS = 5


class Count(NamedTuple):
    """What one tier came to."""

    tier: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    ok: bool


def run_tier(tier: str) -> Count:
    """Run one folder in its own process, so that no tier inherits another's Ray or torch."""
    folder = ROOT / "tests" / tier
    print(f"\n== {tier} ==", flush=True)
    if not any(folder.rglob("test_*.py")):
        print(f"{tier}: empty")
        return Count(tier, 0, 0, 0, 0.0, True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, "-m", "pytest", str(folder), "-q", f"--timeout={TIMEOUTS_S[tier]}", f"--junitxml={report}"]
        command += [f"--durations={SLOWEST}", "--durations-min=5"]
        command += ["-n", str(PROCESSES), "--dist", SHARED[tier]] if tier in SHARED else []
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        passed, failed, skipped = read_report(report)
    return Count(tier, passed, failed, skipped, time.monotonic() - started, code in (0, NO_TESTS))


def read_report(path: Path) -> tuple[int, int, int]:
    """(passed, failed or in error, skipped) of a JUnit file; zeros when the run died before writing it."""
    if not path.exists():
        return 0, 0, 0
    suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
    total, failures, errors, skipped = (sum(int(s.get(key, 0)) for s in suites) for key in ("tests", "failures", "errors", "skipped"))
    return total - failures - errors - skipped, failures + errors, skipped


def main(argv: list[str]) -> int:
    """Run the named tiers, or all; print one line each and the sum."""
    unknown = sorted(set(argv) - set(TIERS))
    if unknown:
        print(f"error: unknown tier\n  seen: {', '.join(unknown)}\n  fix: one or more of {' '.join(TIERS)}", file=sys.stderr)
        return 2
    counts = [run_tier(tier) for tier in (argv or TIERS)]
    print("\ntier          passed  failed  skipped  seconds")
    for count in counts:
        figures = f"{count.passed:>6}  {count.failed:>6}  {count.skipped:>7}  {count.seconds:>7.0f}"
        print(f"{count.tier:<12}  {figures}{'' if count.ok else '  FAILED'}")
    print(f"{sum(c.passed for c in counts)} passed, {sum(c.failed for c in counts)} failed, {sum(c.skipped for c in counts)} skipped")
    return 0 if all(count.ok for count in counts) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
