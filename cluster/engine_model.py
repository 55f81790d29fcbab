"""An engine of this process as a ChatModel and Scorer: no Ray, no pool. For gates of pretraining, doctors and probes."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.engines.family import Engine, EngineConfig, open_engine
from coevo.chat import Completion, ModelRequest, Usage
from coevo.errors import ModelError
from coevo.models.tokenizer import FolderTokenizer

__all__ = ["EngineModel"]


class EngineModel:
    """Serves `config`'s model from inside this process; close it with `aclose`."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._tokenizer = FolderTokenizer(config.model_path)
        self._engine: Engine = open_engine(config)

    @property
    def model_id(self) -> str:
        """Id of the served weights."""
        return self._config.model_id

    async def complete(self, request: ModelRequest) -> Completion:
        """One turn from the request's prompt token ids. Raises `ModelError` when there are none."""
        if request.prompt_token_ids is None:
            raise ModelError("an engine needs prompt token ids", seen=request.session[:12], fix="play the agent with its tokenizer")
        raw = await self._engine.generate(
            request.prompt_token_ids, request.sampling, seed=request.seed, model_id=request.model_id or self.model_id
        )
        ends = raw.finish_reason == "stop" and raw.token_ids
        text = self._tokenizer.decode(raw.token_ids[:-1] if ends else raw.token_ids)
        usage = Usage(len(request.prompt_token_ids), raw.cached_tokens, len(raw.token_ids))
        return Completion(text, raw.finish_reason, raw.token_ids, raw.logprobs, usage)

    async def logprobs(self, prompt: Sequence[int], completion: Sequence[int], *, model_id: str = "") -> tuple[float, ...]:
        """Teacher-forced log-probabilities."""
        return await self._engine.score(prompt, completion, model_id=model_id or self.model_id)

    async def aclose(self) -> None:
        """Stop the engine."""
        self._engine.close()
