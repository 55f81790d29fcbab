"""`python -m jobs.convert NAME|FILE.gguf FOLDER`: a Hugging Face folder from a packaged model or a GGUF file, for `weak.model`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jobs.exits import guarded

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m jobs.convert", description="Make a Hugging Face folder from GGUF weights.")
    parser.add_argument("source", help="a packaged model (smollm2) or a .gguf file")
    parser.add_argument("folder", type=Path, help="folder to write; must hold no model yet")
    parser.add_argument("--end-of-turn", default="<|im_end|>", help="token that closes a turn (default: %(default)s)")
    given = parser.parse_args(arguments)

    def action() -> int:
        from cluster.convert import PACKAGED, convert_gguf, find_packaged

        packaged = PACKAGED.get(given.source)
        source = Path(given.source) if packaged is None else find_packaged(given.source)
        folder = convert_gguf(source, given.folder, end_of_turn=given.end_of_turn if packaged is None else packaged.end_of_turn)
        print(f"{folder}: set weak.model to this folder")
        return 0

    return guarded(action)


if __name__ == "__main__":
    sys.exit(main())
