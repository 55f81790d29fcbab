"""Crossover: the typed changes of one candidate made on another that solves what the first does not.

Two candidates are complementary when each solves instances, among those that both played, on which the other failed. The child carries the
second's changes since their last common ancestor, made on the first (`coevo.harness.edits`); where they touch the same component in
different ways there is no child. Only search outcomes decide (I8). Limit: changes that are good apart need not be good together, which is
what the race and the gate are for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

from coevo.errors import ConfigError
from coevo.evolve.archive import Archive, Candidate
from coevo.evolve.propose import Edit
from coevo.harness.bundle import HarnessBundle
from coevo.harness.edits import apply_changes, changes_between

__all__ = ["Complement", "complements", "crossovers"]


class Complement(NamedTuple):
    """Two candidates and what they could solve together.

    Attributes:
        first: The one that solves more; the child is its child.
        second: Whose changes are added.
        gain: Instances that `first` fails and `second` solves.
        shared: Instances that both played.
    """

    first: Candidate
    second: Candidate
    gain: int
    shared: int


def complements(archive: Archive) -> list[Complement]:
    """All complementary pairs, the most promising first; a candidate and its own ancestor are none."""
    found = [pair for one, other in combinations(archive.candidates, 2) if (pair := _pair(archive, one, other)) is not None]
    return sorted(found, key=lambda pair: -pair.gain)


def _pair(archive: Archive, one: Candidate, other: Candidate) -> Complement | None:
    shared = [key for key in one.outcomes if key in other.outcomes]
    wins = [{key for key in shared if max(candidate.outcomes[key])} for candidate in (one, other)]
    lines = [{step.harness_hash for step in archive.lineage(candidate.harness_hash)} for candidate in (one, other)]
    if other.harness_hash in lines[0] or one.harness_hash in lines[1] or not wins[0] - wins[1] or not wins[1] - wins[0]:
        return None
    if len(wins[1]) > len(wins[0]):
        return Complement(other, one, len(wins[0] - wins[1]), len(shared))
    return Complement(one, other, len(wins[1] - wins[0]), len(shared))


def crossovers(
    archive: Archive, bundles: Mapping[str, HarnessBundle], *, count: int, barred: Collection[str] = ()
) -> Iterator[tuple[HarnessBundle, Edit]]:
    """Parent and edit of at most `count` children, of the most promising pairs first.

    Args:
        archive: Candidates of one restart.
        bundles: Their harnesses by hash.
        count: At most so many.
        barred: Hashes that may be neither side nor child.
    """
    known = {*barred, *(one.harness_hash for one in archive.candidates)}
    made = 0
    for pair in complements(archive):
        if made >= count:
            return
        if pair.first.harness_hash in barred or pair.second.harness_hash in barred:
            continue
        edit = _child(archive, bundles, pair)
        if edit is not None and edit.bundle.hash not in known:
            known.add(edit.bundle.hash)
            made += 1
            yield bundles[pair.first.harness_hash], edit


def _child(archive: Archive, bundles: Mapping[str, HarnessBundle], pair: Complement) -> Edit | None:
    """The edit that makes `second`'s changes on `first`; None when they don't fit."""
    line = {step.harness_hash for step in archive.lineage(pair.first.harness_hash)}
    ancestor = next(step for step in reversed(archive.lineage(pair.second.harness_hash)) if step.harness_hash in line)
    changes = changes_between(bundles[ancestor.harness_hash], bundles[pair.second.harness_hash])
    parent = bundles[pair.first.harness_hash]
    try:
        bundle = apply_changes(parent, changes)
    except ConfigError:
        return None
    hypothesis = f"solves {pair.gain} of {pair.shared} instances more together: {pair.second.summary or 'an earlier harness'}"
    components = ", ".join(dict.fromkeys(change.component for change in changes))
    return Edit(components, "crossover", hypothesis, (), (), ("changes that help apart may disturb each other",), bundle)
