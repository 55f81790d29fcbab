"""What a pretrained embedded model must show before it may ship, fixed before it was trained.

Measured on held-out instances of the pretraining stream only, three templates, temperature 0.7. The bands leave room above and below: a
base harness that already solves the task leaves evolution nothing to find, a hand-made harness that solves everything leaves correction
nothing to mend. The bands were corrected once, before any final weights existed: the first ones (0.40 to 0.85, gap 0.15) had been worked
out for the first template alone, while over three templates the demonstrator's own habits allow about 0.37 under a perfect harness
(EXPERIMENTS.md tells when and what was known then).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GATES", "GATE_INSTANCES", "GATE_SEED_FIRST", "Gate", "check_gates"]

GATE_SEED_FIRST = 1_000_000
"""First instance seed of the gates; the corpus uses seeds below."""
GATE_INSTANCES = 200
"""Instances per harness."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A closed band for one success rate, or for the difference of two."""

    name: str
    low: float
    high: float


GATES = (
    Gate("base", 0.10, 0.50),
    Gate("hand_made", 0.25, 0.85),
    Gate("hand_made - base", 0.08, 1.0),
)
"""Success under the base harness, under the hand-made harness (`coevo.mini.harnesses.hand_made`), and the gap."""


def check_gates(base: float, hand_made: float) -> list[str]:
    """Failures in words; empty when every gate holds."""
    values = {"base": base, "hand_made": hand_made, "hand_made - base": hand_made - base}
    return [
        f"{gate.name} = {values[gate.name]:.3f}, outside [{gate.low}, {gate.high}]"
        for gate in GATES
        if not gate.low <= values[gate.name] <= gate.high
    ]
