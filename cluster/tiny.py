"""A random tiny Llama folder with a byte-level tokenizer: plumbing for tests, dry runs and self-checks. It knows nothing.

About 0.1 M parameters; head size 32, the smallest that vLLM's CPU attention accepts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

__all__ = ["TINY_SPECIAL_TOKENS", "make_tiny_adapter", "make_tiny_model", "write_byte_tokenizer"]

TINY_SPECIAL_TOKENS = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
"""Ids 0.. in this order; `<|im_end|>` ends a turn."""


def make_tiny_model(folder: str | Path, *, seed: int = 0, hidden: int = 64, layers: int = 2, max_len: int = 2048) -> str:
    """Write config.json, float32 safetensors, tokenizer.json and tokenizer_config.json; returns the folder.

    Args:
        folder: Created when missing.
        seed: Seed of the random weights; two seeds give two different models with one tokenizer.
        hidden: Width, a multiple of 32.
        layers: Decoder layers.
        max_len: Positions the model claims to support.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    vocabulary = write_byte_tokenizer(path)
    config = LlamaConfig(
        vocab_size=-(-vocabulary // 64) * 64,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=max(1, hidden // 64),
        head_dim=32,
        max_position_embeddings=max_len,
        tie_word_embeddings=True,
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=TINY_SPECIAL_TOKENS.index("<|im_end|>"),
    )
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).to(torch.float32)
    torch.set_rng_state(state)
    model.save_pretrained(path)
    return str(path)


def write_byte_tokenizer(path: Path, *, special: Sequence[str] = TINY_SPECIAL_TOKENS, end: str = "<|im_end|>") -> int:
    """tokenizer.json with the special tokens (the first one pads, `end` ends a turn) and the 256 bytes, no merges; the number of tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*special, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "pad_token": special[0], "model_max_length": 2048}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(vocabulary)


def make_tiny_adapter(base: str | Path, folder: str | Path, *, seed: int = 0, scale: float = 0.3, rank: int = 4) -> str:
    """A random PEFT LoRA over a tiny model, strong enough to change its greedy text; returns the folder."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(str(base), dtype=torch.float32, local_files_only=True)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    adapted = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, task_type="CAUSAL_LM"))
    generator = torch.Generator().manual_seed(seed)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            weight.data = torch.randn(weight.shape, generator=generator) * scale
        elif "lora_A" in name:
            weight.data = torch.randn(weight.shape, generator=generator) * weight.shape[1] ** -0.5
    adapted.save_pretrained(str(folder))
    return str(folder)
