"""The stored nouns. Every record is immutable, versioned, and JSON-serialisable without loss.

Axis suffixes used in the package: `_E` episode, `_U` turn, `_K` token, `_I` instance, `_R` repeat, `_H` harness.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field

from coevo.chat import Sampling
from coevo.identity import content_hash

__all__ = [
    "Adapter",
    "Attempt",
    "CallRecord",
    "Checkpoint",
    "Comparison",
    "Correction",
    "CorrectionCandidate",
    "Cost",
    "Episode",
    "EpisodeSpec",
    "ExpertUse",
    "Firing",
    "Grade",
    "Localization",
    "LocalizationCandidate",
    "LossSpan",
    "Measurement",
    "MessageRecord",
    "PromptOrigin",
    "Proposal",
    "Record",
    "RejectedRewrite",
    "Status",
    "TrainingRow",
    "Turn",
    "UsageRecord",
    "Verdict",
]


class Record(BaseModel):
    """Base of stored records: frozen, unknown keys refused, `schema_version` written into each."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=False)

    schema_version: int = 1

    def to_bytes(self) -> bytes:
        """Canonical JSON: equal records give equal bytes."""
        return orjson.dumps(self.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse what `to_bytes` wrote."""
        return cls.model_validate(orjson.loads(data))


class Status(StrEnum):
    """How an episode ended. Only `INFRA_ERROR` is not a measurement of the agent."""

    COMPLETED = "completed"
    """The environment reached its terminal state (the agent called finish and the world accepted)."""
    MAX_TURNS = "max_turns"
    """Turn limit of the harness reached."""
    MAX_TOKENS = "max_tokens"
    """Completion-token limit of the episode reached."""
    CONTEXT_OVERFLOW = "context_overflow"
    """The next prompt does not fit the model's context."""
    PARSE_FAILURES = "parse_failures"
    """Too many consecutive turns without a parseable tool call."""
    INFRA_ERROR = "infra_error"
    """Backend or worker trouble: retried, then owed; never graded."""


class Checkpoint(BaseModel):
    """One weighted condition on the final state. `feedback` names what is wrong without giving the answer away."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    weight: float
    passed: bool
    feedback: str = ""


class Grade(BaseModel):
    """Result of a world's grader. `score` is the weighted share of passed checkpoints, in [0, 1]; `success` is binary."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    success: bool
    score: float
    checkpoints: tuple[Checkpoint, ...] = ()


class CallRecord(BaseModel):
    """A stored tool call."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class MessageRecord(BaseModel):
    """A stored message (`coevo.chat.Message`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: str
    content: str
    calls: tuple[CallRecord, ...] = ()


class UsageRecord(BaseModel):
    """Token counts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class Cost(BaseModel):
    """What something cost. `usd` is None where no price is known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    usd: float | None = None
    wall_s: float = 0.0
    attempts: int = 1


class ExpertUse(BaseModel):
    """What an expert's answers took. `usd` is None where no price is known; a reference policy calls nobody and costs 0.

    `form` says how answers in JSON were asked for (`coevo.chat.AnswerForm`), the last call's where they differ; empty for no call.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    calls: int = 0
    usage: UsageRecord = UsageRecord()
    usd: float | None = 0.0
    form: str = ""

    def __add__(self, other: ExpertUse) -> ExpertUse:
        usage, more = self.usage, other.usage
        return ExpertUse(
            calls=self.calls + other.calls,
            usage=UsageRecord(
                prompt_tokens=usage.prompt_tokens + more.prompt_tokens,
                cached_tokens=usage.cached_tokens + more.cached_tokens,
                completion_tokens=usage.completion_tokens + more.completion_tokens,
            ),
            usd=None if self.usd is None or other.usd is None else self.usd + other.usd,
            form=other.form or self.form,
        )


class Firing(BaseModel):
    """One effect of a harness component at one turn.

    Attributes:
        component: `hook:NAME`, `tool:NAME`, `context` or `skill:NAME`.
        event: The event it fired on.
        effect: note | rewrite_call | block_call | replace_result | inject_message | run | elide | error | disabled.
        detail: Size-limited JSON or text of the effect.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    component: str
    event: str
    effect: str
    detail: str = ""


class Turn(BaseModel):
    """One model call with everything that happened because of it.

    Attributes:
        message_index: Indices into `Episode.messages` of the exact messages sent, in order.
        prompt_shared: Prompt tokens shared with the start of the previous turn's prompt + completion.
        prompt_suffix: The remaining prompt token ids; the full prompt is rebuilt by `Episode.prompt_token_ids`.
        context_edited: True when the context policy changed or dropped earlier messages, so sampled ids were re-rendered.
        completion_text, completion_token_ids, completion_logprobs: As sampled.
        say: Text outside the call (strategy sentence, note); empty for none.
        call: The parsed call, or None with `parse_failure` set.
        executed: The family calls that ran (after hooks and composite tools), in order.
        result: The observation content that the model read.
        result_error: True when the observation reports a refused call.
        firings: Harness effects at this turn.
        world_calls_before: Number of family calls applied before this turn: `replay(instance, log[:n])` branches here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    message_index: tuple[int, ...]
    prompt_shared: int
    prompt_suffix: tuple[int, ...]
    context_edited: bool = False
    completion_text: str
    completion_token_ids: tuple[int, ...] = ()
    completion_logprobs: tuple[float, ...] = ()
    say: str = ""
    call: CallRecord | None = None
    parse_failure: str | None = None
    executed: tuple[CallRecord, ...] = ()
    result: str = ""
    result_error: bool = False
    firings: tuple[Firing, ...] = ()
    world_calls_before: int = 0
    usage: UsageRecord = UsageRecord()


class EpisodeSpec(Record):
    """Everything that decides an episode; its hash is the episode's id.

    Attributes:
        task_key: `TaskInstance.key`.
        world_version: Version of the family's world code.
        harness_hash: `HarnessBundle.hash`.
        model_id: Including the weights hash.
        sampling: temperature, top_p, max_tokens.
        repeat: 0-based repeat of the same cell.
        branch: Empty, or the identity of a replay branch (`coevo.localize.replay`).
    """

    task_key: str
    world_version: str
    harness_hash: str
    model_id: str
    sampling: Sampling
    repeat: int = 0
    branch: str = ""

    @property
    def id(self) -> str:
        """64 hex digits."""
        return content_hash(self.to_bytes())


class Episode(Record):
    """One played episode. `grade` is None exactly when `status` is INFRA_ERROR."""

    id: str
    spec: EpisodeSpec
    status: Status
    grade: Grade | None
    messages: tuple[MessageRecord, ...]
    turns: tuple[Turn, ...]
    world_log: tuple[CallRecord, ...] = ()
    log_hash: str = ""
    component_use: dict[str, int] = Field(default_factory=dict)
    usage: UsageRecord = UsageRecord()
    cost_usd: float | None = None
    error: str = ""

    @property
    def success(self) -> bool:
        """Binary success; False for ungraded episodes (which are never averaged in)."""
        return self.grade is not None and self.grade.success

    def prompt_token_ids(self, turn: int) -> tuple[int, ...]:
        """The exact prompt ids of turn `turn`, rebuilt from the shared-prefix encoding."""
        ids: tuple[int, ...] = ()
        for index in range(turn + 1):
            current = self.turns[index]
            ids = ids[: current.prompt_shared] + current.prompt_suffix
            if index < turn:
                ids = ids + current.completion_token_ids
        return ids


class Attempt(Record):
    """One try at an id, written to `attempts/<id>/<n>`: who tried, how long, how it ended, the root error's tail."""

    id: str
    number: int
    outcome: str
    error: str = ""
    worker: str = ""
    wall_s: float = 0.0


class LocalizationCandidate(BaseModel):
    """A turn that may have caused the failure, with its replay evidence; None = not measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    turn: int
    evidence: str
    p_kept: float | None = None
    p_resampled: float | None = None
    p_rewritten: float | None = None
    m: int = 0
    gain_lower: float | None = None


class Proposal(BaseModel):
    """What one localization method named before replay decided.

    Attributes:
        method: `evidence` or `judge:STYLE`.
        turns: Most likely first.
        cause, counterfactual: In words, where the method says them.
        unlocalizable: The method says that no single turn is to blame.
        faults: Why answers of a judge could not be used.
        expert: What its answers took.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str
    turns: tuple[int, ...] = ()
    cause: str = ""
    counterfactual: str = ""
    unlocalizable: bool = False
    faults: tuple[str, ...] = ()
    expert: ExpertUse = ExpertUse()


class Localization(Record):
    """Where a failed episode went wrong; `turn` None means unlocalizable.

    `proposals` says who named what, where more than the detectors were asked.
    """

    episode_id: str
    turn: int | None
    method: str
    candidates: tuple[LocalizationCandidate, ...] = ()
    continuations: int = 0
    alpha: float = 0.05
    cost: Cost = Cost()
    expert: ExpertUse = ExpertUse()
    proposals: tuple[Proposal, ...] = ()


class CorrectionCandidate(BaseModel):
    """One rewrite that the expert offered for the turn. `student_nll` is per token of the whole turn, what the choice goes by."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategy: str
    call: CallRecord
    text: str
    schema_valid: bool
    executed: bool = False
    continued: int = 0
    successes: int = 0
    gain_lower: float | None = None
    student_nll_strategy: float | None = None
    student_nll_call: float | None = None
    student_nll: float | None = None


class RejectedRewrite(BaseModel):
    """An answer of the expert that could not be used, and why; `text` is what it wrote last."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    reason: str


class Correction(Record):
    """A rewritten turn. `verified` only when the chosen candidate's gain has a lower bound above 0.

    Without any usable candidate `candidates` and `rewritten` are empty and `chosen` is -1.
    """

    episode_id: str
    turn: int
    original: str
    rewritten: str
    candidates: tuple[CorrectionCandidate, ...]
    chosen: int
    chosen_by: str
    verified: bool
    gain_lower: float | None = None
    student_nll: float | None = None
    expert_model_id: str = ""
    rejected: tuple[RejectedRewrite, ...] = ()
    expert: ExpertUse = ExpertUse()


class PromptOrigin(StrEnum):
    """Where a training row's prompt comes from."""

    SAMPLED = "sampled"
    """Exactly the ids the weak model saw."""
    RENDERED = "rendered"
    """Rendered from an expert's history."""


class LossSpan(BaseModel):
    """Half-open token range [start, stop) of the row that carries loss, counted from the row's first token."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: int
    stop: int


class TrainingRow(Record):
    """One trained turn."""

    arm: str
    prompt_token_ids: tuple[int, ...]
    prompt_origin: PromptOrigin
    completion_token_ids: tuple[int, ...]
    loss_span: LossSpan
    episode_id: str
    turn: int
    task_key: str
    source: str


class Adapter(Record):
    """Manifest of a trained adapter; `model_id` = `<base>@<weights hash>`, never reused."""

    model_id: str
    base_model_id: str
    arm: str
    seed: int
    weights_hash: str
    data_hash: str
    rows: int
    trained_tokens: int
    steps: int
    config: dict[str, Any]
    metrics: dict[str, float]
    checks: dict[str, bool]
    key: str

    @property
    def dense(self) -> bool:
        """Whether every weight was trained: the files are a whole model, not an adapter beside its base."""
        return self.config.get("method") == "full"


class Conduct(BaseModel):
    """How an agent played its episodes (`coevo.evaluate.fit`).

    Attributes:
        spoken: Share of turns with text beside the call: a strategy sentence, a note.
        refused: Share of turns whose call was refused or could not be read.
        looping: Share of episodes that made one and the same call three times or more.
        unfinished: Share of episodes that did not end by the agent's own finish.
        tools: Tool -> share of all calls.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    spoken: float
    refused: float
    looping: float
    unfinished: float
    tools: dict[str, float] = Field(default_factory=dict)


class Measurement(Record):
    """Success per (instance, repeat) of one agent on one stream: what comparisons are made of.

    `success` maps task key -> one 0/1 per repeat; owed ids are listed, not scored. `conduct` is None where nothing was played and in
    records of runs that did not count it.
    """

    name: str
    model_id: str
    harness_hash: str
    family: str
    size: str
    stream: str
    serving_form: str
    success: dict[str, tuple[int, ...]]
    owed: tuple[str, ...] = ()
    status_counts: dict[str, int] = Field(default_factory=dict)
    component_use: dict[str, float] = Field(default_factory=dict)
    mean_turns: float = 0.0
    conduct: Conduct | None = None
    usage: UsageRecord = UsageRecord()
    training_seed: int | None = None


class Verdict(StrEnum):
    """Outcome of a paired comparison."""

    SUPPORTED = "supported"
    """b is better than a: the interval excludes 0 from above."""
    REFUTED = "refuted"
    """b is worse than a: the interval excludes 0 from below."""
    INCONCLUSIVE = "inconclusive"
    """The interval contains 0."""


class Comparison(Record):
    """Paired difference b - a in success rate, over instances (and training seeds where there are several)."""

    a: str
    b: str
    pairs: int
    discordant: int
    delta: float
    low: float
    high: float
    p_value: float
    level: float = 0.95
    verdict: Verdict
