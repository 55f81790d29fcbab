"""An expert on engines of the run's own, before any engine runs: identity, wiring, prices, and a rewrite through token ids.

1. `kind: pool` gives a recipe whose identity follows from the weights and the settings alone; no pool is needed to know it.
2. Source and pool agree on name, weights and replicas, and the pool is placed as `cluster.pools.expert` says.
3. The dialogue goes to the model as ids in its own chat format, and its JSON answer becomes a turn in the weak model's format.
4. Its tokens cost nothing by themselves; a budget in dollars wants a price of its nodes.
"""

from __future__ import annotations

import asyncio
import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cluster.pool_model import PoolSource
from cluster.tiny import write_byte_tokenizer
from coevo.chat import Completion, ModelRequest, Sampling
from coevo.config import RunConfig, parse_config
from coevo.episode import play
from coevo.errors import ConfigError
from coevo.formats import chat_format
from coevo.harness.sandbox import shared_pool
from coevo.localize.judge import JudgeSource
from coevo.mini.demonstrator import Demonstrator, Habits
from coevo.mini.harnesses import hand_made
from coevo.mini.model import mini_path
from coevo.mini.tokenizer import save_tokenizer
from coevo.models.rendered import RenderedSource
from coevo.models.tokenizer import FolderTokenizer
from coevo.records import Episode
from coevo.rewrite.llm import LLMExpertSource, LLMRecipe
from coevo.store import LocalSource
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream
from jobs.billing import require_prices
from jobs.expert import check_prices, expert_identity, expert_price, expert_recipe
from jobs.expert_pool import expert_pool_config

FAMILY = load_family("payroll")


def config(expert: dict[str, Any] | None = None, **more: Any) -> RunConfig:
    pool = {"chat_format": "hermes", "engine": "transformers", "replicas": 3, "max_model_len": 2048}
    return parse_config({"name": "run", "expert": {"kind": "pool", "model": str(mini_path()), "pool": pool} | (expert or {}), **more})


def test_a_recipe_is_known_without_a_pool(tmp_path: Path) -> None:
    """Promise 1."""
    store = LocalSource(str(tmp_path))
    recipe = expert_recipe(config(), store)
    assert recipe is not None
    assert recipe.model_id.startswith("mini-")
    assert pickle.loads(pickle.dumps(recipe)).model_id == recipe.model_id
    hotter = expert_recipe(config({"temperature": 0.1}), store)
    assert hotter is not None
    assert hotter.model_id != recipe.model_id
    assert expert_identity(config(), recipe) == {"model_id": recipe.model_id, "chat_format": "hermes"}
    with pytest.raises(ConfigError, match="folder is missing"):
        expert_recipe(config({"model": str(tmp_path / "nothing")}), store)
    with pytest.raises(ConfigError, match="needs model"):
        parse_config({"name": "run", "expert": {"kind": "pool"}})


def test_source_and_pool_agree(tmp_path: Path) -> None:
    """Promise 2."""
    placed = config(cluster={"pools": {"expert": {"num_cpus": 4, "num_gpus": 1, "resources": {"expert": 0.5}}}})
    recipe, pool = expert_recipe(placed, LocalSource(str(tmp_path))), expert_pool_config(placed)
    assert recipe is not None
    rendered = recipe.model.inner  # type: ignore[attr-defined]
    assert isinstance(rendered, RenderedSource)
    source = rendered.inner
    assert isinstance(source, PoolSource)
    assert (source.pool, source.replicas, source.served_id) == (pool.name, pool.replicas, pool.engine.model_id)
    assert source.tokenizer_path == pool.engine.model_path
    assert rendered.max_model_len == pool.engine.max_model_len == 2048
    assert (pool.num_cpus, pool.num_gpus, dict(pool.resources)) == (4, 1, {"expert": 0.5})


