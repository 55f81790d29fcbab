"""What every tier shares: quiet, single-threaded processes, and the reason why a GPU test is skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.seaweed import SeaweedServer

QUIET = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
}
for name, value in QUIET.items():
    os.environ.setdefault(name, value)

settings.register_profile("untimed", deadline=None)  # how long an example takes says how busy the machine is
settings.load_profile("untimed")

GPU_TIER = Path(__file__).parent / "gpu"


def gpu_missing() -> str:
    """Why GPU tests can't run here, or an empty string where they can. Asks the driver's tool, so that torch stays out of the process."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "no CUDA device: nvidia-smi is not installed"
    listing = subprocess.run([tool, "--list-gpus"], capture_output=True, text=True, timeout=60, check=False)
    if listing.returncode or not listing.stdout.strip():
        return f"no CUDA device: nvidia-smi lists none ({(listing.stderr or listing.stdout).strip()[:120]})"
    return ""


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    """One S3 server for all tests of the session that ask for it."""
    from tests.seaweed import serve_seaweed

    with serve_seaweed(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `slow` are skipped unless COEVO_SLOW=1, and those under tests/gpu (marked `gpu`) where there is no device."""
    marked = [item for item in items if item.get_closest_marker("gpu") or GPU_TIER in item.path.parents]
    reason = gpu_missing() if marked else ""
    for item in marked:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
    if os.environ.get("COEVO_SLOW") != "1":
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: COEVO_SLOW=1 runs it"))
