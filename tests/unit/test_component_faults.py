"""A component that is switched off counts against its harness, even where the episode succeeds, and decides who wins a race.

The ablation says of every evolved component in how many episodes that happened, and so do the page and the terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coevo.config import EvolveConfig
from coevo.evolve.ablate import ablate
from coevo.evolve.evaluator import Play
from coevo.evolve.faults import faults_by_component, faulty_episodes
from coevo.evolve.propose import Edit
from coevo.evolve.race import Entrant, Raced, best_of
from coevo.evolve.rounds import SearchRecord
from coevo.evolve.search import SearchTask
from coevo.evolve.simulated import SimulatedEvaluator
from coevo.harness.bundle import HarnessBundle
from coevo.records import Episode
from coevo.report.evolution import ablation_numbers, evolution_lines
from coevo.tasks import load_family
from coevo.tasks.family import Size
from tests.unit.shelf import base, play_script, solution

CRASH = "def before_tool(event, state):\n    return event['nothing']\n"
RARE = "def after_tool(event, state):\n    return {'note': event['result']['price']} if event['call']['name'] == 'discard' else None\n"


def test_successes_with_a_dead_hook_are_counted() -> None:
    harness = base().replace(hooks={"crash": CRASH, "rare": RARE})
    episodes = [play_script(seed, solution(seed), bundle=harness) for seed in range(8)]
    assert all(episode.success for episode in episodes), "the session goes on without the hook"
    assert faulty_episodes(episodes) == 8
    rare = sum(any(call == "discard" for call, _ in solution(seed)) for seed in range(8))
    assert rare > 0
    assert faults_by_component(episodes) == {"hook:crash": 8, "hook:rare": rare}


def test_a_sound_harness_has_none() -> None:
    episodes = [play_script(seed, solution(seed)) for seed in range(3)]
    assert faulty_episodes(episodes) == 0
    assert faults_by_component(episodes) == {}


def test_an_edit_is_not_credited_with_what_its_crashing_hook_left_behind() -> None:
    """Two edits turn the same failures; the one whose hook crashed everywhere does not win, and alone it gains nothing."""
    incumbent = {str(seed): play_script(seed, solution(seed)[: None if seed % 2 else -1]) for seed in range(8)}
    races = []
    for hooks in ({"crash": CRASH}, {}):
        harness = base().replace(hooks=hooks, system_prompt="do well .")
        played = {str(seed): play_script(seed, solution(seed), bundle=harness) for seed in range(8)}
        edit = Edit("prompt", "m", "h", (), (), ("r",), harness)
        races.append(Raced(Entrant(edit, base().hash, incumbent), played).record(incumbent))
    assert [race.delta for race in races] == [0.5, 0.5]
    assert [race.faulty for race in races] == [8, 0]
    assert best_of(races) == 1
    assert best_of(races[:1]) is None


class Clumsy:
    """Coins, on whose first items a harness with these hooks shows what they did on a shelf: `crash` always, `rare` at a discarded book."""

    def __init__(self, shelf: Sequence[Episode]) -> None:
        self.coins, self.shelf = SimulatedEvaluator(1), shelf

    def play(self, plays: Sequence[Play]) -> list[Mapping[str, Episode]]:
        return [self._marked(play, episodes) for play, episodes in zip(plays, self.coins.play(plays), strict=True)]

    def _marked(self, play: Play, episodes: Mapping[str, Episode]) -> Mapping[str, Episode]:
        turns = [one.turns if "crash" in play.bundle.hooks else () for one in self.shelf]
        marked = {item: episodes[item].model_copy(update={"turns": shown}) for item, shown in zip(play.items, turns, strict=False)}
        return {**episodes, **marked}


def test_the_ablation_says_where_a_component_was_off() -> None:
    """In the record, the twin of the report and the terminal; None for what has no moment of its own."""
    family = load_family("payroll")
    h0 = HarnessBundle.load(family.base_harness(Size.MINI))
    best = h0.replace(hooks={"crash": CRASH, "rare": RARE}, system_prompt="do well .")
    shelf = [play_script(seed, solution(seed), bundle=base().replace(hooks={"crash": CRASH, "rare": RARE})) for seed in range(8)]
    rare = faults_by_component(shelf)["hook:rare"]
    task = SearchTask(family, Size.MINI, 1, EvolveConfig(ablate_instances=12), 1)
    record = ablate(h0, best, task, evaluator=Clumsy(shelf))
    assert {one.component: one.off for one in record.components} == {"hook:crash": 8, "hook:rare": rare, "prompt": None}
    numbers = ablation_numbers(record)
    assert numbers is not None
    assert {row["component"]: row["off"] for row in numbers["components"]}["hook:crash"] == 8
    found = SearchRecord(base_hash=h0.hash, best_hash=best.hash, best=best.files(), rounds=(), stopped="all generations used", episodes=0)
    lines = {line.split(":", 2)[1]: line for line in evolution_lines(found, record, None) if line.startswith("  hook:")}
    assert "switched off in 8 of 12 episodes" in lines["crash"]
    assert f"switched off in {rare} of 12 episodes" in lines["rare"]
