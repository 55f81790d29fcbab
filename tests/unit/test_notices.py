"""Where a node learns that it is taken back. Promises:

1. A file per node is a notice for that node alone; its deadline counts from the file's time.
2. The watcher drains once and ends; a recommendation is acted on only where that is configured.
3. A source that fails is asked again, whatever it raises; a drain that the cluster refuses is asked for again.
4. The config names the source; a file source needs its folder.
5. Draining nodes are looked up once a second, and a head that does not answer changes nothing.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cluster.drain import DrainWatch
from cluster.notices import AwsNotice, FileNotice, KubernetesNotice, Notice, NoticeKind, WatchPlan, notice_source, watch_node
from coevo.config import SpotConfig, parse_config
from coevo.errors import ConfigError, InfraError

END = Notice(NoticeKind.TERMINATE, 99.0, "end")
RISK = Notice(NoticeKind.REBALANCE, None, "risk")


@dataclass
class Script:
    """A source that says or raises one thing after the other."""

    answers: list[Notice | Exception | None]
    asked: list[str] = field(default_factory=list)

    def read(self, node_id: str) -> Notice | None:
        self.asked.append(node_id)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def watched(script: Script, *, on_rebalance: bool = False, refuse: int = 0) -> tuple[Notice | None, list[Notice]]:
    """Watch until the script is over; what was drained."""
    drained: list[Notice] = []

    def drain(node_id: str, notice: Notice) -> None:
        assert node_id == "n1"
        drained.append(notice)
        if len(drained) <= refuse:
            raise InfraError("refused")

    plan = WatchPlan(script, period_s=7.0, on_rebalance=on_rebalance)
    found = watch_node(plan, "n1", drain=drain, stopped=lambda seconds: seconds != 7.0 or not script.answers)
    return found, drained


def test_a_file_is_one_nodes_notice(tmp_path: Path) -> None:
    """Promise 1."""
    source = FileNotice(str(tmp_path))
    assert source.read("a") is None
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"seconds": 120}))
    os.utime(path, (1000.0, 1000.0))
    assert source.read("a") == Notice(NoticeKind.TERMINATE, 1120.0, "file a.json")
    assert source.read("b") is None
    (tmp_path / "b.json").write_text("")
    assert source.read("b") == Notice(NoticeKind.TERMINATE, None, "file b.json")
    (tmp_path / "c.json").write_text('{"kind": "rebalance"}')
    assert source.read("c") == Notice(NoticeKind.REBALANCE, None, "file c.json")
    (tmp_path / "d.json").write_text("soon")
    with pytest.raises(InfraError, match="soon"):
        source.read("d")


def test_the_watcher_drains_once() -> None:
    """Promise 2."""
    script = Script([None, None, END, END])
    assert watched(script) == (END, [END])
    assert script.asked == ["n1"] * 3
    assert watched(Script([RISK, RISK])) == (None, [])
    assert watched(Script([RISK, END]), on_rebalance=True) == (RISK, [RISK])


def test_trouble_is_outlived() -> None:
    """Promise 3."""
    script = Script([InfraError("down"), ValueError("odd"), OSError("gone"), END])
    assert watched(script) == (END, [END])
    assert watched(Script([END, END, END]), refuse=2) == (END, [END] * 3)


def test_the_config_names_the_source(tmp_path: Path) -> None:
    """Promise 4."""
    assert notice_source(SpotConfig()) is None
    assert notice_source(SpotConfig(notice="aws")) == AwsNotice()
    assert notice_source(SpotConfig(notice="kubernetes")) == KubernetesNotice()
    assert notice_source(SpotConfig(notice="file", folder=str(tmp_path))) == FileNotice(str(tmp_path.resolve()))
    with pytest.raises(ConfigError, match="folder"):
        parse_config({"name": "x", "cluster": {"spot": {"notice": "file"}}})


def test_draining_nodes_are_looked_up_once_a_second() -> None:
    """Promise 5."""
    now, looks = [0.0], 0

    def look() -> list[str]:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise InfraError("the head is away")
        return ["n1"] if looks == 1 else ["n1", "n2"]

    watch = DrainWatch(look, clock=lambda: now[0])
    assert [watch.nodes() for _ in range(5)] == [frozenset({"n1"})] * 5
    assert looks == 1
    now[0] = 1.0
    assert watch.nodes() == frozenset({"n1"})
    now[0] = 2.0
    assert watch.nodes() == frozenset({"n1", "n2"})