@dataclass
class AnswersInIds:
    """A pool's model: reads ids, answers with the given texts in turn."""

    tokenizer: FolderTokenizer
    texts: tuple[str, ...]
    prompts: list[str] = field(default_factory=list)
    model_id: str = "served@1"

    async def complete(self, request: ModelRequest) -> Completion:
        assert request.prompt_token_ids is not None
        self.prompts.append(self.tokenizer.decode(request.prompt_token_ids))
        return Completion(self.texts[min(len(self.prompts), len(self.texts)) - 1])

    async def aclose(self) -> None:
        return None


@dataclass(frozen=True)
class ServedSource:
    """Hands out one model, so that a test can read what it was asked."""

    model: AnswersInIds

    @property
    def model_id(self) -> str:
        return self.model.model_id

    def open(self) -> AnswersInIds:
        return self.model


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Episode, Any]:
    """A failed episode of the demonstrator and its agent."""
    from coevo.rollout import AgentSource

    folder = tmp_path_factory.mktemp("weak")
    save_tokenizer(folder)

    @dataclass(frozen=True)
    class Clerk:
        model_id: str = "demonstrator:7"

        def open(self) -> Demonstrator:
            return Demonstrator(hand_made(FAMILY), FAMILY, habits=Habits(), seed=7)

    agent = AgentSource("payroll", Clerk(), hand_made(FAMILY).bundle, "mini", str(folder), 4096, Sampling(0.7, 1.0, 96)).open()
    for seed in range(16):
        episode = asyncio.run(
            play(FAMILY.instance(Stream.SEARCH, seed, Size.MINI, diversity=3), family=FAMILY, agent=agent, sandboxes=shared_pool())
        )
        if not episode.success and len(episode.turns) > 3:
            return episode, agent
    raise AssertionError("the clerk made no mistake")


def served(tmp_path: Path, *texts: str) -> tuple[AnswersInIds, LLMRecipe]:
    write_byte_tokenizer(tmp_path)
    model = AnswersInIds(FolderTokenizer(tmp_path), texts)
    return model, LLMRecipe(RenderedSource(ServedSource(model), str(tmp_path), "hermes", 1_000_000), temperature=0.0)


def test_a_rewrite_through_token_ids(failed: tuple[Episode, Any], tmp_path: Path) -> None:
    """Promise 3: an unreadable first answer is asked for again; the second becomes a turn that the weak model could have written."""
    episode, agent = failed
    turn = json.dumps({"strategy": "note todo empty .", "call": {"name": "finish", "arguments": {}}})
    model, recipe = served(tmp_path, "no idea", turn)
    offer = asyncio.run(LLMExpertSource(recipe).open(agent, FAMILY).rewrite(episode, 2, n=2))
    assert [one.call.name for one in offer.rewrites] == ["finish"]
    assert chat_format("mini").parse(offer.rewrites[0].text, ()) is not None
    assert offer.use.calls == 2
    assert offer.use.form == "plain"
    assert all(prompt.startswith("<|im_start|>system") and prompt.endswith("<|im_start|>assistant\n") for prompt in model.prompts)
    assert episode.turns[1].result.strip() in model.prompts[0]
    assert model.prompts[1].startswith(model.prompts[0])


def test_a_judge_on_the_same_engines(failed: tuple[Episode, Any], tmp_path: Path) -> None:
    """Promise 3 for judges: any ChatModel serves them."""
    episode, _ = failed
    blamed = {"cause": "c", "counterfactual": "f", "turns": [{"turn": 1, "reason": "r"}], "unlocalizable": False}
    _, recipe = served(tmp_path, json.dumps(blamed))
    blame = asyncio.run(JudgeSource(recipe).open().blame(episode, k=2))
    assert [one.turn for one in blame.turns] == [1]


def test_prices_are_those_of_the_nodes() -> None:
    """Promise 4."""
    price = expert_price(config())
    assert price is not None
    assert price.prompt == price.completion == 0.0
    bounded = config(budget={"usd": 5.0}, cluster={"pools": {"weak": {"instance_type": "owned", "tokens_per_s": 10.0}}})
    check_prices(bounded)
    with pytest.raises(ConfigError, match="needs prices"):
        require_prices(bounded)
