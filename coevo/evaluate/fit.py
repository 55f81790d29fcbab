"""How an agent plays, whatever comes out: what shows that new weights no longer fit the harness that was evolved around the old ones.

Success says whether, conduct says how: an imitating model that plans in a style it can't carry out speaks more, calls other tools, repeats
calls and does not end, often before its success falls. All of it is counted from committed episodes (I12).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from scipy.spatial.distance import jensenshannon

from coevo.identity import content_hash
from coevo.records import Conduct, Episode, Status

__all__ = ["LOOP_CALLS", "conduct", "tool_divergence"]

LOOP_CALLS = 3
"""Equal calls in one episode from which on it counts as a loop: reading something again once is often right."""


def conduct(episodes: Sequence[Episode]) -> Conduct | None:
    """How the agent of these episodes plays; None where no turn was taken."""
    turns = [turn for episode in episodes for turn in episode.turns]
    if not turns:
        return None
    calls = Counter(turn.call.name for turn in turns if turn.call is not None)
    return Conduct(
        spoken=fmean(bool(turn.say.strip()) for turn in turns),
        refused=fmean(turn.result_error or turn.call is None for turn in turns),
        looping=fmean(_loops(episode) for episode in episodes),
        unfinished=fmean(episode.status is not Status.COMPLETED for episode in episodes),
        tools={name: count / calls.total() for name, count in sorted(calls.items())},
    )


def tool_divergence(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    """Jensen-Shannon divergence of two distributions over tools, in bits: 0 for equal ones, 1 for ones without a common tool."""
    names = sorted(a.keys() | b.keys())
    if not names:
        return 0.0
    distance = jensenshannon(np.array([a.get(name, 0.0) for name in names]), np.array([b.get(name, 0.0) for name in names]), base=2)
    return float(np.nan_to_num(distance) ** 2)


def _loops(episode: Episode) -> bool:
    made = Counter(content_hash([turn.call.name, dict(turn.call.arguments)]) for turn in episode.turns if turn.call is not None)
    return max(made.values(), default=0) >= LOOP_CALLS
