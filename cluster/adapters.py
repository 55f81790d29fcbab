"""LoRA adapters as artifacts: identity, validity, merging, transport to and from the store.

An adapter that trained badly or was saved from the wrong shards still loads and serves without complaint, so nothing is published that was
not looked at: every tensor present and finite, and the half that starts at zero no longer zero (R12).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevo.errors import ModelError, StoreError
from coevo.ports import BlobStore, PutResult

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "AdapterChecks",
    "check_adapter",
    "copy_tokenizer",
    "fetch_folder",
    "merge_adapter",
    "read_adapter",
    "store_folder",
    "tensors_hash",
    "write_adapter",
]

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
_TOKENIZER = re.compile(r"(tokenizer|special_tokens|added_tokens|vocab|merges|chat_template).*")


@dataclass(frozen=True, slots=True)
class AdapterChecks:
    """What was looked at. `values` go into the manifest.

    Attributes:
        values: Check -> passed: `has_pairs`, `shapes`, `finite`, `b_nonzero`.
        b_norm: Frobenius norm over all lora_B tensors; 0 is an adapter that does nothing.
        failures: One line per failed check, naming the tensor.
    """

    values: dict[str, bool]
    b_norm: float
    failures: tuple[str, ...]

    def require(self, where: str) -> None:
        """Raise `ModelError` unless everything passed."""
        if self.failures:
            fix = "train again; a ZeRO-3 adapter must be saved from gathered weights"
            raise ModelError("this adapter must not be published", seen=f"{where}: {'; '.join(self.failures)}", fix=fix)


def check_adapter(tensors: Mapping[str, Tensor]) -> AdapterChecks:
    """Check the tensors of `adapter_model.safetensors`."""
    import torch

    down = {name.replace("lora_A", "lora_?") for name in tensors if "lora_A" in name}
    up = {name.replace("lora_B", "lora_?") for name in tensors if "lora_B" in name}
    empty = [name for name, tensor in tensors.items() if tensor.numel() == 0]
    wild = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
    norm = math.sqrt(sum(float(tensor.double().square().sum()) for name, tensor in tensors.items() if "lora_B" in name))
    failed = {
        "has_pairs": "" if down and down == up else f"lora_A without lora_B or none at all: {sorted(down ^ up)[:3] or 'no tensors'}",
        "shapes": f"empty tensors: {empty[:3]}" if empty else "",
        "finite": f"NaN or infinite: {wild[:3]}" if wild else "",
        "b_nonzero": "" if norm > 0 else f"lora_B norm is {norm}: the adapter does nothing",
    }
    return AdapterChecks({name: not reason for name, reason in failed.items()}, norm, tuple(reason for reason in failed.values() if reason))


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """64 hex digits of SHA-256 over names, dtypes, shapes and bytes in the order of the names: independent of file layout."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(_bytes_dtype()).numpy().tobytes())
    return digest.hexdigest()


def _bytes_dtype() -> Any:
    import torch

    return torch.uint8


def write_adapter(folder: Path | str, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Path:
    """Write a PEFT folder: weights and config, nothing that names a machine."""
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    (folder / ADAPTER_CONFIG).write_text(json.dumps(dict(config), indent=1, sort_keys=True))
    return folder


def read_adapter(folder: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and config of a PEFT folder.

    Raises:
        StoreError: When a file is missing.
    """
    from safetensors.torch import load_file

    folder = Path(folder)
    for name in (ADAPTER_WEIGHTS, ADAPTER_CONFIG):
        if not (folder / name).is_file():
            raise StoreError("not an adapter folder", seen=f"{folder} lacks {name}", fix="give a PEFT folder with both files")
    return load_file(folder / ADAPTER_WEIGHTS), json.loads((folder / ADAPTER_CONFIG).read_text())


def store_folder(store: BlobStore, folder: Path | str, prefix: str) -> None:
    """Upload every file under `prefix`, each with a conditional put.

    Raises:
        StoreError: When a key holds other bytes.
    """
    folder = Path(folder)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        key = f"{prefix}/{path.relative_to(folder).as_posix()}"
        if store.put_if_absent(key, path.read_bytes()) is PutResult.CONFLICT:
            raise StoreError(
                "an immutable object exists with other bytes", seen=key, fix="use a new prefix; adapters are never overwritten"
            )


def fetch_folder(store: BlobStore, prefix: str, folder: Path | str, *, only: Collection[str] = ()) -> Path:
    """Download everything under `prefix`, or the named files, into `folder`; whole or not at all.

    Raises:
        StoreError: When nothing is there.
    """
    folder = Path(folder)
    if folder.exists():
        return folder
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}.new")
    count = 0
    for info in store.list(f"{prefix}/"):
        name = info.key[len(prefix) + 1 :]
        if only and name not in only:
            continue
        path = fresh / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(info.key))
        count += 1
    if not count:
        raise StoreError("no files under this prefix", seen=prefix, fix="publish or train it first")
    try:
        fresh.rename(folder)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not folder.exists():
            raise
    return folder


def merge_adapter(base_path: str, adapter_path: str, out: Path | str, *, dtype: str = "bfloat16") -> Path:
    """Write base + adapter as a dense Hugging Face folder and return it.

    The product is computed in fp32 and rounded once, to `dtype` (bfloat16 or float32): what a bf16 engine serves is the nearest bf16 to the
    trained weights, not a sum of roundings. The tokenizer's files are copied.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    out = Path(out)
    if (out / "config.json").exists():
        return out
    base = AutoModelForCausalLM.from_pretrained(base_path, dtype=torch.float32)
    merged = PeftModel.from_pretrained(base, adapter_path).merge_and_unload().to(getattr(torch, dtype))
    fresh = out.with_name(f"{out.name}.{os.getpid()}.new")
    merged.save_pretrained(fresh)
    copy_tokenizer(base_path, fresh)
    fresh.rename(out)
    return out


def copy_tokenizer(base_path: Path | str, folder: Path | str) -> None:
    """Copy the tokenizer's files of a model folder."""
    for path in sorted(Path(base_path).iterdir()):
        if _TOKENIZER.match(path.name) and path.is_file():
            shutil.copyfile(path, Path(folder) / path.name)
