"""Log-probabilities from plain Hugging Face in fp32: the reference that serving is measured against, and the student's NLL of rewrites."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from coevo.errors import ConfigError

__all__ = ["mean_nll", "reference_logprobs"]

ScoredRow = tuple[Sequence[int], Sequence[int]]
"""(prompt token ids, completion token ids)."""


def reference_logprobs(
    model_path: str, rows: Sequence[ScoredRow], *, adapter_path: str | None = None, tokens_per_batch: int = 4096
) -> list[tuple[float, ...]]:
    """Natural-log probability of each completion token given its prompt, in the order of `rows`.

    Args:
        model_path: Hugging Face folder.
        rows: (prompt ids, completion ids); both non-empty.
        adapter_path: PEFT folder put on top, unmerged, as the trainer had it.
        tokens_per_batch: Padded tokens of one forward pass.

    Raises:
        ConfigError: A row without prompt or completion.
    """
    import torch
    from transformers import AutoModelForCausalLM

    for number, (prompt, completion) in enumerate(rows):
        if not prompt or not completion:
            seen = f"row {number}: {len(prompt)} + {len(completion)} tokens"
            raise ConfigError("a row to score needs a prompt and a completion", seen=seen, fix="leave it out")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        if adapter_path is not None:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, adapter_path)
        model.eval()
        out: list[tuple[float, ...]] = [()] * len(rows)
        for batch in _batches(rows, tokens_per_batch):
            for number, scores in zip(batch, _score(model, [rows[number] for number in batch]), strict=True):
                out[number] = scores
        return out
    finally:
        torch.set_num_threads(threads)


def mean_nll(logprobs: Sequence[float]) -> float:
    """Mean negative log-probability per token, in nats; NaN for none."""
    return -sum(logprobs) / len(logprobs) if logprobs else math.nan


def _batches(rows: Sequence[ScoredRow], tokens_per_batch: int) -> list[list[int]]:
    """Row numbers, grouped by similar length."""
    order = sorted(range(len(rows)), key=lambda number: len(rows[number][0]) + len(rows[number][1]))
    out: list[list[int]] = []
    for number in order:
        width = len(rows[number][0]) + len(rows[number][1])
        if out and width * (len(out[-1]) + 1) <= tokens_per_batch:
            out[-1].append(number)
        else:
            out.append([number])
    return out


def _score(model: Any, rows: Sequence[ScoredRow]) -> list[tuple[float, ...]]:
    """Only positions that predict a completion get logits: all of a batch would be gigabytes where the vocabulary is large."""
    import torch

    whole = [[*prompt, *completion] for prompt, completion in rows]
    width = max(len(ids) for ids in whole)
    ids = torch.zeros((len(rows), width), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for place, row in enumerate(whole):
        ids[place, : len(row)] = torch.tensor(row)
        mask[place, : len(row)] = 1
    first, last = min(len(prompt) for prompt, _ in rows) - 1, width - 1
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask, logits_to_keep=torch.arange(first, last)).logits
    if logits.shape[1] != last - first:  # a model of its own that does not know the argument
        logits = logits[:, first:last]
    out = []
    for place, (prompt, completion) in enumerate(rows):
        start = len(prompt) - 1 - first
        span = logits[place, start : start + len(completion)].float().log_softmax(-1)
        out.append(tuple(span.gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()))
    return out
