"""Promises:

1. A pace comes from the last minute, so what a resumed stage finds in the store does not count for ever.
2. Plain output is throttled, and the last snapshot of a stage is always shown.
3. Text from outside is shown as it is: markup in it does nothing.
4. Tables are complete in every display.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest

from coevo.display import Display
from coevo.display.bars import RichDisplay
from coevo.display.json_lines import JsonDisplay
from coevo.display.pace import Pace, duration, quantity
from coevo.display.plain import PlainDisplay
from coevo.ports import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_rate_forgets_what_was_found_in_the_store() -> None:
    """A thousand ids skipped in the first second must not promise a thousand a second."""
    clock = Clock()
    pace = Pace(clock)
    pace.reset()
    clock.now += 1
    first = pace.read(Progress("s", 1000, 2000))
    assert first.rate == pytest.approx(1000)
    for second in range(120):
        clock.now += 1
        late = pace.read(Progress("s", 1000 + second + 1, 2000, tokens=10 * second))
    assert late.rate == pytest.approx(1.0, rel=0.05)
    assert late.tokens_per_s == pytest.approx(10, rel=0.05)
    assert late.eta_s == pytest.approx(880, rel=0.05)


def test_a_pace_without_progress_knows_nothing() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.reset()
    assert pace.read(Progress("s", 0, 10)) == (None, None, None)
    clock.now += 5
    assert pace.read(Progress("s", 0, 10)).eta_s is None


def test_plain_lines_are_throttled_and_the_last_one_is_shown() -> None:
    clock, err = Clock(), io.StringIO()
    display = PlainDisplay(out=io.StringIO(), err=err, clock=clock)
    display.stage("rollout", 1000)
    for done in range(1, 1001):
        clock.now += 0.02
        display.progress(Progress("rollout", done, 1000, owed=done // 100, tokens=50 * done))
    lines = err.getvalue().splitlines()
    assert lines[0] == "== rollout: 1000 items"
    assert 4 <= len(lines) <= 6
    assert lines[-1].startswith("rollout  1000/1000  100 %")
    assert "owed 10 (1.0 %)" in lines[-1]
    assert "tokens 50.0k" in lines[-1]
    assert "ETA" in lines[1]
    assert "ETA" not in lines[-1]


def test_progress_of_another_stage_opens_it() -> None:
    err = io.StringIO()
    display = PlainDisplay(out=io.StringIO(), err=err)
    display.progress(Progress("train", 1, 4))
    assert "== train: 4 items" in err.getvalue()


@pytest.mark.parametrize("make", [PlainDisplay, JsonDisplay, RichDisplay])
def test_every_display_shows_all_it_is_given(make: Callable[..., Display]) -> None:
    """Also text that looks like markup, long paths, and a stage that counts nothing."""
    out, err = io.StringIO(), io.StringIO()
    display = make(out=out, err=err)
    path = "runs/" + "x" * 150 + "/report.html"
    display.start(["the plan [bold]"])
    display.stage("publish", 0)
    display.progress(Progress("publish", 0, 0))
    display.stage("evaluate", 2)
    display.progress(Progress("evaluate", 1, 2, tokens=5))
    display.progress(Progress("evaluate", 2, 2, tokens=9))
    display.note("a [red]note[/red]")
    display.table("grid [x]", ["cell", "success"], [["base/h*", "61.0 %"], ["[dim]", "7 %"]])
    display.result("run", [path])
    display.close()
    display.close()
    for text in ("grid [x]", "base/h*", "61.0 %", "[dim]", path):
        assert text in out.getvalue()
    for text in ("the plan [bold]", "evaluate", "a [red]note[/red]"):
        assert text in err.getvalue()


def test_json_events_parse() -> None:
    clock, err = Clock(), io.StringIO()
    display = JsonDisplay(out=io.StringIO(), err=err, clock=clock)
    display.stage("rollout", 3)
    for done in range(4):
        clock.now += 0.4
        display.progress(Progress("rollout", done, 3, tokens=done))
    events = [json.loads(line) for line in err.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["stage", "progress", "progress"]
    assert events[-1]["done"] == 3
    assert events[-1]["eta_s"] == 0.0


def test_quantities_and_durations() -> None:
    assert [quantity(value) for value in (0, 812, 8_100, 150_000, 1.24e6, 3e9)] == ["0", "812", "8.1k", "150k", "1.2M", "3.0G"]
    assert [duration(value) for value in (0.4, 59.4, 60, 187, 7500)] == ["0s", "59s", "1m00s", "3m07s", "2h05m"]
