"""Components that a session had to switch off: what a harness's own code cost its episodes, held against it in the race.

An episode can succeed although a hook crashed in it, because a session goes on without the hook. Such a harness is not what was proposed,
and would fail elsewhere, so an edit is not credited with the share of its episodes in which something was off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from coevo.records import Episode

__all__ = ["faults_by_component", "faulty_episodes"]


def faults_by_component(episodes: Iterable[Episode]) -> dict[str, int]:
    """Component -> episodes in which it was switched off, most first."""
    counts = Counter(name for episode in episodes for name in _off(episode))
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def faulty_episodes(episodes: Iterable[Episode]) -> int:
    """Episodes in which at least one component was switched off."""
    return sum(bool(_off(episode)) for episode in episodes)


def _off(episode: Episode) -> set[str]:
    return {firing.component for turn in episode.turns for firing in turn.firings if firing.effect == "disabled"}
