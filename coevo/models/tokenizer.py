"""Tokenizer of a model folder, through the `tokenizers` library alone (no transformers, no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer as Backend

from coevo.errors import PrerequisiteError, boundary

__all__ = ["FolderTokenizer"]


class FolderTokenizer:
    """`tokenizer.json` of a Hugging Face folder. Adds no special tokens; recognises them in the text.

    Encoding is memoised per string: an episode renders the same messages again at every turn.
    """

    def __init__(self, folder: str | Path) -> None:
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise PrerequisiteError("the model folder has no fast tokenizer", seen=str(path), fix="save the tokenizer as tokenizer.json")
        with boundary(PrerequisiteError, "the tokenizer could not be read", fix=f"check {path}"):
            self._backend = Backend.from_file(str(path))
        self._encode = lru_cache(maxsize=50_000)(self._encode_once)

    def _encode_once(self, text: str) -> tuple[int, ...]:
        return tuple(self._backend.encode(text, add_special_tokens=False).ids)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        return list(self._encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def token_id(self, token: str) -> int:
        """Id of one token. Raises `PrerequisiteError` when the vocabulary lacks it."""
        found = self._backend.token_to_id(token)
        if found is None:
            raise PrerequisiteError(
                "the tokenizer lacks a token of the chat format", seen=token, fix="use the format the model was trained with"
            )
        return int(found)

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))
