"""The configuration of a run: one YAML file plus `--set a.b=c`, refused when a key is unknown, saved resolved with the run.

Everything here is plain data: no path is opened and no package imported, so a config can be checked anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from coevo.config_cluster import FROM_ENVIRONMENT, ClusterConfig, PlacementConfig, PoolsConfig, SpotConfig
from coevo.config_learning import Arm, DatasetConfig, EvaluateConfig, TrainConfig
from coevo.config_section import Config
from coevo.errors import ConfigError, nearest
from coevo.identity import content_hash
from coevo.yamltext import read_yaml

__all__ = [
    "FROM_ENVIRONMENT",
    "RESUMABLE",
    "Arm",
    "BudgetConfig",
    "ClusterConfig",
    "Config",
    "DatasetConfig",
    "EvaluateConfig",
    "EvolveConfig",
    "ExpertConfig",
    "ExpertPoolConfig",
    "LocalizeConfig",
    "PlacementConfig",
    "PoolsConfig",
    "ProposerConfig",
    "RetentionConfig",
    "RewriteConfig",
    "RolloutConfig",
    "RunConfig",
    "SamplingConfig",
    "SearchBudgetConfig",
    "SpotConfig",
    "TrainConfig",
    "WeakConfig",
    "default_config",
    "load_config",
    "override",
    "parse_config",
]


class SamplingConfig(Config):
    """Decoding settings of the weak model."""

    temperature: float = Field(0.7, ge=0)
    """0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus mass."""
    max_tokens: int = Field(96, gt=0)
    """Completion tokens per turn."""


class WeakConfig(Config):
    """The small model that is to be deployed, and how it is served."""

    model: str = "mini"
    """`mini` (the embedded default) or a Hugging Face folder."""
    chat_format: str = "mini"
    """Name of a chat format (`coevo.formats`)."""
    engine: Literal["auto", "vllm", "transformers", "recorded"] = "auto"
    """`auto` takes what the installation recorded: vllm where it works, else transformers. `recorded` starts no engine."""
    replicas: int = Field(2, ge=1)
    """Engines in the pool."""
    max_model_len: int = Field(1024, gt=0)
    """Context in tokens."""
    max_num_seqs: int = Field(32, gt=0)
    """Sequences decoded together by one engine."""
    kv_cache_mib: int = Field(128, gt=0)
    """KV cache of one engine, MiB (CPU engines take this much at start; the engine's own default asks for most of the memory)."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Arithmetic of the engine. `auto` is bfloat16 where the processor multiplies it, else float32 on CPUs and float16 on GPUs."""
    sampling: SamplingConfig = SamplingConfig()
    """Decoding settings; part of every episode's id."""
    recording: str | None = None
    """Folder of a recording. With `engine: recorded` the weak model answers from it alone; with another engine its answers are added
    to it."""


class ExpertPoolConfig(Config):
    """How an expert of `kind: pool` is served, on engines of its own beside the weak model's (`cluster.pools.expert` says where)."""

    chat_format: str = "hermes"
    """Name of the expert's own chat format (`coevo.formats`)."""
    engine: Literal["auto", "vllm", "transformers"] = "auto"
    """As `weak.engine`."""
    replicas: int = Field(1, ge=1)
    """Engines in the pool."""
    max_model_len: int = Field(32768, gt=0)
    """Context in tokens; a dialogue that does not fit is an unusable answer."""
    max_num_seqs: int = Field(16, gt=0)
    """Sequences decoded together by one engine."""
    kv_cache_mib: int = Field(1024, gt=0)
    """KV cache of one engine, MiB."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """As `weak.dtype`."""


class ExpertConfig(Config):
    """Who rewrites failing turns and plays the imitation arm.

    `kind: openai` takes any OpenAI-compatible endpoint, a vLLM server of one's own included. The key is named, never given: it comes from
    the environment or a mounted file of each process that asks.
    """

    kind: Literal["reference", "openai", "pool", "recorded"] = "reference"
    """`reference`: the family's own state-conditional policy. `openai`: an LLM behind an endpoint. `pool`: an LLM on engines of the run's
    own. `recorded`: the answers in `recording`, from nowhere else."""
    style: Literal["plan_first", "reactive"] = "plan_first"
    """How the reference orders its work when it plays whole episodes."""
    base_url: str | None = None
    """Endpoint, up to and including `/v1`."""
    model: str | None = None
    """The model's name at the endpoint; with `kind: pool` its Hugging Face folder."""
    pool: ExpertPoolConfig = ExpertPoolConfig()
    """Engines of `kind: pool`."""
    api_key_env: str | None = Field("OPENAI_API_KEY", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable that holds the key; null for endpoints without keys."""
    api_key_file: str | None = None
    """File that holds the key (a secret mount), instead of `api_key_env`."""
    temperature: float = Field(0.7, ge=0)
    """Of rewrites and of played turns; 0 gives one candidate per turn, whatever `rewrite.candidates` says."""
    max_tokens: int = Field(1024, gt=0)
    """Longest answer; reasoning models need room for what they do not show."""
    requests_per_minute: float | None = Field(None, gt=0)
    """Limit of the endpoint, shared among the rollout workers; null is unlimited. Waiting for it counts against
    `rollout.episode_deadline_s`: a low limit wants a low `rollout.concurrency`."""
    tokens_per_minute: float | None = Field(None, gt=0)
    """The same for prompt and completion tokens together."""
    timeout_s: float = Field(120.0, gt=0)
    """Deadline of one HTTP call."""
    retries: int = Field(4, ge=0)
    """Retries of one call on 408, 409, 429, 5xx and lost connections; `Retry-After` is honoured."""
    price: str | None = None
    """Name in the price sheet; null looks for `model`. Without a price dollars are unknown, and a budget in dollars is refused."""
    recording: str | None = None
    """Folder or URI of a recording: `kind: openai` adds its answers to it, `kind: recorded` answers from it alone. Null records in the
    run's own store, so that no answer is paid for twice."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        wanted = {"openai": ("base_url", "model"), "pool": ("model",), "recorded": ("model", "recording")}.get(self.kind, ())
        missing = [name for name in wanted if getattr(self, name) is None]
        if missing:
            raise ValueError(f"kind={self.kind} needs {' and '.join(missing)}")
        if self.base_url is not None and not self.base_url.startswith(("http://", "https://")):
            raise ValueError("base_url starts with http:// or https://")
        if self.base_url is not None and "@" in self.base_url.partition("://")[2].partition("/")[0]:
            raise ValueError("base_url holds a password; name the key in api_key_env or api_key_file instead")
        return self


class RolloutConfig(Config):
    """How batches of episodes are played."""

    concurrency: int = Field(48, gt=0)
    """Episodes in flight per executor worker."""
    workers: int = Field(1, ge=1)
    """Executor workers (processes)."""
    tries: int = Field(5, ge=1)
    """Attempts per episode when infrastructure fails."""
    episode_deadline_s: float = Field(300.0, gt=0)
    """Total deadline of one episode, all tries together; past it the episode is owed, not failed."""
    stage_deadline_s: float = Field(7200.0, gt=0)
    """Deadline of a whole stage."""
    owed_share_max: float = Field(0.02, ge=0, le=1)
    """A stage with a larger share of owed episodes ends the job with exit code 3."""
    outage_patience_s: float = Field(900.0, ge=0)
    """Seconds of unbroken outage (engines, expert, store) that a stage waits out before the rest is owed; the driver waits as long for
    the store."""


class SearchBudgetConfig(Config):
    """Limits of one search, inside those of the run; null is unlimited."""

    usd: float | None = Field(None, gt=0)
    """Dollars."""
    tokens: int | None = Field(None, gt=0)
    """Prompt and completion tokens, cached ones included."""
    episodes: int | None = Field(None, gt=0)
    """Episodes, those of gates, of the null model and of the last measurement included."""
    seconds: float | None = Field(None, gt=0)
    """Seconds in which episodes are played."""

    @property
    def bounded(self) -> bool:
        """Whether anything is limited."""
        return any(getattr(self, unit) is not None for unit in ("usd", "tokens", "episodes", "seconds"))


class ProposerConfig(Config):
    """Who proposes edits of the harness."""

    kind: str = "catalogue"
    """`catalogue` (typed operators, no LLM), `llm` (an agent that reads failures and writes edits), `recorded` (a log of proposals), the
    name of an entry point of the group `coevo.proposers`, or `module:attr`."""
    operators: tuple[str, ...] | None = None
    """Operators of the catalogue in the order that breaks ties; null takes the default ones (`coevo.evolve.catalogue.OPERATORS`)."""
    model: Literal["expert", "weak"] = "expert"
    """Who the LLM proposer is: `expert` (`expert.kind` openai or recorded) or the weak model itself."""
    agents: int = Field(1, ge=1)
    """LLM agents that work at once in one call, each with a seed of its own."""
    edits: int = Field(3, ge=1)
    """Edits that one agent may submit."""
    max_turns: int = Field(40, ge=4, le=1000)
    """Turns that one agent may take."""
    max_tokens: int = Field(4096, ge=64)
    """Longest turn of an agent, in tokens: it writes source text."""
    log: str | None = None
    """Proposals that `kind: recorded` answers from: a file of one record a line, or `STORE#RUN`, a run's store and name."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.kind == "recorded" and self.log is None:
            raise ValueError("kind=recorded needs log, the proposals to answer from")
        return self


class EvolveConfig(Config):
    """Harness search with the weak model."""

    enabled: bool = True
    """Off: the base harness is also the evolved one."""
    harness: str | None = None
    """Folder of the base harness; None takes the family's own."""
    generations: int = Field(8, ge=1)
    """Generations per restart, each with at most one gate."""
    proposals: int = Field(6, ge=1)
    """Edits raced per generation on the search stream."""
    search_instances: int = Field(48, ge=2)
    """Fresh search instances per generation: incumbent's traces and the race of the proposals."""
    gate_instances: int = Field(120, ge=2)
    """Fresh selection instances per gate, the same for incumbent and candidate, used once."""
    alpha: float = Field(0.10, gt=0, lt=1)
    """Probability that the whole search accepts any edit that does nothing."""
    max_lost_share: float = Field(0.35, gt=0, le=1)
    """Upper bound (one-sided 90 %) on the share of instances that the incumbent solved and an accepted edit may lose."""
    patience: int = Field(3, ge=1)
    """Generations in a row without an accepted edit before a restart stops."""
    restarts: int = Field(1, ge=1)
    """Independent searches in one call; they share `alpha`, and `restarts * generations` generations between them."""
    halving: int = Field(2, ge=1)
    """After each rung one restart in so many goes on, with the generations of the others; 1: all run to the end."""
    parents: Literal["incumbent", "pareto"] = "incumbent"
    """Whose failures are read and who is edited: the last accepted harness, or a draw among all that are best on some search instance."""
    proposer_calls: int = Field(1, ge=1)
    """Calls of the proposer per generation, at the same time, each with its parent and seed; `proposals` of their edits are raced."""
    crossovers: int = Field(0, ge=0)
    """Edits per generation, raced beside the proposals, that combine two candidates of which each solves what the other does not."""
    futility_share: float = Field(0.0, ge=0, lt=1)
    """Part of `search_instances` after which an edit that is clearly behind is raced no further; 0 never stops one."""
    confirm_instances: int = Field(120, ge=0)
    """Fresh selection instances on which the winner and the base harness are measured again before the winner is reported; 0: not."""
    ablate_instances: int = Field(0, ge=0)
    """Fresh selection instances on which h* is measured without each evolved component, to remove those that earn nothing; 0: not."""
    prune_margin: float = Field(0.05, gt=0, lt=1)
    """Success rate that removing components may cost at most, by a one-sided 95 % bound, else all of them stay."""
    baselines: tuple[Literal["best_of_n", "self_refine", "prompt_only"], ...] = ()
    """What the episodes of the search would have bought otherwise, measured beside h*."""
    baseline_instances: int = Field(60, ge=2)
    """Fresh selection instances on which h0, h* and the baselines are compared."""
    budget: SearchBudgetConfig = SearchBudgetConfig()
    """Limits of this search alone; it ends with what it has when the next batch does not fit."""
    proposer: ProposerConfig = ProposerConfig()
    """Who proposes the edits."""


class LocalizeConfig(Config):
    """Which turn of a failed episode is to blame."""

    added: ClassVar[frozenset[str]] = frozenset({"evidence", "judges", "first_look", "skip_same_call", "rows", "max_rollouts"})

    failures: int = Field(160, ge=1)
    """Failed episodes of the evolved agent to work on, at most; with `rows`, of each wave."""
    rollouts: int = Field(400, ge=1)
    """Episodes of the search stream played to find them; with `rows`, in each wave."""
    rows: int = Field(0, ge=0)
    """Verified rewrites wanted. 0 takes what one wave of `rollouts` gives; else further waves are rolled out, localized and rewritten until
    there are so many, or `max_rollouts` are played. Failures that one rewrite can turn are rare with some models."""
    max_rollouts: int | None = Field(None, ge=1)
    """Ceiling of the episodes that all waves roll out; `rows` needs one."""
    candidates: int = Field(2, ge=1)
    """Turns tried per episode, most telling evidence first."""
    continuations: int = Field(6, ge=1)
    """Continuations m per variant (kept, resampled, rewritten)."""
    alpha: float = Field(0.10, gt=0, lt=1)
    """One-sided error of the lower bound on the gain, shared over the candidates and rewrites of an episode."""
    evidence: Literal["none", "basic", "full"] = "basic"
    """Detectors that name turns: five cheap rules, all of them, or none (then `judges` name them)."""
    judges: tuple[Literal["structured", "all_at_once", "step_by_step", "binary_search"], ...] = ()
    """Ways in which the expert's LLM is asked for the turn as well; what each named is recorded and compared in the report."""
    first_look: int | None = Field(None, ge=2)
    """Continuations per variant at the first of two looks; null takes half. A small first look drops hopeless turns early."""
    skip_same_call: bool = False
    """Pass a turn over when the expert makes the very call that the weak model made: no continuations are spent on it."""

    @model_validator(mode="after")
    def _waves_end(self) -> Self:
        if self.rows and self.max_rollouts is None:
            raise ValueError(f"rows={self.rows} needs max_rollouts, the most episodes to roll out for them")
        if self.max_rollouts is not None and not self.rows:
            raise ValueError(f"max_rollouts={self.max_rollouts} bounds the waves that rows asks for: set rows, or leave it out")
        if self.max_rollouts is not None and self.max_rollouts < self.rollouts:
            raise ValueError(f"max_rollouts={self.max_rollouts} is less than one wave, rollouts={self.rollouts}")
        return self

    def wave_settings(self) -> dict[str, Any]:
        """The section as it enters the identity of one wave's stages: neither the rows wanted nor the ceiling change what a wave holds."""
        return {name: value for name, value in self.settings().items() if name not in {"rows", "max_rollouts"}}


class RewriteConfig(Config):
    """The expert's rewrite of one turn."""

    candidates: int = Field(2, ge=1)
    """Rewrites offered per turn (N)."""


class BudgetConfig(Config):
    """Limits of the whole run; null is unlimited."""

    usd: float | None = Field(None, gt=0)
    """Dollars."""
    tokens: int | None = Field(None, gt=0)
    """Prompt and completion tokens, cached ones included."""
    episodes: int | None = Field(None, gt=0)
    """Episodes played."""


class RetentionConfig(Config):
    """What `coevo gc` may remove; it removes nothing that a manifest, a pointer or a committed record needs."""

    grace_hours: float = Field(24.0, ge=0)
    """Leftovers go when nothing of their run was written for so long: shorter than a run pauses, and its scratch is lost."""
    attempts_days: float | None = Field(None, ge=0)
    """Attempts at committed episodes are kept for so long; null keeps them. The report counts what is there."""
    keep_runs: int | None = Field(None, ge=1)
    """Whole runs of the store that are kept, the last written ones and always this one; null keeps all."""


class RunConfig(Config):
    """A run: everything that decides its artifacts."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")
    """Run name: the first folder of every key."""
    seed: int = Field(0, ge=0)
    """Seed of every draw in the run."""
    store: str = "runs"
    """Folder or URI of the object store; not part of the run's identity."""
    family: str = "payroll"
    """Task family."""
    size: Literal["mini", "standard", "long"] = "mini"
    """Size of the instances."""
    diversity: int = Field(3, ge=1, le=20)
    """Templates drawn from."""
    weak: WeakConfig = WeakConfig()
    expert: ExpertConfig = ExpertConfig()
    rollout: RolloutConfig = RolloutConfig()
    evolve: EvolveConfig = EvolveConfig()
    localize: LocalizeConfig = LocalizeConfig()
    rewrite: RewriteConfig = RewriteConfig()
    dataset: DatasetConfig = DatasetConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    budget: BudgetConfig = BudgetConfig()
    retention: RetentionConfig = RetentionConfig()
    cluster: ClusterConfig = ClusterConfig()
    prices: str | None = None
    """Price sheet (YAML); null takes the shipped one. Not part of the run's identity."""

    @model_validator(mode="after")
    def _sections_fit(self) -> Self:
        if self.train.global_batch % self.train.workers:
            raise ValueError(f"train.global_batch={self.train.global_batch} is not a multiple of train.workers={self.train.workers}")
        rates = self.train.learning_rates
        if rates and (len(rates) < 2 or len(set(rates)) < len(rates)):
            raise ValueError(f"train.learning_rates={list(rates)}: a grid has two different rates or more; one rate is train.learning_rate")
        if self.cluster.spot.notice == "file" and self.cluster.spot.folder is None:
            raise ValueError("cluster.spot.notice=file needs cluster.spot.folder, where the notices lie")
        least = self.cluster.min_train_workers
        sizes = range(least, self.train.workers + 1) if least is not None else range(1, 2)
        if not sizes or any(self.train.global_batch % size for size in sizes):
            raise ValueError(f"cluster.min_train_workers={least}: every size up to train.workers must divide train.global_batch")
        if self.cluster.train_in_driver and self.train.workers != 1:
            raise ValueError(f"cluster.train_in_driver trains with one worker: set train.workers=1 (it is {self.train.workers})")
        proposer = self.evolve.proposer
        if proposer.kind == "llm" and proposer.model == "expert" and self.expert.kind == "reference":
            raise ValueError("evolve.proposer.kind=llm needs a model: expert.kind=openai or recorded, or evolve.proposer.model=weak")
        if proposer.kind == "llm" and proposer.model == "weak" and self.weak.model == "mini":
            raise ValueError("evolve.proposer.model=weak: the embedded model writes no code; name another in weak.model")
        if self.localize.judges and self.expert.kind == "reference":
            raise ValueError("localize.judges asks an LLM: set expert.kind to openai, pool or recorded")
        if self.localize.evidence == "none" and not self.localize.judges:
            raise ValueError("localize.evidence=none leaves nobody to name a turn: add localize.judges")
        if self.weak.engine == "recorded" and self.weak.recording is None:
            raise ValueError("weak.engine=recorded needs weak.recording, the folder to answer from")
        return self

    def identity(self) -> dict[str, Any]:
        """The part that decides results: without where it runs and where it is stored, and for how long."""
        dump = self.model_dump(mode="json")
        for key in ("store", "cluster", "rollout", "prices", "retention"):
            dump.pop(key)
        dump["localize"] = self.localize.settings()
        if self.expert.kind != "pool":
            dump["expert"].pop("pool")
        return dump

    @property
    def hash(self) -> str:
        """Identity of the run's results."""
        return content_hash(self.identity())


RESUMABLE = (
    "store",
    "cluster",
    "prices",
    "rollout",
    "retention",
    "budget",
    "weak.engine",
    "weak.recording",
    "weak.replicas",
    "weak.max_num_seqs",
    "weak.kv_cache_mib",
    "expert.base_url",
    "expert.api_key_env",
    "expert.api_key_file",
    "expert.requests_per_minute",
    "expert.tokens_per_minute",
    "expert.timeout_s",
    "expert.retries",
    "expert.price",
    "expert.recording",
    "expert.pool.engine",
    "expert.pool.replicas",
    "expert.pool.max_num_seqs",
    "expert.pool.kv_cache_mib",
)
"""What may differ when a run is resumed: where, how fast and how far, not what."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file and apply `a.b=c` overrides (values are YAML).

    Raises:
        ConfigError: Unreadable file, unknown key (with the nearest known one), value out of range.
    """
    try:
        data = read_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("the config file can't be read", seen=f"{path}: {error.strerror}", fix="give the path of a YAML file") from error
    except yaml.YAMLError as error:
        raise ConfigError("the config file is not YAML", seen=f"{path}: {error}", fix="mend the line named above") from error
    if not isinstance(data, dict):
        raise ConfigError("the config file holds no mapping", seen=str(path), fix="start it with `name: my-run`")
    for text in overrides:
        override(data, text)
    return parse_config(data)


def parse_config(data: Mapping[str, Any]) -> RunConfig:
    """Validate a plain mapping. Raises `ConfigError`."""
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError("the configuration is not valid", seen=_explain(error), fix="mend the keys named above") from error


def default_config() -> dict[str, Any]:
    """Every field at its default, JSON-able: what a field that a stored configuration does not know stood for."""
    return RunConfig(name="default").model_dump(mode="json")


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            known = _known_keys(problem["loc"][:-1])
            lines.append(f"{path}: unknown key; {nearest(str(problem['loc'][-1]), known)}")
        else:
            lines.append(f"{path or 'config'}: {problem['msg']}{_got(path, problem.get('input'))}"[:300])
    return "\n    ".join(lines)


def _got(path: str, value: Any) -> str:
    """The refused value; a key pasted where its variable's name belongs, or a password in a URL, is not repeated (I11)."""
    if path.endswith("api_key_env"):
        return ", and what was given is not shown, because it may be a key; name the variable that holds it"
    return re.sub(r"://[^/@\s'\"]+@", "://***@", f", got {value!r}")


def _known_keys(location: Sequence[Any]) -> list[str]:
    model: Any = RunConfig
    for part in location:
        field = model.model_fields.get(str(part)) if isinstance(model, type) and issubclass(model, BaseModel) else None
        if field is None:
            return []
        model = field.annotation
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def override(data: dict[str, Any], text: str) -> None:
    """Set one `a.b=c` in a plain mapping, making sections on the way. Raises `ConfigError`."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError("an override could not be read", seen=text, fix="write --set section.key=value")
    node = data
    *parents, last = key.strip().split(".")
    for part in parents:
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            raise ConfigError("an override goes through a plain value", seen=text, fix=f"{part!r} is not a section")
        node = child
    node[last] = read_yaml(value)
