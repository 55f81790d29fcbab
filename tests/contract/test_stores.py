"""The contract of `coevo.ports.BlobStore`; every store runs all of it.

1. `put_if_absent` has exactly one winner among 64 threads and among 8 processes, and equal bytes are SAME, never an error.
2. A reader sees all of an object or nothing, also when its writer is killed in mid-put (R11).
3. `put_if_match` replaces exactly the version it names; of racing writers one wins.
4. `list` is sorted by key bytes, takes a string prefix and shows objects only; `head` and `list` agree.
5. Any sequence of operations does what a dict would do.
6. Keys that another store could not hold are refused with a three-part error.
7. Sources are picklable and open the same store again.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from cluster.stores import open_source
from coevo.errors import ConfigError, PrerequisiteError, StoreError, StoreOutage
from coevo.ports import BlobStore, PutResult, StoreSource
from coevo.store import LocalSource, LocalStore, open_store

if TYPE_CHECKING:
    from tests.seaweed import SeaweedServer


def local(request: pytest.FixtureRequest) -> StoreSource:
    return LocalSource(str(request.getfixturevalue("tmp_path") / "store"))


def s3(request: pytest.FixtureRequest) -> StoreSource:
    source: StoreSource = request.getfixturevalue("seaweed").source(multipart_bytes=16_000_000)
    return source


STORES: Mapping[str, Callable[[pytest.FixtureRequest], StoreSource]] = {"local": local, "s3": s3}
"""Add a store here and it runs the whole suite. S3 is a real SeaweedFS server; its 32 MB objects go up in parts."""


@pytest.fixture(params=sorted(STORES))
def source(request: pytest.FixtureRequest) -> StoreSource:
    return STORES[request.param](request)


@pytest.fixture
def store(source: StoreSource) -> BlobStore:
    return source.open()


def test_protocols(source: StoreSource, store: BlobStore) -> None:
    assert isinstance(store, BlobStore)
    assert store.uri == source.uri


def test_put_get_head(store: BlobStore) -> None:
    assert store.head("a/b") is None
    with pytest.raises(StoreError, match="no such object") as caught:
        store.get("a/b")
    assert caught.value.fix
    assert store.put_if_absent("a/b", b"one") is PutResult.WRITTEN
    assert store.put_if_absent("a/b", b"one") is PutResult.SAME
    assert store.put_if_absent("a/b", b"two") is PutResult.CONFLICT
    assert store.get("a/b") == b"one"
    info = store.head("a/b")
    assert info is not None
    assert (info.key, info.size_bytes) == ("a/b", 3)
    assert store.put_if_absent("empty", b"") is PutResult.WRITTEN
    assert store.get("empty") == b""


def test_delete_frees_the_key(store: BlobStore) -> None:
    store.put_if_absent("a/b/c", b"one")
    store.delete("a/b/c")
    store.delete("a/b/c")
    store.delete("never/there")
    assert list(store.list("")) == []
    assert store.put_if_absent("a/b/c", b"two") is PutResult.WRITTEN
    assert [info.key for info in store.list("")] == ["a/b/c"]
    assert store.get("a/b/c") == b"two"


def test_put_if_match_moves_a_pointer(store: BlobStore) -> None:
    first = store.put_if_match("pointer", b"1", etag=None)
    assert first is not None
    assert store.put_if_match("pointer", b"2", etag=None) is None
    second = store.put_if_match("pointer", b"2", etag=first)
    assert second is not None
    assert second != first
    assert store.put_if_match("pointer", b"3", etag=first) is None
    assert store.get("pointer") == b"2"
    info = store.head("pointer")
    assert info is not None
    assert info.etag == second
    assert store.put_if_match("missing", b"1", etag=first) is None
    assert store.head("missing") is None


def test_list_is_sorted_and_takes_a_string_prefix(store: BlobStore) -> None:
    keys = ["b/2", "a", "b-x", "b/1/z", "b/10", "bb", "ä", "Z"]
    for key in keys:
        store.put_if_absent(key, key.encode())
    assert [info.key for info in store.list("")] == sorted(keys, key=str.encode)
    assert [info.key for info in store.list("b/1")] == ["b/1/z", "b/10"]
    assert [info.key for info in store.list("b/")] == ["b/1/z", "b/10", "b/2"]
    assert [info.key for info in store.list("b")] == ["b-x", "b/1/z", "b/10", "b/2", "bb"]
    assert list(store.list("nothing/here")) == []
    assert all(info == store.head(info.key) for info in store.list(""))


def test_one_of_64_threads_wins(store: BlobStore) -> None:
    """R9, I4: the only commit primitive has one winner."""
    barrier = Barrier(64)

    def put(number: int) -> list[PutResult]:
        barrier.wait(60)
        return [store.put_if_absent(f"race/{key}", f"{number}".encode()) for key in range(3)]

    with ThreadPoolExecutor(64) as pool:
        results = list(pool.map(put, range(64)))
    for key in range(3):
        outcomes = [row[key] for row in results]
        assert outcomes.count(PutResult.WRITTEN) == 1
        assert outcomes.count(PutResult.CONFLICT) == 63
        assert int(store.get(f"race/{key}")) == outcomes.index(PutResult.WRITTEN)


def test_one_of_64_threads_moves_the_pointer(store: BlobStore) -> None:
    etag = store.put_if_match("pointer", b"start", etag=None)
    barrier = Barrier(64)

    def move(number: int) -> str | None:
        barrier.wait(60)
        return store.put_if_match("pointer", f"{number}".encode(), etag=etag)

    with ThreadPoolExecutor(64) as pool:
        results = list(pool.map(move, range(64)))
    winners = [number for number, result in enumerate(results) if result is not None]
    assert len(winners) == 1
    assert int(store.get("pointer")) == winners[0]


RACER = """
import pickle, sys
store = pickle.loads(bytes.fromhex(sys.argv[1])).open()
print("ready", flush=True)
sys.stdin.readline()
for key in range(20):
    print(store.put_if_absent(f"race/{key}", sys.argv[2].encode() * 1000), flush=True)
