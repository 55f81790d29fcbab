"""Regression lock of world version 1 of payroll: 200 mini and 50 standard worlds, byte for byte, whatever code builds them.

The shipped weights were pretrained on these worlds and stored episodes replay in them. When this fails, `world_version` must rise.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream

FAMILY = load_family("payroll")
LOCKED = json.loads((Path(__file__).parents[1] / "data" / "tasks" / "payroll_worlds.v1.json").read_text())


@pytest.mark.parametrize("size", list(LOCKED))
def test_worlds_of_version_1_never_change(size: str) -> None:
    """T7: seeds 0, 1, ... over all four streams in turn, templates drawn from those that version 1 began with."""
    assert FAMILY.world_version == "1"
    streams, locked = list(Stream), LOCKED[size]
    for seed, digest in enumerate(locked["worlds"]):
        instance = FAMILY.instance(streams[seed % len(streams)], seed, Size(size), diversity=locked["diversity"])
        assert hashlib.sha256(FAMILY.open(instance).snapshot()).hexdigest()[:16] == digest, instance.key
