"""The embedded model's tokenizer: whole words of a closed list, single digits, bytes for everything else.

Words are stored with their preceding space and the format writes a space before every word, so a word has exactly one token wherever it
stands; digits never carry a space. Both make copying learnable for a model of a million parameters (ids and amounts are copied digit by
digit). The lists of verbs are larger than any harness uses: pretraining draws tool names from them, so names must be read from the context.
Weights and word list belong together: an id is a place in the list, so another list needs other weights.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

from coevo.formats.mini import END, PAD, SPECIAL_TOKENS
from coevo.tasks import FAMILIES

__all__ = ["CHAIN_NAMES", "LIST_NAMES", "RECORD_NAMES", "WORDS", "build_tokenizer", "save_tokenizer", "word_list"]


CHAIN_NAMES = (
    "compute_pay scan fetch weigh rank tally probe audit_row merge check_tax sum_up price assess derive lookup trace "
    "pull_pay view_pay settle_sum estimate resolve combine"
).split()
"""Names that composite tools may get; the catalogue proposer draws from the same list."""

LIST_NAMES = "enum_ids show_all roster".split()
"""Names that a listing tool may get beside its own."""

RECORD_NAMES = "pull_file view_row open_row".split()
"""Names that a record tool may get beside its own."""

_PROSE = (
    "you audit payroll check pay settle every all each employee employees department staff of the for in please run review process "
    "close this week month time sheets timesheets people team handle tools rules after do then first plan records record submit step "
    "notes note new out done none todo list not empty follow uses code must be escalated contractor intern kind hours rate value amount "
    "ok error blocked repeat rewritten already settled unknown bad arguments call calls no more than one tool REG INT CON E D true "
    "false null with and or is are has to a an by on at it pending left open items item seen cut same as above read before finish when "
    "if last next wrong missing correct use only never always again"
).split()
_TOOLS = "list_employees get_record calc submit_pay escalate finish".split()
WORDS = tuple(dict.fromkeys([*_PROSE, *_TOOLS, *LIST_NAMES, *RECORD_NAMES, *CHAIN_NAMES]))
"""The payroll miniature, prose and name pools, in id order."""

_PIECES = r" ?[A-Za-z_]+|\d| ?[^\sA-Za-z_\d]|\s"
_SPACED_MARKS = (" .", " ,")


def word_list() -> tuple[str, ...]:
    """The closed word list in id order, without repeats: `WORDS`, then every family's miniature in the order of `coevo.tasks.FAMILIES`."""
    modules = (import_module(f"{path.partition(':')[0]}.mini") for path in FAMILIES.values())
    return tuple(dict.fromkeys([*WORDS, *(word for module in modules for word in module.WORDS)]))


def build_tokenizer() -> dict[str, object]:
    """The content of `tokenizer.json`: BPE with no merges, so that a piece is a known word or single bytes."""
    alphabet = _byte_alphabet()
    spell = dict(enumerate(alphabet))
    pieces = [*SPECIAL_TOKENS, *sorted(alphabet)]
    pieces += ["".join(spell[byte] for byte in f" {word}".encode()) for word in word_list()]
    pieces += ["".join(spell[byte] for byte in mark.encode()) for mark in _SPACED_MARKS]
    while len(pieces) % 64:
        pieces.append(f"<|spare_{len(pieces)}|>")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(index, token) for index, token in enumerate(SPECIAL_TOKENS)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": _PIECES}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": {piece: index for index, piece in enumerate(pieces)},
            "merges": [],
        },
    }


def save_tokenizer(folder: Path) -> None:
    """Write `tokenizer.json` and the two small files that transformers and vLLM read beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(build_tokenizer(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": END, "pad_token": PAD}, indent=1) + "\n", encoding="utf-8")


def _special(index: int, token: str) -> dict[str, object]:
    return {"id": index, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def _byte_alphabet() -> list[str]:
    """The printable stand-in of each byte that ByteLevel tokenizers use: printable Latin-1 as itself, the rest from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    stand_in, shifted = {byte: chr(byte) for byte in printable}, 0
    for byte in range(256):
        if byte not in stand_in:
            stand_in[byte] = chr(256 + shifted)
            shifted += 1
    return [stand_in[byte] for byte in range(256)]
