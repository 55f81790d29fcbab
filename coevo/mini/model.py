"""The embedded model that ships with the package: where its folder is and what its weights are called."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from coevo.errors import PrerequisiteError
from coevo.identity import content_hash

__all__ = ["MINI_PATH", "folder_model_id", "mini_path"]

MINI_PATH = Path(__file__).resolve().parent / "weights"
"""Hugging Face folder of the embedded model."""


def mini_path() -> Path:
    """The folder. Raises `PrerequisiteError` when the package was installed without its weights."""
    if not (MINI_PATH / "model.safetensors").is_file():
        raise PrerequisiteError(
            "the embedded model's weights are missing", seen=str(MINI_PATH), fix="install the package with its data files"
        )
    return MINI_PATH


@lru_cache(maxsize=64)
def folder_model_id(path: str) -> str:
    """`<folder or mini>-<first 16 hex digits of the hash over all weight files>`: the identity of served weights.

    Raises:
        PrerequisiteError: No safetensors in the folder.
    """
    folder = Path(path)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise PrerequisiteError("the model folder has no safetensors weights", seen=path, fix="give a Hugging Face model folder")
    digest = content_hash([[file.name, content_hash(file.read_bytes())] for file in files])
    name = "mini" if folder == MINI_PATH else folder.name
    return f"{name}-{digest[:16]}"
