"""Pretraining of the embedded model. Promises:

1. Our forward pass gives Hugging Face's logits, and the saved folder loads there.
2. The loop learns: loss on a copy task falls far below the guess.
3. Same seed, same weights; a killed run resumes to the same weights.
4. Only targets train: a token without mask never changes the loss.
5. Rows that do not fit are refused by name.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from cluster.decoder import DecoderShape, forward, initial, named
from cluster.pretrain import PretrainConfig, PretrainLine, export, pretrain, shape_for
from cluster.tokenrows import RowFunction, TokenRows, batches
from coevo.errors import ConfigError

torch.set_num_threads(1)
SMALL = PretrainConfig(
    steps=24,
    tokens_per_batch=512,
    hidden=64,
    heads=2,
    layers=2,
    intermediate=96,
    positions=128,
    warmup_steps=5,
    log_every=8,
    checkpoint_every=10,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    words = ["<pad>", "<eos>", *[f"w{i}" for i in range(38)]]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    fast.save_pretrained(folder)
    return folder


def copy_rows(count: int, seed: int, *, symbols: int = 8) -> TokenRows:
    """`x1..xn 1 x1..xn`: the second half is the target."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        body = [draw.randrange(2, 2 + symbols) for _ in range(draw.randrange(3, 9))]
        rows.append(([*body, 1, *body], [0] * (len(body) + 1) + [1] * len(body)))
    return TokenRows.from_rows(rows)


def test_forward_equals_hugging_face(tokenizer: Path, tmp_path: Path) -> None:
    """Promise 1, also at widths that are no multiple of the query block, with padding."""
    shape = DecoderShape(vocab=64, hidden=64, heads=2, layers=2, intermediate=96, positions=256)
    flat = initial(shape, seed=3)
    export(flat, shape, tokenizer=tokenizer, out=tmp_path, dtype="float32")
    model = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    lengths = [150, 97, 64, 1]
    tokens = torch.zeros((4, 150), dtype=torch.int64)
    for row, length in enumerate(lengths):
        tokens[row, :length] = torch.randint(2, 40, (length,), generator=torch.Generator().manual_seed(row))
    ours = forward(flat, shape, tokens, torch.arange(tokens.numel()), dtype=torch.float32).view(4, 150, -1)
    for row, length in enumerate(lengths):
        with torch.no_grad():
            theirs = model(input_ids=tokens[row : row + 1, :length]).logits[0]
        assert torch.allclose(ours[row, :length], theirs, atol=2e-4), (ours[row, :length] - theirs).abs().max()


def test_gradient_equals_hugging_face(tokenizer: Path, tmp_path: Path) -> None:
    """Promise 1 for the backward pass: our kernels have hand-written gradients."""
    shape = DecoderShape(vocab=64, hidden=64, heads=2, layers=2, intermediate=96, positions=256)
    flat = initial(shape, seed=4).requires_grad_()
    export(flat, shape, tokenizer=tokenizer, out=tmp_path, dtype="float32")
    model = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.randint(2, 40, (2, 150), generator=torch.Generator().manual_seed(9))
    position = torch.cat((torch.arange(149), 150 + torch.arange(149)))
    logits = forward(flat, shape, tokens, position, dtype=torch.float32)
    torch.nn.functional.cross_entropy(logits, tokens.view(-1)[position + 1]).backward()
    model(input_ids=tokens, labels=tokens).loss.backward()
    assert flat.grad is not None
    theirs = dict(model.named_parameters())
    for name, gradient in named(flat.grad, shape).items():
        expected = theirs[name].grad
        assert expected is not None
        assert torch.allclose(gradient, expected, rtol=1e-3, atol=1e-5 + 1e-3 * expected.abs().max().item()), name


def test_saved_folder_loads(tokenizer: Path, tmp_path: Path) -> None:
    """Promise 1: config, weights and tokenizer are one servable folder."""
    out = pretrain(replace(SMALL, steps=3, export_dtype="float32"), copy_rows(50, 0), tokenizer=tokenizer, out=tmp_path / "m")
    model = LlamaForCausalLM.from_pretrained(out)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert (model.config.vocab_size, model.config.eos_token_id) == (64, 1)
    assert AutoTokenizer.from_pretrained(out).convert_tokens_to_ids("w0") == 2
    assert not (out / "checkpoint").exists()
    assert json.loads((out / "pretrain.json").read_text())["steps"] == 3


