"""The arithmetic of an engine where nobody chose it.

bfloat16 is fast only where the processor multiplies it: on one without such units (AVX2 only, most laptops) PyTorch was measured to be 13
times slower in bfloat16 than in float32 (5 against 63 GFLOP/s, 4,096 x 128 x 512, one core). The stored weights stay bfloat16 either way:
float32 arithmetic represents them exactly, so the model is the same and only the rounding of its activations differs.
"""

from __future__ import annotations

from collections.abc import Mapping

from coevo.errors import ConfigError

__all__ = ["AUTO", "DTYPES", "check_dtype", "compute_dtype", "cpu_dtype"]

AUTO = "auto"
DTYPES = (AUTO, "bfloat16", "float16", "float32")


def compute_dtype(wanted: str, *, device: str) -> str:
    """The dtype to compute in.

    Args:
        wanted: One of `DTYPES`.
        device: cpu | cuda | mps: where the engine runs in this process.

    Returns:
        `wanted`, or for "auto": bfloat16 on accelerators that have it, else float16; on CPUs see `cpu_dtype`.
    """
    import torch

    if wanted != AUTO:
        return wanted
    if device == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    if device == "mps":
        return "float16"
    return cpu_dtype(torch.cpu.get_capabilities())


def cpu_dtype(capabilities: Mapping[str, object]) -> str:
    """bfloat16 where the processor has units for it, else float32.

    Args:
        capabilities: Feature name -> present, as `torch.cpu.get_capabilities` tells (x86: avx512_bf16, amx_bf16; Arm: bf16).
    """
    return "bfloat16" if any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16")) else "float32"


def check_dtype(dtype: str) -> None:
    """Raises `ConfigError` for a dtype that no engine knows."""
    if dtype not in DTYPES:
        raise ConfigError("unknown dtype of an engine", seen=dtype, fix=f"one of {', '.join(DTYPES)}")
