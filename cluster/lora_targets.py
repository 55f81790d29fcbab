"""Which weights LoRA adapts, per architecture. An unknown architecture is an error that says how to name them, never a silent guess."""

from __future__ import annotations

from dataclasses import dataclass

from coevo.errors import ConfigError, nearest

__all__ = ["LORA_TARGETS", "LoraTargets", "targets_for"]


@dataclass(frozen=True, slots=True)
class LoraTargets:
    """Attributes:
    modules: Suffixes of linear layers (PEFT `target_modules`).
    parameters: Suffixes of fused 3-D expert weights (PEFT `target_parameters`), which are parameters and not layers.
    """

    modules: tuple[str, ...]
    parameters: tuple[str, ...] = ()


_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_DENSE = LoraTargets((*_ATTENTION, "gate_proj", "up_proj", "down_proj"))
_FUSED = LoraTargets(("qkv_proj", "o_proj", "gate_up_proj", "down_proj"))
_EXPERTS = LoraTargets(_ATTENTION, ("experts.gate_up_proj", "experts.down_proj"))
_DENSE_AND_EXPERTS = LoraTargets(_DENSE.modules, _EXPERTS.parameters)
_SHARED_EXPERT = LoraTargets(
    (*_ATTENTION, "shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj"),
    ("experts.gate_up_proj", "experts.down_proj"),
)

LORA_TARGETS: dict[str, LoraTargets] = {
    "gemma": _DENSE,
    "gemma2": _DENSE,
    "gemma3": _DENSE,
    "gemma3_text": _DENSE,
    "gemma4_text": _DENSE_AND_EXPERTS,
    "llama": _DENSE,
    "mistral": _DENSE,
    "qwen2": _DENSE,
    "qwen3": _DENSE,
    "smollm3": _DENSE,
    "phi3": _FUSED,
    "gpt_oss": _EXPERTS,
    "mixtral": _EXPERTS,
    "olmoe": _EXPERTS,
    "qwen2_moe": _SHARED_EXPERT,
    "qwen3_moe": _EXPERTS,
}
"""`model_type` of a Hugging Face config -> targets. Routers stay frozen: a shifted router changes which experts see every other task."""


def targets_for(model_type: str) -> LoraTargets:
    """The targets of an architecture.

    Raises:
        ConfigError: Unknown `model_type`.
    """
    if model_type not in LORA_TARGETS:
        fix = f"add it to cluster.lora_targets.LORA_TARGETS; {nearest(model_type, LORA_TARGETS)}"
        raise ConfigError("no LoRA targets known for this architecture", seen=model_type, fix=fix)
    return LORA_TARGETS[model_type]
