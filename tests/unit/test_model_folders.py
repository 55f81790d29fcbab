"""Model folders that every node reaches. Promises:

1. A path is its own folder; a place in the store is downloaded once, whole, and found again.
2. Two places never share a copy; a place with nothing under it is an error that leaves nothing behind.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.model_folders import in_store, local_model
from coevo.errors import StoreError
from coevo.store.local import LocalSource


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalSource:
    monkeypatch.setenv("COEVO_MODEL_CACHE", str(tmp_path / "cache"))
    made = LocalSource(str(tmp_path / "store"))
    for key in ("run/a/config.json", "run/a/nested/model.safetensors", "run/ab/config.json"):
        made.open().put_if_absent(key, key.encode())
    return made


def test_places_and_paths(source: LocalSource, tmp_path: Path) -> None:
    """Promise 1."""
    assert local_model("/models/base") == "/models/base"
    place = in_store(source, "run/a")
    folder = Path(local_model(place))
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        "config.json",
        "nested/model.safetensors",
    ]
    source.open().delete("run/a/config.json")
    assert local_model(place) == str(folder)
    assert (folder / "config.json").read_text() == "run/a/config.json"


def test_places_are_apart(source: LocalSource, tmp_path: Path) -> None:
    """Promise 2."""
    assert local_model(in_store(source, "run/a")) != local_model(in_store(source, "run/ab"))
    with pytest.raises(StoreError, match="run/nothing"):
        local_model(in_store(source, "run/nothing"))
    assert len(list((tmp_path / "cache").iterdir())) == 2
