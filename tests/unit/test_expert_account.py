"""An LLM expert is paid from the ledger: reserved before, settled after, nothing twice, nothing forgotten (I10, H2).

1. A round settles what its items' notes say; the same round again pays nothing.
2. A round with owed items pays what was asked for them, known from the run's recording; when they are done later only the rest is due.
3. A reservation that passes the budget is refused before anything is asked; with a budget in dollars an unknown price is.
4. The probe is an entry of its own and is not paid again by the recording.
5. The reference policy costs nothing and leaves no entry.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coevo.chat import Completion, Message, ModelRequest, Role, Sampling, Usage
from coevo.config import RunConfig, parse_config
from coevo.errors import BudgetExceeded, ConfigError
from coevo.models.recorded import RecordingModel
from coevo.ports import ItemOutcome, ItemState
from coevo.rewrite.account import ExpertAccount
from coevo.rewrite.spend import expert_note, use_of
from coevo.store import LocalSource
from coevo.store.ledger import Budget, Ledger, Spend
from jobs.expert import call_estimate, expert_account, expert_recipe

PRICES = "extends: shipped\ntokens:\n  big: {prompt: 1.0, completion: 1.0, as_of: 2026-01-01}\n"


class Once:
    """Answers with 10 tokens."""

    model_id = "remote:big"

    async def complete(self, request: ModelRequest) -> Completion:
        return Completion("x", usage=Usage(8, 0, 2))

    async def aclose(self) -> None:
        return None


class Bench:
    def __init__(self, folder: Path, *, kind: str = "openai", budget: Budget | None = None, priced: bool = True) -> None:
        (folder / "prices.yaml").write_text(PRICES)
        expert = {"kind": kind, "base_url": "http://127.0.0.1:9/v1", "model": "big" if priced else "unheard-of"}
        self.config: RunConfig = parse_config({"name": "run", "expert": expert, "prices": str(folder / "prices.yaml")})
        self.source = LocalSource(str(folder / "store"))
        self.store = self.source.open()
        self.recipe = expert_recipe(self.config, self.source)
        self.budget = budget or Budget()

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.store, budget=self.budget, prefix="run/ledger")

    def account(self) -> ExpertAccount:
        return expert_account(self.config, self.store, self.ledger, self.recipe)

    def ask(self, *seeds: int) -> None:
        """Asked and recorded, as a worker does."""
        model = RecordingModel(Once(), self.store, prefix="run/expert")
        for seed in seeds:
            asyncio.run(model.complete(ModelRequest((Message(Role.USER, "q"),), (), Sampling(), "s", seed)))

    def settled(self) -> dict[str, tuple[int, float | None]]:
        return {one.name: (one.settled.tokens, one.settled.usd) for one in self.ledger.reservations() if one.settled is not None}


def done(name: str, calls: int, state: ItemState = ItemState.COMMITTED) -> ItemOutcome:
    use = use_of(Usage(8 * calls, 0, 2 * calls), calls=calls, price=None).model_copy(update={"usd": calls * 1e-5})
    return ItemOutcome(name, state, note={"expert": expert_note(use)})


def test_a_round_is_paid_once(tmp_path: Path) -> None:
    """Promise 1."""
    bench = Bench(tmp_path)
    for state in (ItemState.COMMITTED, ItemState.SKIPPED):
        with bench.account().holding("rewrite/1", 4) as this:
            this.take(done("a", 2, state))
            this.take(done("b", 1, state))
    assert bench.settled() == {"expert/rewrite/1/0": (30, pytest.approx(3e-5)), "expert/rewrite/1/1": (0, 0.0)}


def test_owed_items_are_paid_from_the_recording(tmp_path: Path) -> None:
    """Promises 2 and 4."""
    bench = Bench(tmp_path)
    bench.account().pay_probe(Spend(usd=1e-5, tokens=10))
    bench.ask(1, 2, 3)
    with bench.account().holding("rewrite/1", 4) as this:
        this.take(done("a", 1))
        this.take(ItemOutcome("b", ItemState.OWED))
    bench.ask(2, 3, 4)
    with bench.account().holding("rewrite/1", 4) as this:
        this.take(done("a", 1, ItemState.SKIPPED))
        this.take(done("b", 3))
    assert bench.settled() == {
        "expert/probe/0": (10, pytest.approx(1e-5)),
        "expert/rewrite/1/0": (30, pytest.approx(3e-5)),
        "expert/rewrite/1/1": (10, pytest.approx(1e-5)),
    }


def test_a_broken_round_is_paid_by_the_next(tmp_path: Path) -> None:
    """Promise 2: whatever ended it, its items' notes come again."""
    bench = Bench(tmp_path)

    def broken() -> None:
        with bench.account().holding("rewrite/1", 4) as this:
            this.take(done("a", 2))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken()
    with bench.account().holding("rewrite/1", 4) as this:
        this.take(done("a", 2, ItemState.SKIPPED))
    assert sum(tokens for tokens, _ in bench.settled().values()) == 20


def test_a_budget_is_kept_before_anything_is_asked(tmp_path: Path) -> None:
    """Promise 3."""
    bench = Bench(tmp_path, budget=Budget(tokens=100))
    assert bench.recipe is not None
    assert call_estimate(bench.config).tokens > 100
    with pytest.raises(BudgetExceeded), bench.account().holding("rewrite/1", 1):
        pytest.fail("the round began")
    unknown = Bench(tmp_path, budget=Budget(usd=5.0), priced=False)
    with pytest.raises(ConfigError, match="needs prices"), unknown.account().holding("rewrite/2", 1):
        pytest.fail("the round began")
    assert bench.settled() == {}


def test_a_reference_expert_leaves_no_entry(tmp_path: Path) -> None:
    """Promise 5."""
    bench = Bench(tmp_path, kind="reference")
    with bench.account().holding("rewrite/1", 4) as this:
        this.take(ItemOutcome("a", ItemState.COMMITTED, note={"turn": 1}))
    assert bench.recipe is None
    assert bench.settled() == {}
