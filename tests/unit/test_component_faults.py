"""A component that is switched off counts against its harness, even where the episode succeeds, and decides who wins a race."""

from __future__ import annotations

from coevo.evolve.faults import faults_by_component, faulty_episodes
from coevo.evolve.propose import Edit
from coevo.evolve.race import Entrant, Raced, best_of
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
