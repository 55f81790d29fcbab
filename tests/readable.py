"""What stored objects say, compression and Parquet undone: a search for a secret in compressed bytes would find nothing ever."""

from __future__ import annotations

import io
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import zstandard

__all__ = ["readable", "readable_files"]


def readable(name: str, data: bytes) -> bytes:
    """The content of one object."""
    if name.endswith(".zst"):
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    if name.endswith(".parquet"):
        return orjson.dumps(pq.read_table(io.BytesIO(data)).to_pylist(), default=str)
    return data


def readable_files(folder: Path) -> dict[str, bytes]:
    """Content of every file below a folder, by relative path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): readable(path.name, path.read_bytes()) for path in files}
