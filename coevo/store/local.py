"""A folder as an object store: what S3 promises, on one machine's file system.

A put writes a temporary file and hard-links it to its key: the link appears whole or not at all, and fails when the key exists, so
`put_if_absent` has exactly one winner among threads and processes. Replacement and deletion hold an advisory lock of the key.
Limits: POSIX only; needs hard links; not for network file systems whose locks lie; a key can't also be the folder of another key;
`head` and `list` read the objects, because the ETag is the hash of the content.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from coevo.errors import ConfigError, StoreError
from coevo.identity import content_hash
from coevo.ports import BlobInfo, PutResult
from coevo.store.keys import INTERNAL_PART, check_key, check_prefix

__all__ = ["LocalSource", "LocalStore"]

_LOCK_STRIPES = 64
_LINK_TRIES = 20  # a concurrent delete may prune the folder between mkdir and link


@dataclass(frozen=True, slots=True)
class LocalSource:
    """Picklable recipe of a `LocalStore`: crosses Ray; `open()` runs in the worker.

    Attributes:
        path: Folder; created on first use. Relative paths are resolved where the source is made, not where it is opened.
        fsync: Flush each object to the disk before it appears. Off by default: a killed process loses nothing without it, only a
            power failure does.
    """

    path: str
    fsync: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", os.path.abspath(os.path.expanduser(self.path)))

    @classmethod
    def parse(cls, uri: str) -> LocalSource:
        """From a plain path or a `file://` URI.

        Raises:
            ConfigError: The URI names another machine or no path.
        """
        if "://" not in uri:
            return cls(uri)
        parts = urlsplit(uri)
        if parts.netloc not in {"", "localhost"} or not parts.path:
            raise ConfigError(
                "a file URI must name a folder of this machine", seen=uri, fix="write file:///absolute/folder or a plain path"
            )
        return cls(unquote(parts.path))

    @property
    def uri(self) -> str:
        """`file:///absolute/folder`, percent-encoded."""
        return Path(self.path).as_uri()

    def open(self) -> LocalStore:
        """Open the store, creating its folder."""
        return LocalStore(self.path, fsync=self.fsync)


class LocalStore:
    """`coevo.ports.BlobStore` over a folder. Safe to share among threads; any number of processes may open the same folder.

    Args:
        root: The folder, created when missing.
        fsync: See `LocalSource`.

    Raises:
        StoreError: The folder can't be created.
    """

    def __init__(self, root: str | Path, *, fsync: bool = False) -> None:
        self._source = LocalSource(str(root), fsync=fsync)
        self._root = Path(self._source.path)
        self._temporary = self._root / INTERNAL_PART / "tmp"
        self._locks = self._root / INTERNAL_PART / "locks"
        try:
            self._temporary.mkdir(parents=True, exist_ok=True)
            self._locks.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError("the store's folder can't be made", seen=str(error), fix="name a folder that you may write to") from error

    @property
    def uri(self) -> str:
        """`file:///absolute/folder`."""
        return self._source.uri

    def get(self, key: str) -> bytes:
        """The object's bytes. Raises `StoreError` for a missing key."""
        data = self._read(key)
        if data is None:
            raise StoreError(
                "no such object", seen=f"{key} in {self.uri}", fix="list the folder above it, or re-run the stage that writes it"
            )
        return data

    def head(self, key: str) -> BlobInfo | None:
        """Size, ETag and age, or None for a missing key."""
        data = self._read(key)
        if data is None:
            return None
        try:
            return BlobInfo(key, len(data), content_hash(data), float(int(self._path(key).stat().st_mtime)))
        except FileNotFoundError:
            return None

    def put_if_absent(self, key: str, data: bytes) -> PutResult:
        """Commit `data` under `key` unless something is there: one winner, SAME for equal bytes, CONFLICT changes nothing."""
        path = self._path(key)
        if self._link(path, data):
            return PutResult.WRITTEN
        return PutResult.SAME if self._read(key) == data else PutResult.CONFLICT

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> str | None:
        """Create (`etag` None) or replace exactly that version; the new ETag, or None when another writer was first."""
        path = self._path(key)
        if etag is None:
            return content_hash(data) if self._link(path, data) else None
        with self._locked(key):
            current = self._read(key)
            if current is None or content_hash(current) != etag:
                return None
            with self._temporary_file(data) as temporary:
                os.replace(temporary, path)
        return content_hash(data)

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """Objects whose key starts with the string `prefix`, sorted by the key's bytes; objects deleted meanwhile are left out."""
        folder = self._root / check_prefix(prefix).rpartition("/")[0]
        keys = sorted((key for key in self._walk(folder) if key.startswith(prefix)), key=str.encode)
        return (info for key in keys if (info := self.head(key)) is not None)

    def delete(self, key: str) -> None:
        """Remove the object; a missing key is no error. Folders that became empty go too."""
        path = self._path(key)
        with self._locked(key), suppress(FileNotFoundError, NotADirectoryError):
            if not path.is_dir():
                path.unlink()
        for parent in path.parents:
            if parent == self._root:
                break
            try:
                parent.rmdir()
            except OSError:
                break

    def leftovers(self, *, older_than_s: float) -> Sequence[str]:
        """Temporary files that killed writers left, if older than `older_than_s` seconds."""
        limit, found = time.time() - older_than_s, []
        for entry in os.scandir(self._temporary):
            with suppress(FileNotFoundError):
                if entry.stat().st_mtime <= limit:
                    found.append(entry.path)
        return found

    def sweep(self, *, older_than_s: float = 86_400.0) -> int:
        """Remove the `leftovers`; the number removed."""
        found = self.leftovers(older_than_s=older_than_s)
        for path in found:
            Path(path).unlink(missing_ok=True)
        return len(found)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _read(self, key: str) -> bytes | None:
        try:
            return self._path(key).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    def _walk(self, folder: Path) -> Iterator[str]:
        pending, cut = [str(folder)], len(str(self._root)) + 1
        while pending:
            try:
                entries = list(os.scandir(pending.pop()))
            except (FileNotFoundError, NotADirectoryError):
                continue
            for entry in entries:
                relative = entry.path[cut:]
                if entry.is_dir(follow_symlinks=False):
                    if relative != INTERNAL_PART:
                        pending.append(entry.path)
                else:
                    yield relative

    def _link(self, path: Path, data: bytes) -> bool:
        if path.exists() and not path.is_dir():
            return False
        with self._temporary_file(data) as temporary:
            for _ in range(_LINK_TRIES):
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    os.link(temporary, path)
                    return True
                except (FileNotFoundError, FileExistsError, NotADirectoryError):
                    if path.is_file():
                        return False
                    self._refuse_nested(path)
                except OSError as error:
                    fix = "put the store on a local file system that has hard links"
                    raise StoreError("the object could not be committed", seen=str(error), fix=fix) from error
        raise StoreError("the object's folder keeps vanishing", seen=str(path), fix="stop the other process that deletes it")

    def _refuse_nested(self, path: Path) -> None:
        inside = path.parents[: len(path.parts) - len(self._root.parts) - 1]
        if path.is_dir() or any(parent.is_file() for parent in inside):
            key = path.relative_to(self._root).as_posix()
            raise StoreError("a key can't also be the folder of another key", seen=key, fix="give the object a name of its own")

    @contextmanager
    def _temporary_file(self, data: bytes) -> Iterator[Path]:
        path = self._temporary / uuid.uuid4().hex
        try:
            with path.open("xb") as file:
                file.write(data)
                if self._source.fsync:
                    file.flush()
                    os.fsync(file.fileno())
            yield path
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError("the object could not be written", seen=str(error), fix="free space or rights on the store's disk") from error
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        stripe = int(content_hash(key.encode())[:8], 16) % _LOCK_STRIPES
        with (self._locks / f"{stripe:02d}").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
