"""A run in one process for tests of jobs: the demonstrator as the weak model, the in-process executor, no cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coevo.config import RunConfig, parse_config
from coevo.display import DisplayKind, open_display
from coevo.fanout import FanoutPolicy, LocalExecutor
from coevo.mini.demonstrator import Demonstrator, Habits
from coevo.mini.harnesses import DemoHarness, hand_made
from coevo.mini.model import folder_model_id, mini_path
from coevo.ports import MapReport, Progress, Stage
from coevo.tasks import load_family
from jobs.context import RunContext

__all__ = ["ClerkSource", "LocalServing", "local_config", "opened"]

FAMILY = load_family("payroll")


class Clerk(Demonstrator):
    """The demonstrator under the embedded model's id, with a made-up likelihood: the shorter turn is the likelier."""

    model_id = folder_model_id(str(mini_path()))

    async def logprobs(self, prompt: Sequence[int], completion: Sequence[int], *, model_id: str = "") -> tuple[float, ...]:
        return tuple(-0.1 * len(completion) for _ in completion)


@dataclass(frozen=True)
class ClerkSource:
    """The weak model."""

    harness: DemoHarness
    habits: Habits = field(default_factory=Habits)
    model_id: str = Clerk.model_id

    def open(self) -> Clerk:
        return Clerk(self.harness, FAMILY, habits=self.habits, seed=7)


class _Meters:
    """Nobody listens."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given: None


class LocalServing:
    """What `jobs.serving.Serving` offers to stages that train and publish nothing.

    Attributes:
        played: (stage, items) of every fan-out.
        cut: Called with both before each; may raise.
    """

    def __init__(self, cut: Callable[[str, Sequence[str]], None] = lambda stage, items: None) -> None:
        self.weak = ClerkSource(hand_made(FAMILY))
        self.driver = self.metrics = _Meters()
        self.small = self.bulk = self
        self.played: list[tuple[str, tuple[str, ...]]] = []
        self._cut, self._executor = cut, LocalExecutor(FanoutPolicy(concurrency=8, base_s=0.0, tries=2))

    def map(self, stage: Stage, items: Sequence[str], *, on_progress: Callable[[Progress], None] | None = None) -> MapReport:
        self._cut(stage.name, items)
        self.played.append((stage.name, tuple(items)))
        return self._executor.map(stage, items, on_progress=on_progress)

    @contextmanager
    def serve(self, context: RunContext) -> Iterator[LocalServing]:
        try:
            yield self
        finally:
            self._executor.close()


def local_config(folder: Path, *, name: str = "trial", **sections: Any) -> RunConfig:
    """A run under the hand-made harness, whose tools the clerk knows."""
    harness = folder / "harness"
    if not harness.exists():
        hand_made(FAMILY).bundle.save(harness)
    evolve = {"enabled": False, "harness": str(harness)}
    return parse_config({"name": name, "store": str(folder / "store"), "evolve": evolve, **sections})


def opened(config: RunConfig, serving: LocalServing) -> AbstractContextManager[RunContext]:
    """The run, opened."""
    return RunContext.open(config, display=open_display(DisplayKind.PLAIN), serve=serving.serve)  # type: ignore[arg-type]
