"""A corpus built in parts by several processes, so that a killed build goes on where it stopped.

A part is a file of some hundred demonstrations, written beside and then renamed. Its name carries the digest of the recipe, so a folder
may hold parts of several corpora and never mixes them. The number of processes changes nothing. Limit: the digest covers the recipe and the
vocabulary, not the code that plays; after a change of that, take an empty folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from coevo.errors import ConfigError
from coevo.harness.sandbox import shared_pool
from coevo.identity import content_hash
from coevo.mini.corpus import CorpusPlan, build_corpus, pack
from coevo.mini.tokenizer import save_tokenizer, word_list
from coevo.models.tokenizer import FolderTokenizer
from coevo.tasks import load_family

__all__ = ["CorpusRecipe", "build_parts"]


@dataclass(frozen=True, slots=True)
class CorpusRecipe:
    """What determines a corpus. Frozen and picklable.

    Attributes:
        families: Names, in turn; at least one.
        seed: Corpus seed.
        plan: Mixture and size.
        part_episodes: Demonstrations per part; 700 take ten to twenty seconds of one core.
    """

    families: tuple[str, ...]
    seed: int
    plan: CorpusPlan = field(default_factory=CorpusPlan)
    part_episodes: int = 700

    def __post_init__(self) -> None:
        if not self.families or min(self.plan.episodes, self.part_episodes) < 1:
            seen = f"families {self.families}, {self.plan.episodes} episodes in parts of {self.part_episodes}"
            raise ConfigError("a corpus of nothing", seen=seen, fix="name a family, and 1 episode or more")

    @property
    def digest(self) -> str:
        """12 hex digits over recipe and vocabulary."""
        return content_hash([asdict(self), *word_list()])[:12]


@dataclass(frozen=True, slots=True)
class _Part:
    """One process's work."""

    recipe: CorpusRecipe
    folder: str
    first: int

    @property
    def path(self) -> Path:
        return Path(self.folder) / f"rows-{self.recipe.digest}-{self.first:07d}.npz"


def build_parts(
    recipe: CorpusRecipe, folder: Path, *, processes: int = 1, on_part: Callable[[int, int], None] | None = None
) -> tuple[Path, ...]:
    """Write the parts that `folder` lacks, and the tokenizer as `folder/tokenizer`.

    Args:
        recipe: The corpus.
        folder: Where parts are kept.
        processes: That build at the same time; 1 builds in this process.
        on_part: Called with (parts done, parts in all) after each.

    Returns:
        The parts in order; each an `.npz` of the arrays of `coevo.mini.corpus.pack`.
    """
    save_tokenizer(folder / "tokenizer")
    parts = [_Part(recipe, str(folder), first) for first in range(0, recipe.plan.episodes, recipe.part_episodes)]
    missing = [part for part in parts if not part.path.exists()]
    done = len(parts) - len(missing)
    for _ in _each(missing, processes):
        done += 1
        if on_part:
            on_part(done, len(parts))
    return tuple(part.path for part in parts)


def _each(missing: Sequence[_Part], processes: int) -> Iterator[None]:
    if processes == 1:
        yield from map(_write, missing)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_write, missing)


def _write(part: _Part) -> None:
    recipe = part.recipe
    rows = build_corpus(
        replace(recipe.plan, episodes=min(recipe.part_episodes, recipe.plan.episodes - part.first)),
        families=[load_family(name) for name in recipe.families],
        tokenizer=FolderTokenizer(Path(part.folder) / "tokenizer"),
        sandboxes=shared_pool(),
        seed=recipe.seed,
        first=part.first,
    )
    fresh = part.path.with_suffix(f".{os.getpid()}.npz")
    np.savez(fresh, **pack(rows))  # type: ignore[arg-type]
    fresh.rename(part.path)
