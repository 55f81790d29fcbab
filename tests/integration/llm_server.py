"""A real OpenAI-compatible server for tests: vLLM's own, with a random tiny model, started and ended by its context manager."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cluster.tiny import make_tiny_model
from coevo.models.openai_api import OpenAISource

__all__ = ["Server", "serve"]

KEY = "sk-server-very-secret"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Server:
    """A running server and the folder of its model."""

    url: str
    folder: str

    def source(self, **changes: object) -> OpenAISource:
        source = OpenAISource(f"{self.url}/v1", "big", api_key_env="COEVO_SERVER_KEY", format_name="hermes", timeout_s=240.0, max_retries=1)
        return replace(source, **changes)  # type: ignore[arg-type]


@contextmanager
def serve(root: Path, *, context: int, kv_cache: str = "64M") -> Iterator[Server]:
    """A server of a model of `context` tokens below `root`; it is gone at the end, whatever happens."""
    folder = make_tiny_model(root / "model", seed=3, max_len=context)
    (root / "template.jinja").write_text(TEMPLATE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--served-model-name", "big"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--api-key", KEY, "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", str(context), "--max-num-seqs", "4", "--kv-cache-memory-bytes", kv_cache, "--block-size", "32"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]  # vLLM 0.32 takes no forced call without a parser
    # vLLM 0.32 on CPU dies on a request with a seed whose prompt is cut over two steps, so a step takes all prompts at once.
    command += ["--chat-template", str(root / "template.jinja"), "--max-num-batched-tokens", str(4 * context)]
    with (root / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, **ENVIRONMENT, "HOME": str(root)}, start_new_session=True
        )
        try:
            wait(process, f"http://127.0.0.1:{port}/health", root / "log.txt")
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("COEVO_SERVER_KEY", KEY)
                patch.setenv("COEVO_WRONG_KEY", "sk-wrong")
                yield Server(f"http://127.0.0.1:{port}", folder)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


def wait(process: subprocess.Popen[bytes], url: str, log: Path, *, timeout_s: float = 400.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"the server did not start in {timeout_s:.0f} s: {log.read_text(errors='replace')[-3000:]}")
