"""Which weights an id stands for: ids are immutable, so weights are claimed once and compared ever after (R7)."""

from __future__ import annotations

import hashlib
from pathlib import Path

from coevo.errors import ConfigError, ModelError, StoreError

__all__ = ["KnownWeights", "weights_fingerprint"]

_FULL_HASH_BYTES = 1 << 30
_SAMPLE_BYTES = 1 << 20


def weights_fingerprint(folder: str) -> str:
    """64 hex digits over the safetensors files of a folder.

    Up to 1 GiB the whole content counts; above it the names, the sizes and the first and last MiB of each file (the first holds the
    tensor index), which tells apart everything but two fine-tunings that agree in all of those.

    Raises:
        ConfigError: No safetensors file there.
    """
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise ConfigError("no safetensors weights in this folder", seen=folder, fix="give the folder of a saved model or adapter")
    digest = hashlib.sha256()
    whole = sum(path.stat().st_size for path in files) <= _FULL_HASH_BYTES
    for path in files:
        digest.update(f"{path.name}:{path.stat().st_size}\n".encode())
        with path.open("rb") as stream:
            if whole:
                while block := stream.read(_SAMPLE_BYTES):
                    digest.update(block)
            else:
                digest.update(stream.read(_SAMPLE_BYTES))
                stream.seek(-_SAMPLE_BYTES, 2)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


class KnownWeights:
    """Model ids this process has served, and the fingerprint each is bound to for good."""

    def __init__(self) -> None:
        self._by_id: dict[str, str] = {}

    def claim(self, model_id: str, folder: str) -> None:
        """Bind an id to a folder's weights; binding it again to the same weights changes nothing.

        Raises:
            ConfigError: Empty id, or no weights in the folder.
            StoreError: The id stands for other weights.
        """
        if not model_id:
            raise ConfigError("weights need a model id", seen=folder, fix="pass model_id")
        found = weights_fingerprint(folder)
        known = self._by_id.setdefault(model_id, found)
        if known != found:
            raise StoreError(
                "a model id never changes its weights", seen=f"{model_id} is {known[:12]}, {folder} holds {found[:12]}", fix="use a new id"
            )

    def refuse(self, model_id: str, served: tuple[str, ...]) -> ModelError:
        """The error for a request whose id is not served: it names both, so wrong weights never answer silently."""
        return ModelError(
            "this engine does not serve the requested model",
            seen=f"wanted {model_id}, served {', '.join(served)}",
            fix="open a pool for it",
        )