@pytest.mark.timeout(300)
def test_learns_to_copy(tokenizer: Path, tmp_path: Path) -> None:
    """Promise 2: one of 8 symbols has a guess loss of ln 8 = 2.08; a model that looks back is far below."""
    lines: list[PretrainLine] = []
    config = replace(SMALL, steps=300, tokens_per_batch=1024, learning_rate=3e-3, log_every=50)
    source = RowFunction(lambda epoch: copy_rows(400, epoch))
    pretrain(config, source, tokenizer=tokenizer, out=tmp_path / "m", on_line=lines.append)
    assert lines[0].loss > 1.5
    assert lines[-1].loss < 0.7, [line.loss for line in lines]
    assert len((tmp_path / "m" / "pretrain.jsonl").read_text().splitlines()) == len(lines)


class Killed(Exception):
    """Stands for the kill."""


def test_resume_gives_the_same_weights(tokenizer: Path, tmp_path: Path) -> None:
    """Promise 3."""
    rows = copy_rows(120, 1)
    straight = pretrain(SMALL, rows, tokenizer=tokenizer, out=tmp_path / "a")

    def stop(line: PretrainLine) -> None:
        if line.step == 16:
            raise Killed

    with pytest.raises(Killed):
        pretrain(SMALL, rows, tokenizer=tokenizer, out=tmp_path / "b", on_line=stop)
    assert json.loads((tmp_path / "b/checkpoint/state.json").read_text())["step"] == 10
    resumed = pretrain(SMALL, rows, tokenizer=tokenizer, out=tmp_path / "b")
    assert (straight / "model.safetensors").read_bytes() == (resumed / "model.safetensors").read_bytes()
    other = pretrain(replace(SMALL, seed=1), rows, tokenizer=tokenizer, out=tmp_path / "c")
    assert (straight / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()
    with pytest.raises(ConfigError, match="seed"):
        pretrain(replace(SMALL, seed=2), rows, tokenizer=tokenizer, out=tmp_path / "a")


def test_batches_cover_every_target_once() -> None:
    """Promise 4: one epoch holds each target exactly once, and nothing else."""
    rows = copy_rows(60, 2)
    wanted = sorted(
        int(t)
        for r in range(len(rows))
        for t in rows.ids[rows.offsets[r] : rows.offsets[r + 1]][rows.mask[rows.offsets[r] : rows.offsets[r + 1]] == 1]
    )
    seen: list[int] = []
    tokens = 0
    stream = batches(rows, tokens_per_batch=200, seed=0)
    while tokens < len(rows.ids):
        batch = next(stream)
        assert batch.tokens.size <= 200
        assert (batch.tokens.reshape(-1)[batch.position + 1] == batch.target).all()
        seen.extend(batch.target.tolist())
        tokens += batch.real_tokens
    assert tokens == len(rows.ids)
    assert sorted(seen) == wanted


def test_skip_continues_the_same_stream() -> None:
    """Promise 3: `skip` passes over batches without changing what follows."""
    rows = copy_rows(60, 2)
    plain = batches(rows, tokens_per_batch=100, seed=5)
    for _ in range(25):
        next(plain)
    late = batches(rows, tokens_per_batch=100, seed=5, skip=25)
    for _ in range(20):
        assert np.array_equal(next(plain).tokens, next(late).tokens)


def test_bad_rows_are_named(tokenizer: Path, tmp_path: Path) -> None:
    """Promise 5."""
    with pytest.raises(ConfigError, match="positions"):
        pretrain(SMALL, TokenRows.from_rows([([2] * 200, [1] * 200)]), tokenizer=tokenizer, out=tmp_path / "a")
    with pytest.raises(ConfigError, match="vocabulary"):
        pretrain(SMALL, TokenRows.from_rows([([2, 900], [0, 1])]), tokenizer=tokenizer, out=tmp_path / "b")
    with pytest.raises(ConfigError, match="nothing to train"):
        pretrain(SMALL, TokenRows.from_rows([([2, 3], [0, 0])]), tokenizer=tokenizer, out=tmp_path / "c")
    with pytest.raises(ConfigError, match="head width"):
        replace(SMALL, heads=4)
    with pytest.raises(ConfigError, match="differ in length"):
        TokenRows.from_rows([([1, 2], [1])])
    assert shape_for(SMALL, tokenizer).vocab == 64
