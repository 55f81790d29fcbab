"""Proposals kept, and played back: a call that was made once is answered from its record, by the same edits.

`KeptProposer` wraps any proposer. It screens what comes out (`coevo.evolve.screen`), commits the record, refused edits included, and
answers a resumed search from it: no LLM is paid twice for one question, and a search that was killed goes on with the edits it had.
`RecordedProposer` answers from a log alone, for tests and replays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from coevo.errors import ConfigError
from coevo.evolve.proposals import EditRecord, ProposalLog, ProposalRecord, proposal_key
from coevo.evolve.propose import Edit, Evidence, Proposed, Proposer, TracedProposer
from coevo.evolve.screen import LeakageScreen
from coevo.harness.bundle import HarnessBundle
from coevo.identity import short

__all__ = ["KeptProposer", "RecordedProposer"]


class KeptProposer:
    """See the module docstring.

    Args:
        inner: Who proposes.
        log: Where its proposals are kept.
        on_paid: Called with each record that `inner` was asked for, before it is committed; not for records that were there.
    """

    def __init__(self, inner: Proposer, log: ProposalLog, *, on_paid: Callable[[ProposalRecord], None] | None = None) -> None:
        self.name = inner.name
        self._inner, self._log, self._on_paid = inner, log, on_paid

    def propose(self, parent: HarnessBundle, evidence: Evidence, rng: Random) -> list[Edit]:
        """The edits of the inner proposer that no screen refused."""
        seed = rng.getrandbits(63)
        key = proposal_key(self.name, parent, evidence, seed)
        record = self._log.get(key) or self._ask(key, parent, evidence, seed)
        return [edit.edit(parent) for edit in record.edits if not edit.refused]

    def _ask(self, key: str, parent: HarnessBundle, evidence: Evidence, seed: int) -> ProposalRecord:
        if isinstance(self._inner, TracedProposer):
            proposed = self._inner.propose_traced(parent, evidence, Random(seed))
        else:
            proposed = Proposed(tuple(self._inner.propose(parent, evidence, Random(seed))))
        screen = LeakageScreen.of(evidence, parent)
        edits = tuple(EditRecord.of(edit, parent, refused=screen.refusal(parent, edit.bundle)) for edit in proposed.edits)
        record = ProposalRecord(key=key, proposer=self.name, parent=parent.hash, edits=edits, episodes=proposed.episodes)
        if self._on_paid is not None:
            self._on_paid(record)
        return self._log.put(record)


class RecordedProposer:
    """Answers from records alone.

    Args:
        records: What was proposed.
    """

    name = "recorded"

    def __init__(self, records: Iterable[ProposalRecord]) -> None:
        self._records = list(records)
        if not self._records:
            raise ConfigError("the proposal log is empty", seen="0 records", fix="name the log of a search that proposed something")

    def propose(self, parent: HarnessBundle, evidence: Evidence, rng: Random) -> list[Edit]:
        """What was recorded for this call.

        Without evidence nothing is asked, as by any proposer.

        Raises:
            ConfigError: This call was never recorded.
        """
        if not evidence.episodes:
            return []
        seed = rng.getrandbits(63)
        for record in self._records:
            if record.parent == parent.hash and record.key == proposal_key(record.proposer, parent, evidence, seed):
                return [edit.edit(parent) for edit in record.edits if not edit.refused]
        held = ", ".join(sorted({short(record.parent) for record in self._records}))
        seen = f"harness {short(parent.hash)} with {len(evidence.episodes)} episodes; the log holds edits of {held}"
        raise ConfigError("the log has no proposal for this question", seen=seen, fix="record again with the same configuration and seed")
