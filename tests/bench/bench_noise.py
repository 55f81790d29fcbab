"""How much of the embedded model's outcome is luck: the same instances played twice under the base harness, family by family.

Run: OMP_NUM_THREADS=1 python tests/bench/bench_noise.py [--families payroll stock] [--instances 400] [--diversity 1]

Prints the success rate and the flip rate, the share of instances on which the two plays differ, each with its 95 % interval. They are what
`coevo.evolve.simulated.MINI_NOISE` stands for. Instances are of the pretraining stream behind those of the gates: fresh to the model, and
spent by no search, selection or test.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from coevo.chat import Sampling
from coevo.episode import Agent, play
from coevo.evaluate.stats import wilson
from coevo.formats.mini import MiniFormat
from coevo.harness.bundle import HarnessBundle
from coevo.harness.sandbox import shared_pool
from coevo.mini.gates import GATE_INSTANCES, GATE_SEED_FIRST
from coevo.mini.model import mini_path
from coevo.models.tokenizer import FolderTokenizer
from coevo.tasks import FAMILIES, load_family
from coevo.tasks.family import Size, Stream, TaskFamily
from jobs.pretrain import open_engine

CONTEXT = 1024


async def twice(family: TaskFamily, agent: Agent, count: int, diversity: int) -> tuple[list[bool], list[bool]]:
    """Successes of the two plays, instance by instance."""
    first = GATE_SEED_FIRST + 10 * GATE_INSTANCES
    chosen = [family.instance(Stream.PRETRAIN, seed, Size.MINI, diversity=diversity) for seed in range(first, first + count)]

    async def won(repeat: int) -> list[bool]:
        plays = (play(one, family=family, agent=agent, sandboxes=shared_pool(), repeat=repeat) for one in chosen)
        return [episode.success for episode in await asyncio.gather(*plays)]

    return await won(0), await won(1)


def shown(hits: int, trials: int) -> str:
    """A share with its interval."""
    low, high = wilson(hits, trials)[:2]
    return f"{hits / trials:.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    """Play and print a line per family."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--instances", type=int, default=400)
    parser.add_argument("--diversity", type=int, default=1)
    given = parser.parse_args()
    model = open_engine(mini_path())
    tokenizer = FolderTokenizer(mini_path())
    for name in given.families:
        family = load_family(name)
        bundle = HarnessBundle.load(family.base_harness(Size.MINI))
        agent = Agent(model, bundle, MiniFormat(), tokenizer, CONTEXT, Sampling(0.7, 1.0, 96))
        one, other = asyncio.run(twice(family, agent, given.instances, given.diversity))
        flips = sum(a != b for a, b in zip(one, other, strict=True))
        print(f"{name}: success {shown(sum(one) + sum(other), 2 * len(one))}, flips {shown(flips, len(one))}", flush=True)
    asyncio.run(model.aclose())


if __name__ == "__main__":
    main()