"""


def _python(code: str, source: StoreSource, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, pickle.dumps(source).hex(), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_one_of_8_processes_wins(source: StoreSource, store: BlobStore) -> None:
    """R9, I4: also among processes."""
    processes = [_python(RACER, source, str(number)) for number in range(8)]
    try:
        assert [_line(process) for process in processes] == ["ready"] * 8
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        results = [process.communicate(timeout=240)[0].split() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for key in range(20):
        outcomes = [row[key] for row in results]
        assert (outcomes.count("written"), outcomes.count("conflict")) == (1, 7)
        assert store.get(f"race/{key}") == str(outcomes.index("written")).encode() * 1000


WRITER = """
import pickle, sys
store = pickle.loads(bytes.fromhex(sys.argv[1])).open()
data = sys.argv[2].encode() * 32_000_000
print("ready", flush=True)
for number in range(1000):
    store.put_if_absent(f"torn/{sys.argv[2]}/{number}", data)
    store.delete(f"torn/{sys.argv[2]}/{number - 1}")
"""


def test_a_killed_writer_leaves_nothing_half(source: StoreSource, store: BlobStore) -> None:
    """R11: kill a writer at different points of 32 MB puts; what is visible is whole, and its key can be written again."""
    for tag, delay_s in zip("abcd", (0.0, 0.007, 0.023, 0.06), strict=True):
        process = _python(WRITER, source, tag)
        try:
            assert _line(process) == "ready"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=max(delay_s, 0.001))
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate(timeout=60)
    seen = list(store.list("torn/"))
    assert [info for info in seen if info.size_bytes != 32_000_000] == []
    for tag in "abcd":
        numbers = [int(info.key.rpartition("/")[2]) for info in seen if info.key.startswith(f"torn/{tag}/")]
        key = f"torn/{tag}/{max(numbers, default=-1) + 1}"
        assert store.put_if_absent(key, b"mine") is PutResult.WRITTEN


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "a\x00b", "a\nb", "\ud800", "x" * 256, "/".join(["x" * 200] * 6)]
)
def test_illegal_keys_are_refused(store: BlobStore, key: str) -> None:
    for call in (
        store.get,
        store.head,
        store.delete,
        lambda k: store.put_if_absent(k, b""),
        lambda k: store.put_if_match(k, b"", etag=None),
    ):
        with pytest.raises(StoreError, match="not a legal key") as caught:
            call(key)
        assert caught.value.seen is not None
        assert "relative name" in caught.value.fix
    assert list(store.list("")) == []


def test_illegal_prefixes_are_refused_at_the_call(store: BlobStore) -> None:
    for prefix in ("/", "/a", "../a", "a//"):
        with pytest.raises(StoreError, match="not a legal key"):
            store.list(prefix)


def test_sources_are_picklable(source: StoreSource, store: BlobStore) -> None:
    store.put_if_absent("a", b"1")
    again = pickle.loads(pickle.dumps(source))
    assert again == source
    assert again.open().get("a") == b"1"


class StoreMachine(RuleBasedStateMachine):
    """A store next to a dict: flat keys, so that no key is another's folder."""

    factory: Callable[[], BlobStore]
    keys = st.sampled_from(["a", "b", "folder/a", "folder/b", "folder/deep/a", "folder-a"])
    values = st.binary(max_size=40)

    @initialize()
    def empty(self) -> None:
        self.store, self.model = self.factory(), {}
        self.etags: dict[str, set[str]] = {}

    @rule(key=keys, data=values)
    def put_if_absent(self, key: str, data: bytes) -> None:
        want = PutResult.WRITTEN if key not in self.model else PutResult.SAME if self.model[key] == data else PutResult.CONFLICT
        assert self.store.put_if_absent(key, data) is want
        self.model.setdefault(key, data)

    @rule(key=keys, data=values, stale=st.booleans())
    def put_if_match(self, key: str, data: bytes, stale: bool) -> None:
        info = self.store.head(key)
        etag = None if info is None else info.etag
        if stale:
            assert self.store.put_if_match(key, data, etag="no-such-version") is None
            return
        assert self.store.put_if_match(key, data, etag=etag) is not None
        self.model[key] = data

    @rule(key=keys)
    def delete(self, key: str) -> None:
        self.store.delete(key)
        self.model.pop(key, None)

    @rule(key=keys)
    def read(self, key: str) -> None:
        info = self.store.head(key)
        assert (None if info is None else info.size_bytes) == (len(self.model[key]) if key in self.model else None)
        if key in self.model:
            assert self.store.get(key) == self.model[key]

    @rule(prefix=st.sampled_from(["", "a", "folder", "folder/", "folder/deep/", "none"]))
    def list_prefix(self, prefix: str) -> None:
        want = sorted(key for key in self.model if key.startswith(prefix))
        assert [info.key for info in self.store.list(prefix)] == want


