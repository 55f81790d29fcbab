"""Proposals as stored: every candidate's lineage, what it was for, what refused it, and the work that an LLM did to write it.

One `ProposalRecord` per call of a proposer, keyed by what decides the call. Candidates are kept as typed changes of their parent
(`coevo.harness.edits`), so a record is small and readable, and the child is rebuilt and checked against its hash when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from coevo.errors import ConfigError, StoreError, nearest
from coevo.evolve.propose import Edit, Evidence
from coevo.harness.bundle import HarnessBundle
from coevo.harness.edits import Change, apply_changes
from coevo.identity import content_hash, short
from coevo.ports import BlobStore, PutResult
from coevo.records import Episode, Record, UsageRecord

__all__ = ["EditRecord", "Line", "ProposalLog", "ProposalRecord", "lineage_of", "proposal_key"]


class EditRecord(BaseModel):
    """One edit as stored; fields as in `coevo.evolve.propose.Edit`.

    Attributes:
        harness_hash: Of the child.
        changes: From parent to child.
        refused: Why it went no further than the proposer; empty when it was handed on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    harness_hash: str
    component: str
    mechanism: str
    hypothesis: str
    evidence: tuple[tuple[str, int], ...]
    predicted_fixes: tuple[str, ...]
    predicted_risks: tuple[str, ...]
    predicted_regressions: tuple[str, ...] = ()
    changes: tuple[Change, ...]
    refused: str = ""

    @classmethod
    def of(cls, edit: Edit, parent: HarnessBundle, *, refused: str = "") -> Self:
        """The record of an edit of `parent`."""
        return cls(
            harness_hash=edit.bundle.hash,
            component=edit.component,
            mechanism=edit.mechanism,
            hypothesis=edit.hypothesis,
            evidence=edit.evidence,
            predicted_fixes=edit.predicted_fixes,
            predicted_risks=edit.predicted_risks,
            predicted_regressions=edit.predicted_regressions,
            changes=edit.changes(parent),
            refused=refused,
        )

    def edit(self, parent: HarnessBundle) -> Edit:
        """The edit, its child rebuilt from `parent`.

        Raises:
            ConfigError: The changes don't fit this parent.
            StoreError: They lead to another harness than the recorded one.
        """
        bundle = apply_changes(parent, self.changes)
        if bundle.hash != self.harness_hash:
            seen = f"{short(bundle.hash)} instead of {short(self.harness_hash)}"
            raise StoreError("a stored edit leads to another harness", seen=seen, fix="the record or its parent was changed by hand")
        return Edit(
            self.component,
            self.mechanism,
            self.hypothesis,
            self.evidence,
            self.predicted_fixes,
            self.predicted_risks,
            bundle,
            self.predicted_regressions,
        )


class ProposalRecord(Record):
    """One call of a proposer.

    Attributes:
        key: See `proposal_key`.
        proposer: Its name.
        parent: Hash of the edited harness.
        edits: What it proposed, in order.
        episodes: The episodes in which an LLM wrote them; empty for proposers without a model.
    """

    key: str
    proposer: str
    parent: str
    edits: tuple[EditRecord, ...]
    episodes: tuple[Episode, ...] = ()

    @property
    def usage(self) -> UsageRecord:
        """Tokens of the LLM's episodes."""
        prompts = sum(one.usage.prompt_tokens for one in self.episodes)
        cached = sum(one.usage.cached_tokens for one in self.episodes)
        return UsageRecord(
            prompt_tokens=prompts, cached_tokens=cached, completion_tokens=sum(one.usage.completion_tokens for one in self.episodes)
        )


def proposal_key(proposer: str, parent: HarnessBundle, evidence: Evidence, seed: int) -> str:
    """64 hex digits of what decides a call: who, the harness, the episodes read, the edits known, and the seed."""
    past = [(one.component, one.mechanism, one.hypothesis, one.outcome, one.delta) for one in evidence.past]
    return content_hash([proposer, parent.hash, [episode.id for episode in evidence.episodes], past, seed])


class ProposalLog:
    """Proposal records below a prefix of a store.

    Args:
        store: Where they lie.
        prefix: Below which key.
    """

    def __init__(self, store: BlobStore, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def get(self, key: str) -> ProposalRecord | None:
        """The record of a call, or None."""
        path = self._path(key)
        return ProposalRecord.from_bytes(self._store.get(path)) if self._store.head(path) is not None else None

    def put(self, record: ProposalRecord) -> ProposalRecord:
        """Commit a record; the one that counts when another writer was first."""
        path = self._path(record.key)
        if self._store.put_if_absent(path, record.to_bytes()) is PutResult.CONFLICT:
            return ProposalRecord.from_bytes(self._store.get(path))
        return record

    def __iter__(self) -> Iterator[ProposalRecord]:
        """All records, by key."""
        for info in self._store.list(f"{self._prefix}/"):
            yield ProposalRecord.from_bytes(self._store.get(info.key))

    def _path(self, key: str) -> str:
        return f"{self._prefix}/{key}.json"

    @staticmethod
    def read_lines(path: Path) -> list[ProposalRecord]:
        """The records of a file with one JSON object a line.

        Raises:
            ConfigError: The file can't be read.
        """
        try:
            return [ProposalRecord.from_bytes(line) for line in path.read_bytes().splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            fix = "name a file with one proposal record a line"
            raise ConfigError("the proposal log can't be read", seen=f"{path}: {str(error)[:200]}", fix=fix) from error


Line = list[tuple[EditRecord | None, HarnessBundle]]
"""From a base to a harness: each with the edit that led to it, where that is recorded."""


def lineage_of(harness_hash: str, base: HarnessBundle, records: Iterable[ProposalRecord], played: Iterable[HarnessBundle] = ()) -> Line:
    """From the base to a candidate.

    Args:
        harness_hash: The candidate's hash, or the first digits of it.
        base: Where the search started.
        records: Proposals of the search, in any order.
        played: Harnesses that were played: among them those that no proposer made, as children of two candidates.

    Raises:
        ConfigError: No candidate has this hash, several begin with these digits, or its line does not start at `base`.
    """
    bundles = {bundle.hash: bundle for bundle in played}
    edits = {edit.harness_hash: (record.parent, edit) for record in records for edit in record.edits}
    parents = {name: bundle.parent for name, bundle in bundles.items()} | {name: parent for name, (parent, _) in edits.items()}
    known = dict.fromkeys([base.hash, *parents])
    matches = [one for one in known if harness_hash and one.startswith(harness_hash)]
    if len(matches) != 1:
        fix = "give more digits" if matches else nearest(harness_hash[:12], map(short, known))
        raise ConfigError("no candidate has this hash" if not matches else "several candidates begin so", seen=harness_hash, fix=fix)
    line = [matches[0]]
    while line[-1] != base.hash:
        parent = parents.get(line[-1])
        if parent is None or parent in line:
            raise ConfigError("the candidate does not descend from this harness", seen=short(line[-1]), fix="name the run's own base")
        line.append(parent)
    found: Line = [(None, base)]
    for name in reversed(line[:-1]):
        edit = edits[name][1] if name in edits else None
        found.append((edit, bundles[name] if edit is None else edit.edit(found[-1][1]).bundle))
    return found
