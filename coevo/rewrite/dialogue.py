"""What an LLM expert reads: the weak agent's own view, told as a conversation that any chat endpoint takes.

System message: how to answer, the agent's instructions, the tools with their schemas. Then the task and the turns so far, an agent's turn
as the JSON that the expert itself writes, results as user messages. Roles alternate strictly (neighbours are merged), because many chat
templates refuse anything else, and nothing is changed behind what was sent before, so that the endpoint's prefix cache holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from coevo.chat import Message, Role, ToolSpec
from coevo.formats.family import ChatFormat
from coevo.records import Episode, Turn
from coevo.rewrite.turn import turn_json

__all__ = ["DIALOGUE_VERSION", "play_dialogue", "rewrite_dialogue"]

DIALOGUE_VERSION = 1
"""Part of an expert's identity: another wording is another expert."""

_HOW = """You are an expert at the task below. You act through tools, one call per turn.
Answer with JSON only, in this shape:
{"strategy": "ONE SENTENCE: WHAT TO DO NOW AND WHY", "call": {"name": "TOOL", "arguments": {"ARGUMENT": "VALUE"}}}
The strategy is one short sentence. Rely on nothing but what the conversation shows."""

_SHOWN = """
<turn>
{turn}
</turn>
The result was:
<result>
{result}
</result>
"""

_REWRITE = f"""The agent that played the turns above failed the task. Its next turn is the one to correct. It wrote:{_SHOWN}\
When the task ended, these checks failed:
{{checks}}

Write the turn that the agent should have written at this point instead: one strategy sentence and one tool call, as JSON. Use only what
the agent could see before this turn; the checks tell what went wrong, they are not known to the agent and must not be mentioned."""

_CONFIRM = f"""The agent that played the turns above solved the task. Its next turn was:{_SHOWN}
Write the turn that you would play at this point: one strategy sentence and one tool call, as JSON. Where the agent's call is right, make
the same call. Use only what the agent could see before this turn."""


def play_dialogue(messages: Sequence[Message], tools: Sequence[ToolSpec], chat_format: ChatFormat) -> tuple[Message, ...]:
    """The context of an agent as the expert reads it.

    Args:
        messages: What the weak model sees, system message first.
        tools: The tools shown.
        chat_format: Syntax of the assistant messages.
    """
    merged: list[Message] = []
    for message in _told(messages, tools, chat_format):
        if merged and merged[-1].role is message.role:
            merged[-1] = Message(message.role, f"{merged[-1].content}\n\n{message.content}")
        else:
            merged.append(message)
    return tuple(merged)


def rewrite_dialogue(
    visible: Sequence[Message], episode: Episode, turn: int, *, tools: Sequence[ToolSpec], chat_format: ChatFormat
) -> tuple[Message, ...]:
    """The context before `turn`, the turn itself, and of a failed episode what the checks said at the end.

    Args:
        visible: What the weak model saw at that turn.
        episode: The episode; of a successful one the expert is asked whether it would act the same.
        turn: The turn to rewrite.
        tools: The tools shown.
        chat_format: Syntax of the assistant messages.
    """
    told = play_dialogue(visible, tools, chat_format)
    question = Message(Role.USER, _question(episode, episode.turns[turn]))
    if told and told[-1].role is Role.USER:
        return (*told[:-1], Message(Role.USER, f"{told[-1].content}\n\n{question.content}"))
    return (*told, question)


def _question(episode: Episode, turn: Turn) -> str:
    if episode.success:
        return _CONFIRM.format(turn=turn.completion_text.strip(), result=turn.result.strip())
    checks = episode.grade.checkpoints if episode.grade is not None else ()
    failed = [f"- {check.name}: {check.feedback}" if check.feedback else f"- {check.name}" for check in checks if not check.passed]
    listed = "\n".join(failed) or f"- the episode ended with status {episode.status} before it could be graded as a success"
    return _REWRITE.format(turn=turn.completion_text.strip(), result=turn.result.strip(), checks=listed)


def _told(messages: Sequence[Message], tools: Sequence[ToolSpec], chat_format: ChatFormat) -> Iterator[Message]:
    for message in messages:
        match message.role:
            case Role.SYSTEM:
                yield Message(Role.SYSTEM, _head(message.content, tools))
            case Role.ASSISTANT:
                parsed = chat_format.parse(message.content, tools)
                known = parsed.call is not None
                yield Message(Role.ASSISTANT, _dump(turn_json(parsed.say, parsed.call)) if known and parsed.call else message.content)
            case Role.TOOL:
                yield Message(Role.USER, f"Result: {message.content}")
            case Role.USER:
                yield Message(Role.USER, message.content)


def _head(system: str, tools: Sequence[ToolSpec]) -> str:
    lines = (_dump({"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}) for tool in tools)
    return f"{_HOW}\n\n# Instructions of the agent\n{system.strip()}\n\n# Tools\n" + "\n".join(lines)


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
