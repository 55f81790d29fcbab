"""Fully fine-tuned weights as artifacts: a Hugging Face folder, checked and named by what is in it.

Tensors are read one at a time, so a check needs the memory of the largest tensor and not of the model.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.adapters import AdapterChecks, copy_tokenizer
from coevo.errors import StoreError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["check_dense", "dense_hash", "recast", "write_dense"]


def write_dense(folder: Path | str, model: Any, tensors: Mapping[str, Tensor], *, base_path: str) -> Path:
    """Write `tensors` as the weights of `model` in the base's own dtype, with the base's tokenizer files.

    Args:
        folder: Created when missing.
        model: The Hugging Face model; its parameters may be sharded, only its architecture and names are used.
        tensors: Whole weights by parameter name.
        base_path: Folder of the base.
    """
    import torch

    folder = Path(folder)
    config = json.loads((Path(base_path) / "config.json").read_text())
    dtype = getattr(torch, str(config.get("dtype") or config.get("torch_dtype") or "float32"))
    state = {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}
    model.save_pretrained(folder, state_dict=state)
    written = json.loads((folder / "config.json").read_text())
    written.pop("_name_or_path", None)
    (folder / "config.json").write_text(json.dumps(written | {"dtype": str(dtype).removeprefix("torch.")}, indent=1, sort_keys=True))
    copy_tokenizer(base_path, folder)
    return folder


def dense_hash(folder: Path | str) -> str:
    """64 hex digits of SHA-256 over names, dtypes, shapes and bytes in the order of the names: independent of how files are split."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in _tensors(folder):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_dense(folder: Path | str, base_path: str) -> AdapterChecks:
    """Check trained weights against their base: the same tensors, of the same shapes, finite, and not the base's own.

    `b_norm` of the result is the Frobenius norm of the change; 0 is a training that did nothing.
    """
    import torch

    base = dict(_places(base_path))
    missing, misshapen, wild, square = set(base), [], [], 0.0
    for name, tensor in _tensors(folder):
        missing.discard(name)
        if not bool(torch.isfinite(tensor).all()):
            wild.append(name)
        if name not in base:
            misshapen.append(f"{name} is not in the base")
            continue
        old = _read(base[name], name)
        if old.shape != tensor.shape:
            misshapen.append(f"{name} {tuple(tensor.shape)} for {tuple(old.shape)}")
        else:
            square += float((tensor.double() - old.double()).square().sum())
    failed = {
        "has_weights": f"missing: {sorted(missing)[:3]}" if missing else "",
        "shapes": f"not the base's: {misshapen[:3]}" if misshapen else "",
        "finite": f"NaN or infinite: {wild[:3]}" if wild else "",
        "changed": "" if square > 0 else "the weights are the base's own",
    }
    failures = tuple(reason for reason in failed.values() if reason)
    return AdapterChecks({name: not reason for name, reason in failed.items()}, math.sqrt(square), failures)


def recast(folder: Path | str, out: Path | str, *, dtype: str) -> Path:
    """Write a dense folder again in another dtype, whole or not at all."""
    import torch
    from transformers import AutoModelForCausalLM

    out = Path(out)
    if (out / "config.json").exists():
        return out
    fresh = out.with_name(f"{out.name}.{os.getpid()}.new")
    AutoModelForCausalLM.from_pretrained(str(folder), dtype=getattr(torch, dtype)).save_pretrained(fresh)
    copy_tokenizer(folder, fresh)
    fresh.rename(out)
    return out


def _places(folder: Path | str) -> Iterator[tuple[str, Path]]:
    """Tensor names and their files."""
    from safetensors import safe_open

    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise StoreError("no weights in this folder", seen=str(folder), fix="give a Hugging Face folder with safetensors")
    for path in files:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                yield name, path


def _tensors(folder: Path | str) -> Iterator[tuple[str, Tensor]]:
    for name, path in sorted(_places(folder)):
        yield name, _read(path, name)


def _read(path: Path, name: str) -> Tensor:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        tensor: Tensor = file.get_tensor(name)
    return tensor