def test_any_sequence_equals_a_dict(source: StoreSource, store: BlobStore) -> None:
    def emptied() -> BlobStore:
        for info in list(store.list("")):
            store.delete(info.key)
        return store

    machine: Any = type("Machine", (StoreMachine,), {"factory": staticmethod(emptied)})
    checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    limits = settings(max_examples=40, stateful_step_count=30, deadline=None, derandomize=True, database=None, suppress_health_check=checks)
    run_state_machine_as_test(machine, settings=limits)


# What follows is the S3 store's own.


def test_large_objects_race_too(seaweed: SeaweedServer) -> None:
    """R9: a body of several of the server's chunks."""
    store = seaweed.source().open()
    datas = [bytes([number]) * 9_000_000 for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda data: store.put_if_absent("large", data), datas))
    assert (results.count(PutResult.WRITTEN), results.count(PutResult.CONFLICT)) == (1, 5)
    assert store.get("large") == datas[results.index(PutResult.WRITTEN)]


def test_uploads_in_parts_carry_the_condition(seaweed: SeaweedServer) -> None:
    """R11: one after the other; in a race this server has no lock, so by default it gets no parts (`S3Source.whole_bytes`)."""
    source = seaweed.source(multipart_bytes=6_000_000)
    store, one, two = source.open(), b"1" * 17_000_000, b"2" * 17_000_000
    assert seaweed.source().whole_bytes == 5 << 30
    assert replace(source, endpoint="", multipart_bytes=0).whole_bytes == 64 << 20
    assert [store.put_if_absent("large", data) for data in (one, one, two)] == [PutResult.WRITTEN, PutResult.SAME, PutResult.CONFLICT]
    info = store.head("large")
    assert info is not None
    assert store.put_if_match("large", two, etag="stale") is None
    assert store.put_if_match("large", two, etag=info.etag) is not None
    assert store.get("large") == two
    assert store.leftovers(older_than_s=-10) == []


def test_a_killed_upload_is_swept(seaweed: SeaweedServer) -> None:
    """R11: a writer that dies between its parts leaves no object, and what it leaves can be found and removed."""
    import boto3

    source = seaweed.source()
    store = source.open()
    client = boto3.client("s3", endpoint_url=seaweed.endpoint, region_name="us-east-1")
    upload = client.create_multipart_upload(Bucket=source.bucket, Key=f"{source.prefix}/torn")["UploadId"]
    client.upload_part(Bucket=source.bucket, Key=f"{source.prefix}/torn", UploadId=upload, PartNumber=1, Body=b"x" * 100)
    assert list(store.list("")) == []
    assert store.sweep(older_than_s=3600) == 0
    assert [place.partition("?")[0] for place in store.leftovers(older_than_s=-10)] == [f"{source.prefix}/torn"]
    assert store.sweep(older_than_s=-10) == 1
    assert store.leftovers(older_than_s=-10) == []


def test_listing_turns_pages(seaweed: SeaweedServer) -> None:
    store = seaweed.source().open()
    keys = [f"page/{number:04d}" for number in range(1100)]
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda key: store.put_if_absent(key, b"x"), keys))
    assert [info.key for info in store.list("page/")] == keys


