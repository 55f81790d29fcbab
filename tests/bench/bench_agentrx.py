"""Evidence (and a recorded judge) on failed tool-calling episodes with a human label of the failing step, beside trivial guesses.

Run: python tests/bench/bench_agentrx.py DATA [--recording FOLDER --model ID [--style structured]]

DATA holds `tau_dataset_failed.json` and `tau_ground_truth.json` of AgentRx (arXiv 2602.02475, github.com/microsoft/AgentRx, MIT); the data
are not part of this repository. The episodes are conversations with a played customer and have no world here, so there are no checkpoints
and no replay: only detectors that need neither can speak, and silence counts as wrong. Labels are steps, 1-based over all messages; the
target is the root cause. Only root causes of the agent are scored: 21 of 29, so a 95 % interval is about 20 points wide on each side, and
the figures are a smoke test of detectors on foreign episodes, not a ranking. What the data's own grader expected is not read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from coevo.chat import Sampling
from coevo.evaluate.stats import wilson
from coevo.localize.detectors.family import Scene
from coevo.localize.evidence import Depth, strongest
from coevo.localize.judge import JudgeSource, JudgeStyle
from coevo.models.recorded import RecordedSource
from coevo.records import CallRecord, Episode, EpisodeSpec, Grade, MessageRecord, Status, Turn
from coevo.rewrite.llm import LLMRecipe
from coevo.store import LocalSource

WRITES = ("cancel_", "exchange_", "modify_", "return_", "transfer_")
NAMED = 3


@dataclass(frozen=True, slots=True)
class Labelled:
    """An episode, the steps (1-based messages) of its turns, and the labelled step."""

    episode: Episode
    steps: tuple[int, ...]
    messages: int
    label: int


def load(folder: Path) -> list[Labelled]:
    """The episodes whose root cause the annotators gave to the agent."""
    truth = {int(one["trajectory_id"]): one for one in json.loads((folder / "tau_ground_truth.json").read_text(encoding="utf-8"))}
    found = []
    for one in json.loads((folder / "tau_dataset_failed.json").read_text(encoding="utf-8")):
        told = truth[int(one["task_id"])]
        root = next(failure for failure in told["failures"] if failure["failure_id"] == told["root_cause"]["failure_id"])
        if root["failed_agent"] == "Assistant":
            found.append(labelled(one["traj"], str(one["task_id"]), int(root["step_number"])))
    return found


def labelled(messages: Sequence[dict[str, Any]], name: str, label: int) -> Labelled:
    """A conversation as an episode: every assistant message is a turn, and what follows it is its result."""
    calls = [tuple(_call(call) for call in message.get("tool_calls") or ()) for message in messages]
    stored = tuple(
        MessageRecord(role=str(one["role"]), content=str(one["content"] or ""), calls=made)
        for one, made in zip(messages, calls, strict=True)
    )
    turns, steps = [], []
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        result = stored[place + 1].content if place + 1 < len(messages) else ""
        said = json.dumps([call.model_dump() for call in calls[place]]) if calls[place] else stored[place].content
        turns.append(
            Turn(
                message_index=tuple(range(place)),
                prompt_shared=0,
                prompt_suffix=(),
                completion_text=said,
                say=stored[place].content,
                call=calls[place][0] if calls[place] else None,
                executed=calls[place],
                result=result,
                result_error=bool(calls[place]) and result.startswith("Error"),
            )
        )
        steps.append(place + 1)
    spec = EpisodeSpec(task_key=f"agentrx/{name}", world_version="1", harness_hash="", model_id="", sampling=Sampling())
    grade = Grade(success=False, score=0.0)
    episode = Episode(id=spec.id, spec=spec, status=Status.COMPLETED, grade=grade, messages=stored, turns=tuple(turns))
    return Labelled(episode, tuple(steps), len(messages), label)


def _call(call: dict[str, Any]) -> CallRecord:
    return CallRecord(name=call["function"]["name"], arguments=json.loads(call["function"]["arguments"]))


def evidence(one: Labelled, limit: int) -> list[int]:
    """Steps that detectors name, the strongest first."""
    names = {call.name for turn in one.episode.turns for call in turn.executed}
    writes = frozenset(name for name in names if name.startswith(WRITES)) or frozenset({"none of the calls writes"})
    return [one.steps[suspect.turn] for suspect in strongest(Scene(one.episode, writes=writes), limit=limit, depth=Depth.FULL)]


def judged(items: Sequence[Labelled], source: JudgeSource) -> list[int | None]:
    """The step that a judge names first, per episode."""

    async def ask() -> list[int | None]:
        judge = source.open()
        try:
            blames = [await judge.blame(one.episode, k=NAMED) for one in items]
        finally:
            await judge.aclose()
        return [one.steps[blame.turns[0].turn] if blame.turns else None for one, blame in zip(items, blames, strict=True)]

    return asyncio.run(ask())


def row(name: str, items: Sequence[Labelled], guesses: Sequence[int | None]) -> str:
    """Exact matches with their interval, and the mean distance of what was guessed."""
    exact = sum(guess == one.label for one, guess in zip(items, guesses, strict=True))
    away = [abs(guess - one.label) for one, guess in zip(items, guesses, strict=True) if guess is not None]
    low, high = wilson(exact, len(items))
    distance = f"{statistics.mean(away):.1f}" if away else "none"
    return f"{name:36} {exact:2} of {len(items)} exact [{100 * low:.0f}, {100 * high:.0f}] %, distance {distance} over {len(away)} guesses"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the two JSON files")
    parser.add_argument("--recording", help="folder of a recorded judge")
    parser.add_argument("--model", help="model id in that recording")
    parser.add_argument("--style", choices=[str(style) for style in JudgeStyle], default=str(JudgeStyle.STRUCTURED))
    options = parser.parse_args()
    items = load(options.data)
    constant = Counter(one.label for one in items).most_common(1)[0][0]
    trivial: dict[str, Callable[[Labelled], int]] = {
        "last assistant message": lambda one: one.steps[-1],
        f"constant step {constant}, fitted here": lambda one: constant,
    }
    print(f"{'a random message':36} {100 * statistics.mean(1 / one.messages for one in items):.1f} % exact, expected")
    chance = statistics.mean((one.label in one.steps) / len(one.steps) for one in items)
    print(f"{'a random assistant message':36} {100 * chance:.1f} % exact, expected")
    for name, guess in trivial.items():
        print(row(name, items, [guess(one) for one in items]))
    named = [evidence(one, NAMED) for one in items]
    print(row("evidence, strongest", items, [steps[0] if steps else None for steps in named]))
    print(f"label among the {NAMED} strongest: {sum(one.label in steps for one, steps in zip(items, named, strict=True))} of {len(items)}")
    if options.recording:
        recipe = LLMRecipe(RecordedSource(LocalSource(options.recording), options.model or ""))
        print(row(f"judge, {options.style}", items, judged(items, JudgeSource(recipe, JudgeStyle(options.style)))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
