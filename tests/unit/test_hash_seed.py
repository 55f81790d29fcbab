"""World, policy and grader are functions of the instance alone: a second process under another string hash agrees on every byte (I4, T7).

One instance per family and size is opened, solved by the reference and graded here, and again in one process whose sets and dictionaries
of strings are ordered otherwise.
"""

from __future__ import annotations

import os
import subprocess
import sys

from coevo.identity import content_hash
from coevo.tasks import FAMILIES, load_family
from coevo.tasks.family import Size, Stream, Style
from coevo.tasks.walks import Walk

TWIN = "from tests.unit.test_hash_seed import digests\nfor line in digests():\n    print(line)\n"


def digests() -> list[str]:
    """`family size opened played graded` per family and size."""
    lines = []
    for name in FAMILIES:
        family = load_family(name)
        for size in Size:
            if not family.templates(size):
                continue
            world = family.open(family.instance(Stream.PRETRAIN, 11, size, diversity=len(family.templates(size))))
            opened = content_hash([world.instruction, content_hash(world.snapshot())])
            walk = Walk(world)
            assert walk.follow(family.policy(Style.REACTIVE)) is None
            played = content_hash([world.log_hash, content_hash(world.snapshot()), *walk.observations])
            lines.append(" ".join((name, size, opened, played, content_hash(world.grade().model_dump(mode="json")))))
    return lines


def test_a_second_process_with_another_hash_seed_agrees() -> None:
    """I4, T7: for every family and size; pytest's own process has a random hash seed, so that repeated runs compare other orders."""
    mine = digests()
    assert {line.split()[0] for line in mine} == set(FAMILIES)
    assert len(mine) >= 2 * len(FAMILIES)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "4021"}
    theirs = subprocess.run([sys.executable, "-c", TWIN], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert theirs.returncode == 0, theirs.stderr[-2000:]
    assert theirs.stdout.splitlines() == mine
