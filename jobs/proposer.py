"""The proposer of a run: who it is, its model, and how it is paid; every proposal is kept in the run's store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

from cluster.stores import open_source
from coevo.chat import Sampling, Usage
from coevo.config import RunConfig
from coevo.errors import ConfigError
from coevo.evolve.llm import ProposerModel
from coevo.evolve.proposals import ProposalLog, ProposalRecord
from coevo.evolve.propose import Edit, Evidence, Proposed, Proposer, TracedProposer
from coevo.evolve.proposers import ProposerSetup, load_proposer
from coevo.evolve.recorded import KeptProposer, RecordedProposer
from coevo.harness.bundle import HarnessBundle
from coevo.identity import content_hash
from coevo.mini.tokenizer import CHAIN_NAMES
from coevo.records import Episode
from coevo.rewrite.llm import ExpertPlayerSource
from coevo.rewrite.spend import use_of
from coevo.store.ledger import Spend
from jobs.context import RunContext
from jobs.expert_calls import calls_per_proposal

__all__ = ["PROPOSALS", "open_proposer", "proposal_log"]

PROPOSALS = "proposals"
"""Below the run: one record per call of the proposer."""

PLAYED_FORMAT = "hermes"
"""Chat format in which the expert's turns are written down: one that can carry source text."""


def proposal_log(context: RunContext) -> ProposalLog:
    """Every proposal of this run."""
    return ProposalLog(context.store, f"{context.run}/{PROPOSALS}")


def open_proposer(context: RunContext) -> Proposer:
    """The run's proposer, screened, kept and paid; one that answers from a log as it is, for its answers were.

    Raises:
        ConfigError: Unknown kind or operator, or a log that can't be read.
    """
    chosen = context.config.evolve.proposer
    setup = ProposerSetup(chosen, tuple(CHAIN_NAMES), lambda: _model(context), lambda: _records(chosen.log or ""))
    made = load_proposer(setup)
    if isinstance(made, RecordedProposer):
        return made
    return KeptProposer(_Paid(made, context) if isinstance(made, TracedProposer) else made, proposal_log(context))


class _Paid:
    """A proposer whose calls are reserved in the run's ledger before they are made, and settled after."""

    def __init__(self, inner: TracedProposer, context: RunContext) -> None:
        self.name = inner.name
        self._inner, self._context = inner, context

    def propose(self, parent: HarnessBundle, evidence: Evidence, rng: Random) -> list[Edit]:
        return list(self.propose_traced(parent, evidence, rng).edits)

    def propose_traced(self, parent: HarnessBundle, evidence: Evidence, rng: Random) -> Proposed:
        context, chosen = self._context, self._context.config.evolve.proposer
        asked = content_hash([parent.hash, [one.id for one in evidence.episodes], list(rng.getstate()[1])])[:16]
        name, calls = f"{PROPOSALS}/{asked}", calls_per_proposal(chosen)
        if chosen.model == "expert":
            with context.account.holding(name, calls) as paid:
                proposed = self._inner.propose_traced(parent, evidence, rng)
                price = context.recipe.price if context.recipe is not None else None
                use = use_of(_usage(proposed.episodes), calls=calls, price=price)
                paid.spends.append(Spend(usd=use.usd, tokens=use.usage.prompt_tokens + use.usage.completion_tokens))
            return proposed
        most = calls * chosen.max_tokens
        with context.ledger.reservation(name, estimate=Spend(usd=context.billing.estimate_usd(most), tokens=most)) as settled:
            proposed = self._inner.propose_traced(parent, evidence, rng)
            used = _usage(proposed.episodes)
            tokens = used.prompt_tokens + used.completion_tokens
            settled.add(Spend(usd=context.billing.estimate_usd(tokens), tokens=tokens))
        return proposed


def _usage(episodes: Iterable[Episode]) -> Usage:
    return sum((Usage(one.usage.prompt_tokens, one.usage.cached_tokens, one.usage.completion_tokens) for one in episodes), Usage())


def _model(context: RunContext) -> ProposerModel:
    config: RunConfig = context.config
    chosen, weak = config.evolve.proposer, config.weak
    if chosen.model == "weak":
        sampling = Sampling(weak.sampling.temperature, weak.sampling.top_p, chosen.max_tokens)
        return ProposerModel(context.weak_source, weak.chat_format, sampling, context.weak_path, weak.max_model_len)
    if context.recipe is None:
        raise ConfigError("the LLM proposer has no model", seen=f"expert.kind={config.expert.kind}", fix="set expert.kind: openai")
    recipe = replace(context.recipe, max_tokens=chosen.max_tokens)
    return ProposerModel(ExpertPlayerSource(recipe, PLAYED_FORMAT), PLAYED_FORMAT, recipe.sampling)


def _records(log: str) -> list[ProposalRecord]:
    place, _, run = log.partition("#")
    if not run:
        return ProposalLog.read_lines(Path(place))
    return list(ProposalLog(open_source(place).open(), f"{run}/{PROPOSALS}"))
