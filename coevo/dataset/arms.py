"""Which turns are trained on, per arm. One row = one trained turn; arms are compared at equal rows and trained tokens.

Every arm is a function of the same material: the weak model's failed and successful episodes, the expert's corrections of them, its own
episodes, and what it did where a control asked it (`coevo.dataset.controls`). A row's prompt is exactly what was seen at that turn, context
policy applied, and its loss covers exactly that turn. Rows come only from graded episodes of the search stream (I2, I8): successful ones,
failed ones up to the failing turn, and rewritten turns. Order and choice are functions of the seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from coevo.chat import ToolCall, ToolSpec
from coevo.config import Arm, DatasetConfig
from coevo.errors import ConfigError
from coevo.formats.family import ChatFormat
from coevo.identity import derive_seed
from coevo.ports import Tokenizer
from coevo.records import CallRecord, Correction, CorrectionCandidate, Episode, LossSpan, PromptOrigin, TrainingRow, Turn
from coevo.tasks.family import Stream, TaskInstance

__all__ = ["ARMS", "Material", "Takeover", "arm_rows", "chosen_rewrite", "own_turns"]

Wording = Callable[[Correction], str]
"""Which text of a correction is trained on."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """An episode whose first `turn` turns are the weak model's and whose rest is the expert's."""

    episode: Episode
    turn: int


@dataclass(frozen=True, slots=True)
class Material:
    """What rows are made of.

    Attributes:
        corrections: Of localized episodes, verified or not.
        failed: The weak agent's failed episodes by id: at least those that the records below name.
        successes: The weak agent's successful episodes.
        experts: The expert's episodes under the same harness.
        unverified: Rewrites of suspected turns that nothing was replayed for.
        at_random: Rewrites of turns drawn at random.
        at_last: Rewrites of last turns.
        takeovers: Episodes that the expert finished.
        answered: What the expert wrote at turns of successful episodes (`own_turns`).
        tools: What the harness shows: a turn is rendered with them.
    """

    corrections: Sequence[Correction] = ()
    failed: Mapping[str, Episode] = field(default_factory=dict)
    successes: Sequence[Episode] = ()
    experts: Sequence[Episode] = ()
    unverified: Sequence[Correction] = ()
    at_random: Sequence[Correction] = ()
    at_last: Sequence[Correction] = ()
    takeovers: Sequence[Takeover] = ()
    answered: Sequence[Correction] = ()
    tools: Sequence[ToolSpec] = ()

    @property
    def verified(self) -> list[Correction]:
        """The verified corrections."""
        return [correction for correction in self.corrections if correction.verified]


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes the rows of one arm."""

    arm: Arm
    material: Material
    tokenizer: Tokenizer
    chat_format: ChatFormat
    config: DatasetConfig
    random: Random

    def rewritten(self, corrections: Iterable[Correction], text: Wording) -> list[TrainingRow]:
        """One row per correction: the prompt that was seen, and `text` as the turn."""
        rows = []
        for correction in corrections:
            episode = self.material.failed[correction.episode_id]
            completion = self.closed(text(correction))
            rows.append(_row(self.arm, episode, correction.turn, completion, PromptOrigin.SAMPLED, "rewritten_turn"))
        return rows

    def closed(self, text: str) -> tuple[int, ...]:
        """Ids of a written turn with its end."""
        return tuple(self.tokenizer.encode(text + self.chat_format.end_of_turn))

    def written(self, episode: Episode, turns: Iterable[int], source: str) -> list[TrainingRow]:
        """The expert's turns of an episode, in the weak model's format."""
        return [
            _row(self.arm, episode, index, self.closed(episode.turns[index].completion_text), PromptOrigin.RENDERED, source)
            for index in turns
        ]

    def mixed(self, rows: Sequence[TrainingRow], *, wording: Wording | None = None) -> list[TrainingRow]:
        """The first `config.rows` less the weak model's own share, with that share, shuffled."""
        share = 0.0 if self.config.self_success == "none" else self.config.self_success_share
        kept = list(rows[: round(self.config.rows * (1 - share))])
        out = kept + self.own(round(len(kept) * share / (1 - share)), wording=wording)
        self.random.shuffle(out)
        return out

    def own(self, wanted: int, *, wording: Wording | None = None) -> list[TrainingRow]:
        """Successful turns of the weak model, chosen by the configured rule; `wording` of confirmed ones, the expert's by default."""
        match self.config.self_success:
            case "confirmed" | "confirmed_random":
                rows = self.confirmed(wording or _first_text)
                return self.random.sample(rows, min(wanted, len(rows)))
            case "contrast":
                chosen = self.contrasting(wanted)
            case _:
                chosen = self.drawn(wanted)
        return [self.sampled("self_success", episode, index) for episode, index in chosen]

    def confirmed(self, wording: Wording) -> list[TrainingRow]:
        """Own turns at which the expert makes the very call that the weak model made."""
        episodes = {episode.id: episode for episode in self.material.successes}
        rows = []
        for answer in _offered(self.material.answered):
            episode = episodes[answer.episode_id]
            if answer.candidates[0].call == episode.turns[answer.turn].call:
                rows.append(_row(self.arm, episode, answer.turn, self.closed(wording(answer)), PromptOrigin.SAMPLED, "confirmed_turn"))
        return rows

    def drawn(self, wanted: int) -> list[tuple[Episode, int]]:
        """Successful turns, any."""
        pool = self.successful()
        return self.random.sample(pool, min(wanted, len(pool)))

    def contrasting(self, wanted: int) -> list[tuple[Episode, int]]:
        """Successful turns that called what the failed turns called, each tool as often as they did: a rare decision must not crowd out the
        one that most corrections turn around, or they over-generalize (EXPERIMENTS.md). What a tool lacks, the others give.
        """
        pool, decided = self.successful(), _failed_tools(self.material.verified, self.material.failed)
        pools = {tool: [turn for turn in pool if _called(turn) == tool] for tool in sorted(decided)}
        quotas: Counter[str] = Counter()
        while quotas.total() < wanted and (left := [tool for tool, turns in pools.items() if len(turns) > quotas[tool]]):
            quotas[max(left, key=lambda tool: decided[tool] / (quotas[tool] + 1))] += 1
        return [turn for tool, turns in pools.items() for turn in self.random.sample(turns, quotas[tool])]

    def successful(self) -> list[tuple[Episode, int]]:
        """Usable turns of successful episodes."""
        return self.usable(episode for episode in self.material.successes if episode.success)

    def bare(self, call: CallRecord) -> str:
        """A turn without a strategy sentence."""
        return self.chat_format.render_turn("", ToolCall(call.name, call.arguments), self.material.tools)

    def usable(self, episodes: Iterable[Episode]) -> list[tuple[Episode, int]]:
        """Turns that called a tool, were not refused and were not cut off by the token limit."""
        end = self.tokenizer.encode(self.chat_format.end_of_turn)[-1]

        def fits(turn: Turn) -> bool:
            return turn.call is not None and not turn.result_error and turn.completion_token_ids[-1:] == (end,)

        return [(episode, index) for episode in episodes for index, turn in enumerate(episode.turns) if fits(turn)]

    def sampled(self, source: str, episode: Episode, index: int) -> TrainingRow:
        """A turn of the weak model, with the ids that it was sampled as."""
        return _row(self.arm, episode, index, episode.turns[index].completion_token_ids, PromptOrigin.SAMPLED, source)


