"""Promises: every check tells a good place from a bad one, says what it saw, and says what to do about it.

The good side runs on this installation; the bad side on made-up places.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from coevo.config import RunConfig, parse_config
from coevo.errors import StoreError
from coevo.identity import content_hash
from coevo.ports import BlobInfo, PutResult
from coevo.store.artifacts import StageWriter
from coevo.store.local import LocalStore
from jobs.checks import (
    Check,
    Outcome,
    check_owner,
    check_packages,
    check_python,
    check_record,
    check_sandbox,
    check_space,
    check_weights,
)
from jobs.checks_remote import check_expert_key, check_run, check_store


def bad(check: Check, said: str, outcome: Outcome = Outcome.FAIL) -> None:
    """The check failed, says what it saw, and says what to do."""
    assert check.outcome is outcome, check.line
    assert said in check.seen
    assert check.fix
    assert check.fix in check.line


class Lossy:
    """A store that lets the second writer win: what an old S3 clone does with If-None-Match."""

    uri = "test://lossy"

    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken
        self.held: dict[str, bytes] = {}

    def get(self, key: str) -> bytes:
        return self.held[key]

    def head(self, key: str) -> BlobInfo | None:
        return None

    def put_if_absent(self, key: str, data: bytes) -> PutResult:
        if self.broken:
            raise StoreError("the object could not be written", seen="read-only", fix="free space or rights on the store's disk")
        self.held[key] = data
        return PutResult.WRITTEN

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> str | None:
        return None

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        return iter(())

    def delete(self, key: str) -> None:
        self.held.pop(key, None)


def test_python() -> None:
    assert check_python((3, 11, 9)).outcome is Outcome.OK
    bad(check_python((3, 12, 1)), "3.12.1")


def test_packages_against_a_lock(tmp_path: Path) -> None:
    """R15: markers respected, the installer's own choices left to its record."""
    lock = tmp_path / "cpu.lock"
    lock.write_text('# comment ==x\npydantic==2.0\nother==1 ; sys_platform == "beos"\ntorch==9+cpu\n')
    assert check_packages(lock, {"pydantic": "2.0"}.get).outcome is Outcome.OK
    bad(check_packages(lock, {"pydantic": "2.1"}.get), "pydantic 2.1, locked 2.0")
    bad(check_packages(lock, {}.get), "pydantic missing")
    assert check_packages(tmp_path / "none.lock", {}.get).outcome is Outcome.SKIP


@pytest.mark.parametrize("package", ["cluster", "jobs"])
def test_a_namesake_is_told_from_ours(tmp_path: Path, package: str) -> None:
    """`cluster` and `jobs` are common names: the foreign path is named, with the way out."""
    assert check_owner(package).outcome is Outcome.OK
    foreign = tmp_path / package
    foreign.mkdir()
    bad(check_owner(package, path=[str(tmp_path)]), str(foreign))
    (foreign / "__init__.py").write_text("")
    bad(check_owner(package, path=[str(tmp_path)]), str(foreign / "__init__.py"))
    bad(check_owner(package, path=[str(tmp_path / "nowhere")]), "not found")


def test_install_record(tmp_path: Path) -> None:
    record = tmp_path / "coevo-install.json"
    bad(check_record(record), "no install record", Outcome.WARN)
    record.write_text(json.dumps({"engine": "transformers", "reason": "no wheel here", "torch": "2.13.0"}))
    assert check_record(record).seen == "engine transformers (no wheel here), torch 2.13.0"
    for text in ("{", "[]", "{}"):
        record.write_text(text)
        bad(check_record(record), "damaged")


def test_store(tmp_path: Path) -> None:
    """A store whose conditional put is not conditional fails, and the check leaves nothing behind."""
    store = LocalStore(tmp_path)
    assert check_store(store).outcome is Outcome.OK
    assert list(store.list("")) == []
    lossy = Lossy()
    bad(check_store(lossy), "written, written, written")
    assert lossy.held == {}
    bad(check_store(Lossy(broken=True)), "read-only")


def test_a_run_with_a_hole_is_seen(tmp_path: Path) -> None:
    """I5: the doctor reads back what manifests name."""
    store = LocalStore(tmp_path)
    assert check_run(store, "r").outcome is Outcome.SKIP
    store.put_if_absent("r/config.json", b"{}")
    one = StageWriter.begin(store, run="r", stage="evolve", inputs={}, expected=0, code_version="1")
    output = one.write_bytes("search.json", b"{}")
    one.commit()
    assert check_run(store, "r").outcome is Outcome.OK
    store.delete(output.key)
    bad(check_run(store, "r"), f"missing {one.key.manifest}: {output.key}", Outcome.WARN)


class Forgetful(LocalStore):
    """A store that takes any ETag for the current one."""

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> str | None:
        held = self.head(key)
        return super().put_if_match(key, data, etag=held.etag if held is not None and etag is not None else etag)


def test_a_store_that_ignores_if_match_is_seen(tmp_path: Path) -> None:
    store = Forgetful(tmp_path)
    bad(check_store(store), "If-Match is not honoured")
    assert list(store.list("")) == []


def test_expert_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I11: the key is looked for and not shown."""

    def config(**expert: object) -> RunConfig:
        return parse_config({"name": "x", "expert": {"kind": "openai", "base_url": "http://h/v1", "model": "m", **expert}})

    assert check_expert_key(RunConfig(name="x")).outcome is Outcome.SKIP
    monkeypatch.delenv("SOME_KEY", raising=False)
    bad(check_expert_key(config(api_key_env="SOME_KEY")), "SOME_KEY: missing")
    monkeypatch.setenv("SOME_KEY", "sk-hidden")
    check = check_expert_key(config(api_key_env="SOME_KEY"))
    assert check.outcome is Outcome.OK
    assert "sk-hidden" not in check.line
    bad(check_expert_key(config(api_key_file=str(tmp_path / "key"))), "missing")
    (tmp_path / "key").write_text("sk-hidden")
    assert check_expert_key(config(api_key_file=str(tmp_path / "key"))).outcome is Outcome.OK


def test_space(tmp_path: Path) -> None:
    missing = str(tmp_path / "not" / "made" / "yet")
    assert check_space(missing, disk_bytes=1, memory_bytes=1).outcome is Outcome.OK
    bad(check_space(missing, disk_bytes=1 << 60, memory_bytes=1), "free on disk", Outcome.WARN)
    bad(check_space(missing, disk_bytes=1, memory_bytes=1 << 60), "of memory", Outcome.WARN)


def test_sandbox() -> None:
    """I9: the check runs code and sees that it reaches no file."""
    assert check_sandbox().outcome is Outcome.OK


def test_weights(tmp_path: Path) -> None:
    bad(check_weights(tmp_path), "missing")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    bad(check_weights(tmp_path), "pretrain.json", Outcome.WARN)
    (tmp_path / "pretrain.json").write_text(json.dumps({"weights_sha256": content_hash(b"weights")}))
    assert check_weights(tmp_path).outcome is Outcome.OK
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    bad(check_weights(tmp_path), "recorded")
