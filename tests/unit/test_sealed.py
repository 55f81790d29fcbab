"""The test tier is reached by a recorded opening alone (I8).

1. Unopened, a sealed tier recognizes task keys and names none.
2. An opening is in the store before an item is out; the same one may come again, another of the same stage may not.
3. No part of a search may play a test instance, and a whole managed search asks for none.
4. In the product one class draws the test stream, one module of the jobs holds it, and one stage opens it.
5. What a run keeps for its measurements is kept off its training rows, known by marks alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coevo.config import EvolveConfig, parse_config
from coevo.dataset.guard import require_disjoint
from coevo.display.plain import PlainDisplay
from coevo.errors import ConfigError, StoreError
from coevo.evolve.campaign import run_campaign
from coevo.evolve.evaluator import Evaluator, Play
from coevo.evolve.search import SearchTask
from coevo.evolve.simulated import FutileProposer, SimulatedEvaluator
from coevo.evolve.tiers import SealedTier, read_openings, task_key
from coevo.harness.bundle import HarnessBundle
from coevo.identity import content_hash
from coevo.ports import BlobStore, PutResult
from coevo.records import Episode
from coevo.rollout import parse_item
from coevo.store.local import LocalStore
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream, TaskInstance
from jobs.context import RunContext
from jobs.rollout import rollout_items
from jobs.streams import evaluation_tasks, open_test, sealed_digest, transfer_items

ROOT = Path(__file__).resolve().parents[2]
FAMILY = load_family("payroll")
BASE = HarnessBundle.load(FAMILY.base_harness(Size.MINI))
TIER = SealedTier.of(FAMILY, Size.MINI, 1, seed=9)


def opened(store: BlobStore, *, stage: str = "evaluate", models: Sequence[str] = ("m",), instances: int = 5) -> tuple[str, ...]:
    return TIER.open(store, "run", stage=stage, harnesses=("h0", "h*"), models=models, instances=instances, repeats=2)


def test_unopened_it_names_nothing(tmp_path: Path) -> None:
    """Promise 1."""
    marks, items = TIER.marks(5), opened(LocalStore(tmp_path))
    keys = [task_key(item) for item in items]
    assert all(key in marks for key in keys)
    assert keys[0] + "0" not in marks
    assert not any(key in repr((marks, TIER)) or key in marks.hashes for key in keys)
    assert TIER.digest(5, repeats=2) == content_hash(list(items))
    assert {TaskInstance.parse(key).stream for key in keys} == {Stream.TEST}


@dataclass
class Refusing:
    """A store that takes nothing."""

    inner: LocalStore

    def put_if_absent(self, key: str, data: bytes) -> PutResult:
        raise StoreError("no", seen=key, fix="none")

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


def test_an_opening_is_recorded_before_an_item_is_out(tmp_path: Path) -> None:
    """Promise 2 (H2, I4)."""
    store = LocalStore(tmp_path)
    with pytest.raises(StoreError):
        opened(Refusing(store))  # type: ignore[arg-type]
    assert read_openings(store, "run") == ()
    items = opened(store, models=("m", "m@a"))
    assert opened(store, models=("m@a", "m", "m")) == items, "a resumed measurement"
    (opening,) = read_openings(store, "run")
    assert (opening.stage, opening.harnesses, opening.models) == ("evaluate", ("h*", "h0"), ("m", "m@a"))
    assert (opening.instances, opening.repeats, opening.items_hash) == (5, 2, content_hash(list(items)))
    for other in ({"models": ("m@b",)}, {"models": ("m", "m@a"), "instances": 6}):
        with pytest.raises(StoreError, match="opened before, for something else") as caught:
            opened(store, **other)  # type: ignore[arg-type]
        assert "another seed" in caught.value.fix
    opened(store, stage="again", models=("m@b",))
    assert [one.stage for one in read_openings(store, "run")] == ["again", "evaluate"], "every opening is counted"


@dataclass
class Listening:
    """Coins, and every item that was asked for."""

    coins: Evaluator
    asked: set[str] = field(default_factory=set)

    def play(self, plays: Sequence[Play]) -> Sequence[Mapping[str, Episode]]:
        self.asked |= {item for play in plays for item in play.items}
        return self.coins.play(plays)


def test_no_part_of_a_search_plays_a_test_instance(tmp_path: Path) -> None:
    """Promise 3: restarts, crossover, ablation and all baselines included."""
    with pytest.raises(ConfigError, match="may not play"):
        Play(BASE, (opened(LocalStore(tmp_path / "sealed"))[0],), "search")
    config = EvolveConfig(
        generations=2,
        proposals=2,
        search_instances=6,
        gate_instances=16,
        restarts=2,
        crossovers=1,
        confirm_instances=8,
        max_lost_share=1.0,
        ablate_instances=8,
        baselines=("best_of_n", "self_refine", "prompt_only"),
        baseline_instances=4,
    )
    planted: dict[str, float] = {}
    listening, proposer = Listening(SimulatedEvaluator(9, effects=planted)), FutileProposer(planted, effect=0.4)
    task = SearchTask(FAMILY, Size.MINI, 1, config, 9)
    run_campaign(BASE, task, paying=listening, evaluator=listening, proposer=proposer, store=LocalStore(tmp_path), prefix="run/b")
    assert {parse_item(item)[0].stream for item in listening.asked} == {Stream.SEARCH, Stream.SELECTION}
    assert not any(task_key(item) in TIER.marks(500) for item in listening.asked)


def named(folder: str, found: str) -> Iterator[str]:
    """Modules below a folder that use a name, or an attribute of a name written `Name.attribute`."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if any(isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) == found for node in nodes):
            yield path.relative_to(ROOT).as_posix()


def test_one_class_draws_the_stream_and_one_stage_opens_it() -> None:
    """Promise 4. The modules of `coevo.tasks` say which instances a stream has; they are asked by tiers."""
    assert [name for name in named("coevo", "Stream.TEST") if not name.startswith("coevo/tasks/")] == [
        "coevo/evolve/evaluator.py",
        "coevo/evolve/tiers.py",
    ]
    assert list(named("jobs", "Stream.TEST")) == list(named("cluster", "Stream.TEST")) == []
    assert list(named("jobs", "SealedTier")) == ["jobs/streams.py"]
    assert list(named("cluster", "SealedTier")) == []
    assert list(named("coevo", "SealedTier")) == ["coevo/evolve/tiers.py"]
    assert list(named("jobs", "open_test")) == ["jobs/evaluate.py"]


def test_a_run_opens_it_once_and_keeps_its_rows_off(tmp_path: Path) -> None:
    """Promises 2 and 5, through the run that a user has."""
    config = parse_config({"name": "seal", "store": str(tmp_path), "evaluate": {"instances": 6, "transfer_instances": 4}})
    for _ in range(2):  # killed and resumed
        with RunContext.open(config, display=PlainDisplay()) as context:
            digest, kept = sealed_digest(context), evaluation_tasks(context)
            items = open_test(context, stage="evaluate", harnesses=(context.base_harness.hash,), models=(context.weak_model_id,))
            assert digest == content_hash(list(items))
            (opening,) = read_openings(context.store, context.run)
            assert opening.harnesses == (context.base_harness.hash,)
            assert all(task_key(item) in kept for item in (*items, *transfer_items(context)))
            require_disjoint([task_key(item) for item in rollout_items(context)], kept)
            with pytest.raises(StoreError, match="evaluation instances"):
                require_disjoint([task_key(items[0])], kept)
            with pytest.raises(StoreError, match="for something else"):
                open_test(context, stage="evaluate", harnesses=(), models=(context.weak_model_id,))