def _correction(maker: _Maker) -> list[TrainingRow]:
    return maker.mixed(maker.rewritten(maker.material.verified, lambda one: chosen_rewrite(one, maker.config.selection).text))


def _highest_gain(maker: _Maker) -> list[TrainingRow]:
    return maker.mixed(maker.rewritten(maker.material.verified, lambda one: chosen_rewrite(one, "highest_gain").text))


def _unverified(maker: _Maker) -> list[TrainingRow]:
    return maker.mixed(maker.rewritten(_offered(maker.material.unverified), _first_text))


def _call_only(maker: _Maker) -> list[TrainingRow]:
    rows = maker.rewritten(maker.material.verified, lambda one: maker.bare(chosen_rewrite(one, maker.config.selection).call))
    return maker.mixed(rows, wording=lambda one: maker.bare(one.candidates[0].call))


def _imitation(maker: _Maker) -> list[TrainingRow]:
    order = [episode for episode in maker.material.experts if episode.success]
    maker.random.shuffle(order)
    rows = [row for episode in order for row in maker.written(episode, range(len(episode.turns)), "expert_turn")]
    rows = rows[: maker.config.rows]
    maker.random.shuffle(rows)
    return rows


def _imitation_full(maker: _Maker) -> list[TrainingRow]:
    """Episode by episode, so that a cut at the end parts at most one; the trainer draws its own order."""
    share = 0.0 if maker.config.self_success == "none" else maker.config.self_success_share
    experts = [episode for episode in maker.material.experts if episode.success]
    own = [episode for episode in maker.material.successes if episode.success]
    maker.random.shuffle(experts)
    maker.random.shuffle(own)
    written: Iterator[list[TrainingRow]] = (maker.written(one, range(len(one.turns)), "expert_turn") for one in experts)
    sampled: Iterator[list[TrainingRow]] = ([maker.sampled("self_success", *turn) for turn in maker.usable([one])] for one in own)
    rows: list[TrainingRow] = []
    from_own = 0
    while len(rows) < maker.config.rows:
        owed = share * (len(rows) + 1) > from_own
        part = next(sampled if owed else written, None)
        if part is None:
            break
        from_own += len(part) if owed else 0
        rows += part
    return rows[: maker.config.rows]


def _expert_finish(maker: _Maker) -> list[TrainingRow]:
    rows: list[TrainingRow] = []
    for one in maker.material.takeovers:
        if one.episode.success:
            rows += maker.written(one.episode, range(one.turn, len(one.episode.turns)), "expert_finish")
    maker.random.shuffle(rows)
    return maker.mixed(rows)


def _self_success(maker: _Maker) -> list[TrainingRow]:
    return maker.own(maker.config.rows)