def test_pyarrow_sees_the_same_objects_and_travels_without_keys(seaweed: SeaweedServer) -> None:
    """I11: a pickled file system holds no secret."""
    from tests.seaweed import KEYS

    source = seaweed.source()
    source.open().put_if_absent("folder/a", b"1")
    pickled = pickle.dumps(source.filesystem())
    for secret in (KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"]):
        assert secret.encode() not in pickled + pickle.dumps(source)
    filesystem = pickle.loads(pickled)
    with filesystem.open_input_file(source.path("folder/a")) as file:
        assert file.read() == b"1"
    with filesystem.open_output_stream(source.path("folder/b")) as file:
        file.write(b"2")
    assert source.open().get("folder/b") == b"2"
    filesystem.create_dir(source.path("folder/empty"))
    assert [info.key for info in source.open().list("folder")] == ["folder/a", "folder/b"]


def test_refusals_say_what_to_mend(seaweed: SeaweedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing bucket, wrong keys, no server: what happened, where, what to do; only the last is an outage."""
    source = seaweed.source(attempts=2)
    with pytest.raises(StoreError, match="bucket does not exist") as missing:
        list(replace(source, bucket="no-such-bucket").open().list(""))
    assert "no-such-bucket" in str(missing.value.seen)
    with pytest.raises(StoreOutage, match="does not answer") as gone:
        replace(source, endpoint="http://127.0.0.1:9").open().put_if_absent("a", b"1")
    assert gone.value.exit_code == 3
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match="refuses these credentials") as refused:
        replace(source, pool=3).open().put_if_absent("a", b"1")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(PrerequisiteError, match="no credentials") as absent:
        replace(source, pool=4).open().get("a")
    for caught in (missing, refused):
        assert not isinstance(caught.value, StoreOutage)
    for error in (missing.value, gone.value, refused.value, absent.value):
        assert error.fix
        assert "wrong" not in str(error)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://",
        "s3:///prefix",
        "s3://UPPER/x",
        "s3://key:secret@bucket/x",
        "s3://bucket/../x",
        "s3://bucket?end=http://h:1",
        "s3://bucket?endpoint=ftp://h",
        "s3://bucket?endpoint=http://k:s@h:1",
        "s3://bucket?pool=many",
        "s3://bucket?pool=0",
        "s3://bucket?region=a&region=b",
    ],
)
def test_bad_bucket_uris_are_config_errors(uri: str) -> None:
    """I11: keys in a URI are refused without being repeated."""
    with pytest.raises(ConfigError) as caught:
        open_source(uri)
    assert caught.value.fix
    assert "secret" not in str(caught.value)


def test_bucket_uris_round_trip() -> None:
    for uri in ("s3://bucket", "s3://bucket/a%20b/c", "s3://bucket/p?endpoint=http://127.0.0.1:8333&pool=8&region=eu-west-1"):
        source = open_source(uri)
        assert source.uri == uri
        assert open_source(source.uri) == source


# What follows is the local store's own.


def test_a_key_cannot_be_a_folder_of_another(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("a/b", b"1")
    for key in ("a", "a/b/c", "a/b/c/d"):
        with pytest.raises(StoreError, match="folder of another key"):
            store.put_if_absent(key, b"2")
        assert store.head(key) is None


def test_an_emptied_folder_frees_its_name(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("a/b/c", b"1")
    store.delete("a/b/c")
    assert store.put_if_absent("a/b", b"2") is PutResult.WRITTEN


def test_internal_files_stay_out_of_sight_and_can_be_swept(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("a", b"1")
    leftover = tmp_path / ".coevo-store" / "tmp" / "left-by-a-killed-writer"
    leftover.write_bytes(b"half")
    assert [info.key for info in store.list("")] == ["a"]
    with pytest.raises(StoreError, match="belongs to the store"):
        store.get(".coevo-store/tmp/left-by-a-killed-writer")
    assert store.sweep(older_than_s=3600) == 0
    assert store.sweep(older_than_s=-1) == 1
    assert not leftover.exists()


def test_fsync_store_works_alike(tmp_path: Path) -> None:
    store = LocalSource(str(tmp_path), fsync=True).open()
    assert store.put_if_absent("a", b"1") is PutResult.WRITTEN
    assert store.get("a") == b"1"


def test_open_store_by_uri(tmp_path: Path) -> None:
    plain, uri = open_store(str(tmp_path / "with space")), (tmp_path / "with space").as_uri()
    assert plain == open_store(uri)
    assert plain.uri == uri
    other = LocalSource("other")
    assert open_store("s3://bucket/prefix", openers={"s3": lambda uri: other}) is other


@pytest.mark.parametrize("uri", ["", "s3://bucket", "flie:///x", "file://elsewhere/x"])
def test_unknown_uris_are_config_errors(uri: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(uri)
    assert caught.value.fix


def test_a_folder_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="can't be made"):
        LocalStore(tmp_path / "file" / "store")
