"""One run, opened: its configuration, store, ledger and, when first needed, its cluster.

A stage whose manifest exists is answered from the store: resuming a finished run starts neither Ray nor a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.stores import open_source
from coevo import __version__
from coevo.chat import Sampling
from coevo.config import RESUMABLE, RunConfig, default_config
from coevo.display import Display
from coevo.formats import chat_format
from coevo.formats.family import ChatFormat
from coevo.harness.bundle import HarnessBundle
from coevo.identity import content_hash
from coevo.mini.model import folder_model_id, mini_path
from coevo.models.reference import ReferenceSource
from coevo.models.tokenizer import FolderTokenizer
from coevo.ports import BlobStore, ModelSource, StoreSource
from coevo.rewrite.account import ExpertAccount
from coevo.rewrite.expert import ExpertSource, ReferenceExpertSource
from coevo.rewrite.llm import ExpertPlayerSource, LLMExpertSource, LLMRecipe
from coevo.rollout import AgentSource
from coevo.store.artifacts import StageKey, StageManifest, StageWriter, input_hash, read_manifest
from coevo.store.episodes import EpisodeStore
from coevo.store.ledger import Budget, Ledger
from coevo.store.patient import PatientStore
from coevo.store.run_directory import RunDirectory
from coevo.tasks import load_family
from coevo.tasks.family import Size, Style, TaskFamily
from jobs.beacon import BeaconDisplay
from jobs.billing import Billing, require_prices
from jobs.expert import check_prices, expert_account, expert_identity, expert_recipe, probe_endpoint

if TYPE_CHECKING:
    from jobs.serving import Serving

__all__ = ["RunContext", "StageResult"]


def _cluster(context: RunContext) -> AbstractContextManager[Serving]:
    """Ray, imported when it is needed."""
    from jobs.serving import Serving

    return Serving.open(context)


@dataclass(frozen=True, slots=True)
class StageResult:
    """What a stage tells at its end."""

    stage: str
    lines: tuple[str, ...]


@dataclass
class RunContext:
    """See the module docstring. One per process and run; close it (or use `open` as a context manager)."""

    config: RunConfig
    store_source: StoreSource
    store: BlobStore
    display: Display
    directory: RunDirectory | None = None
    stack: ExitStack = field(default_factory=ExitStack)
    phase: int | None = None
    serve: Callable[[RunContext], AbstractContextManager[Serving]] | None = None
    _manifests: dict[StageKey, StageManifest] = field(default_factory=dict)
    _begun: set[StageKey] = field(default_factory=set)

    @classmethod
    @contextmanager
    def open(
        cls, config: RunConfig, *, display: Display, serve: Callable[[RunContext], AbstractContextManager[Serving]] | None = None
    ) -> Iterator[RunContext]:
        """Open the run's store and claim its name.

        Args:
            config: The run.
            display: Who is told.
            serve: What serves models and executes stages once that is needed; None starts or joins a cluster.

        Raises:
            ConfigError: Unknown family, format or harness, or the name belongs to another configuration; nothing is written then.
            PrerequisiteError: The expert's endpoint can't be used; nothing is written then. A run that is resumed asks only when it has
                work to do.
        """
        load_family(config.family)
        chat_format(config.weak.chat_format)
        source = open_source(config.store)
        source.open().head(f"{config.name}/config.json")  # a store that can't be reached is told at once, not waited for
        context = cls(config, source, PatientStore(source.open(), patience_s=config.rollout.outage_patience_s), display, serve=serve)
        context.base_harness, context.weak_model_id  # noqa: B018 - both refuse bad input before the name is claimed
        check_prices(config)
        require_prices(config)
        probed = probe_endpoint(config) if context.store.head(f"{config.name}/config.json") is None else None
        context.directory = RunDirectory.open(
            context.store, name=config.name, config=config.model_dump(mode="json"), ignore=RESUMABLE, defaults=default_config()
        )
        context.account.pay_probe(probed)
        beacon = BeaconDisplay(display, source.open(), config.name)
        context.display = beacon
        with context.stack:
            context.stack.callback(beacon.close)
            yield context

    @property
    def run(self) -> str:
        """Run name: the prefix of all keys."""
        return self.config.name

    @property
    def size(self) -> Size:
        """Instance size."""
        return Size(self.config.size)

    @cached_property
    def family(self) -> TaskFamily:
        """The task family."""
        return load_family(self.config.family)

    @cached_property
    def base_harness(self) -> HarnessBundle:
        """Where evolution starts. Raises `ConfigError` for a folder that does not load or does not fit the family."""
        from coevo.harness.lint import require_clean

        folder = Path(self.config.evolve.harness) if self.config.evolve.harness else self.family.base_harness(self.size)
        bundle = HarnessBundle.load(folder)
        require_clean(bundle, self.family.tools(self.size))
        return bundle

    @cached_property
    def weak_path(self) -> str:
        """Hugging Face folder of the weak model."""
        model = self.config.weak.model
        return str(mini_path()) if model == "mini" else str(Path(model).resolve())

    @cached_property
    def tokenizer(self) -> FolderTokenizer:
        """Of the weak model."""
        return FolderTokenizer(self.weak_path)

    @property
    def syntax(self) -> ChatFormat:
        """The weak model's chat format."""
        return chat_format(self.config.weak.chat_format)

    @cached_property
    def weak_model_id(self) -> str:
        """Identity of the weak model's weights."""
        return folder_model_id(self.weak_path)

    @cached_property
    def sampling(self) -> Sampling:
        """Decoding settings of the weak model."""
        chosen = self.config.weak.sampling
        return Sampling(chosen.temperature, chosen.top_p, chosen.max_tokens)

    @cached_property
    def episodes(self) -> EpisodeStore:
        """All episodes of the run, whatever stage played them: ids are content hashes."""
        return EpisodeStore(self.store, self.run)

    @cached_property
    def serving(self) -> Serving:
        """Cluster, pools and executors, started now."""
        if self.directory is not None and not self.directory.fresh:
            self.account.pay_probe(probe_endpoint(self.config))
        return self.stack.enter_context((self.serve or _cluster)(self))

    @property
    def weak_source(self) -> ModelSource:
        """The weak model's pool."""
        return self.serving.weak

    def agent(self, model: ModelSource, bundle: HarnessBundle) -> AgentSource:
        """An agent that plays with the run's format, tokenizer and decoding settings."""
        weak = self.config.weak
        return AgentSource(self.config.family, model, bundle, weak.chat_format, self.weak_path, weak.max_model_len, self.sampling)

    @cached_property
    def recipe(self) -> LLMRecipe | None:
        """The LLM that is the expert; None for the reference policy."""
        return expert_recipe(self.config, self.store_source)

    @cached_property
    def account(self) -> ExpertAccount:
        """Pays the expert."""
        return expert_account(self.config, self.store, self.ledger, self.recipe)

    @property
    def rewriter(self) -> ExpertSource:
        """The expert as one who rewrites turns, its pool started where it has one."""
        self._start_expert()
        return ReferenceExpertSource() if self.recipe is None else LLMExpertSource(self.recipe)

    @property
    def expert_identity(self) -> dict[str, str]:
        """What of the expert decides results: for stage settings."""
        return expert_identity(self.config, self.recipe)

    def expert_source(self, bundle: HarnessBundle) -> ModelSource:
        """The expert as one who plays, under a harness; its pool is started where it has one."""
        self._start_expert()
        syntax = self.config.weak.chat_format
        if self.recipe is not None:
            return ExpertPlayerSource(self.recipe, syntax)
        return ReferenceSource(self.config.family, Style(self.config.expert.style), bundle, syntax)

    def _start_expert(self) -> None:
        if self.config.expert.kind == "pool":
            self.serving.start_expert()

    def key(self, stage: str, inputs: Mapping[str, str], settings: Any) -> StageKey:
        """Where a stage with these inputs and settings lies."""
        return StageKey(self.run, stage, input_hash(stage, inputs, config_hash=content_hash(settings)))

    def finished(self, stage: str, inputs: Mapping[str, str], settings: Any) -> StageManifest | None:
        """The stage's manifest when it is done; told once."""
        key = self.key(stage, inputs, settings)
        if key not in self._manifests:
            manifest = read_manifest(self.store, key)
            if manifest is None:
                return None
            self._manifests[key] = manifest
            if key not in self._begun:
                self.display.note(f"{stage}: done before, {manifest.rows.written} rows")
        return self._manifests[key]

    def writer(self, stage: str, inputs: Mapping[str, str], settings: Any, *, expected: int) -> StageWriter:
        """A writer for the stage."""
        self._begun.add(self.key(stage, inputs, settings))
        return StageWriter.begin(
            self.store,
            run=self.run,
            stage=stage,
            inputs=inputs,
            expected=expected,
            code_version=__version__,
            config_hash=content_hash(settings),
            meter=self.billing.close_stage,
        )

    @cached_property
    def billing(self) -> Billing:
        """What the run's own processes hold and cost."""
        return Billing(self.config)

    @property
    def engaged(self) -> bool:
        """Whether the cluster was needed so far."""
        return "serving" in self.__dict__

    def enter_phase(self, number: int) -> None:
        """A phase of `coevo run` begins (index in `jobs.phases.phases_of`): the pools are sized for it."""
        self.phase = number
        if self.engaged:
            self.serving.driver.enter(number)

    def progress(self, done: int, total: int) -> None:
        """So much of the phase is done; tells the pools how soon the next one begins."""
        if self.engaged:
            self.serving.driver.progress(done, total)

    @cached_property
    def ledger(self) -> Ledger:
        """What the run has paid, against its budget; kept in the store."""
        bounds = self.config.budget
        return Ledger(
            self.store, budget=Budget(usd=bounds.usd, tokens=bounds.tokens, episodes=bounds.episodes), prefix=f"{self.run}/ledger"
        )