def _at_random(maker: _Maker) -> list[TrainingRow]:
    return maker.mixed(maker.rewritten(_offered(maker.material.at_random), _first_text))


def _at_last(maker: _Maker) -> list[TrainingRow]:
    return maker.mixed(maker.rewritten(_offered(maker.material.at_last), _first_text))


def _mask_failed(maker: _Maker) -> list[TrainingRow]:
    """Only turns before the failing one: a verified continuation has proven them, what comes later acts on a spoiled state (I2)."""
    rows = []
    for correction in maker.material.verified:
        before = maker.usable([maker.material.failed[correction.episode_id]])
        rows += [maker.sampled("before_the_failure", episode, index) for episode, index in before if index < correction.turn]
    maker.random.shuffle(rows)
    return maker.mixed(rows)


ARMS: dict[Arm, tuple[Callable[[_Maker], list[TrainingRow]], str]] = {
    Arm.CORRECTION: (_correction, "correction rows"),
    Arm.CORRECTION_UNVERIFIED: (_unverified, "correction unverified rows"),
    Arm.CORRECTION_CALL_ONLY: (_call_only, "correction call only rows"),
    Arm.CORRECTION_HIGHEST_GAIN: (_highest_gain, "correction rows"),
    Arm.IMITATION: (_imitation, "imitation rows"),
    Arm.IMITATION_FULL: (_imitation_full, "imitation full rows"),
    Arm.EXPERT_FINISH: (_expert_finish, "expert finish rows"),
    Arm.SELF_SUCCESS: (_self_success, "self success rows"),
    Arm.RANDOM_TURN: (_at_random, "random turn rows"),
    Arm.LAST_TURN: (_at_last, "last turn rows"),
    Arm.MASK_FAILED: (_mask_failed, "mask failed rows"),
}
"""How each arm's rows are made, and the name of its random stream; the two rules of selection share one, for the same own turns."""


def arm_rows(
    arm: Arm, material: Material, *, tokenizer: Tokenizer, chat_format: ChatFormat, config: DatasetConfig, seed: int
) -> list[TrainingRow]:
    """The rows of an arm, at most `config.rows`.

    Args:
        arm: Which.
        material: What there is.
        tokenizer: Of the weak model.
        chat_format: Its format.
        config: Sizes, shares and rules.
        seed: Of choice and order.

    Raises:
        ConfigError: An episode of another stream than search.
    """
    make, stream = ARMS[arm]
    return make(_Maker(arm, material, tokenizer, chat_format, config, Random(derive_seed(stream, seed))))


def own_turns(
    material: Material, wanted: int, *, tokenizer: Tokenizer, chat_format: ChatFormat, config: DatasetConfig, seed: int
) -> list[tuple[Episode, int]]:
    """Turns of the weak model at which to ask the expert whether it would act the same, the same for every arm: chosen as `contrast`
    chooses, or any (`dataset.self_success: confirmed`, `confirmed_random`). Fewer than `wanted` where there are no more.
    """
    maker = _Maker(Arm.CORRECTION, material, tokenizer, chat_format, config, Random(derive_seed("own turns to confirm", seed)))
    return maker.contrasting(wanted) if config.self_success == "confirmed" else maker.drawn(wanted)


def chosen_rewrite(correction: Correction, selection: str) -> CorrectionCandidate:
    """The candidate of a verified correction to train on: its own choice (lowest student NLL), or the verified one that gains most."""
    if selection != "highest_gain":
        return correction.candidates[correction.chosen]
    sound = [one for one in correction.candidates if one.schema_valid and one.executed and one.gain_lower is not None]
    return max(sound, key=lambda one: (one.gain_lower or 0.0, one.successes), default=correction.candidates[correction.chosen])


def _offered(corrections: Iterable[Correction]) -> list[Correction]:
    return [correction for correction in corrections if correction.candidates]


def _first_text(correction: Correction) -> str:
    return correction.candidates[0].text


def _failed_tools(corrections: Iterable[Correction], episodes: Mapping[str, Episode]) -> Counter[str]:
    """How often the failed turns called each tool: the decisions that corrections turn around."""
    calls = (episodes[correction.episode_id].turns[correction.turn].call for correction in corrections)
    return Counter(call.name for call in calls if call is not None)


def _called(turn: tuple[Episode, int]) -> str:
    """The tool of a usable turn."""
    call = turn[0].turns[turn[1]].call
    return "" if call is None else call.name


def _row(arm: Arm, episode: Episode, turn: int, completion: tuple[int, ...], origin: PromptOrigin, source: str) -> TrainingRow:
    instance = TaskInstance.parse(episode.spec.task_key)
    if instance.stream is not Stream.SEARCH:
        raise ConfigError("training rows come from the search stream only", seen=instance.key, fix="mine episodes of the search stream")
    prompt = episode.prompt_token_ids(turn)
    return TrainingRow(
        arm=arm.value,
        prompt_token_ids=prompt,
        prompt_origin=origin,
        completion_token_ids=completion,
        loss_span=LossSpan(start=len(prompt), stop=len(prompt) + len(completion)),
        episode_id=episode.id,
        turn=turn,
        task_key=episode.spec.task_key,
        source=source,
    )
