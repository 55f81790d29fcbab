"""The trained state without its sharding: trained weights and Adam moments as whole fp32 tensors under the model's own names.

A DeepSpeed checkpoint is tied to the number of workers that wrote it and is a pickle; this one is a safetensors file that any number of
workers, with any ZeRO stage, can take up again (R12). It is small for an adapter, and three times the model in fp32 for all weights.
Every function here is collective: all ranks call it together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["MOMENTS", "gather_state", "restore_state", "trainable"]

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's two running means, as torch names them."""


def trainable(model: Any) -> dict[str, torch.nn.Parameter]:
    """What is trained: an adapter's parameters under the names of `adapter_model.safetensors`, or all of the model's."""
    return {name.replace(".default", ""): parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def gather_state(model: Any, optimizer: Any, *, keep: bool = True) -> dict[str, Tensor]:
    """`weight/NAME`, `exp_avg/NAME`, `exp_avg_sq/NAME` as fp32 CPU tensors, whole.

    Args:
        model: The model, inside DeepSpeed or not.
        optimizer: The torch optimizer, or DeepSpeed's ZeRO optimizer. Moments are left out before the first step.
        keep: Whether this rank wants them; one that does not takes part and gets nothing, so the host holds one copy.
    """
    out: dict[str, Tensor] = {}
    for name, parameter in trainable(model).items():
        for kind in ("weight", *MOMENTS):
            value = _read(parameter, optimizer, kind)
            if value is not None and keep:
                out[f"{kind}/{name}"] = value.detach().to("cpu", torch.float32).reshape(_shape(parameter)).clone()
    return out


def restore_state(model: Any, optimizer: Any, tensors: Mapping[str, Tensor], *, step: int) -> None:
    """Put a gathered state back, before the first step of this process; `step` is Adam's own count."""
    if _sharded(optimizer):
        _create_moments(optimizer, step)
    for name, parameter in trainable(model).items():
        for kind in ("weight", *MOMENTS):
            if f"{kind}/{name}" in tensors:
                _write(parameter, optimizer, kind, tensors[f"{kind}/{name}"], step)


def _sharded(optimizer: Any) -> bool:
    """Whether this is a ZeRO optimizer around the torch one."""
    return hasattr(optimizer, "optimizer") and type(optimizer).__module__.startswith("deepspeed")


def _shape(parameter: Any) -> torch.Size:
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def _read(parameter: Any, optimizer: Any, kind: str) -> Tensor | None:
    if not _sharded(optimizer):
        if kind == "weight":
            data: Tensor = parameter.data
            return data
        moment: Tensor | None = _plain(optimizer).state.get(parameter, {}).get(kind)
        return moment
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    found: Tensor | None = safe_get_full_fp32_param(parameter) if kind == "weight" else safe_get_full_optimizer_state(parameter, kind)
    return found


def _write(parameter: Any, optimizer: Any, kind: str, value: Tensor, step: int) -> None:
    if not _sharded(optimizer):
        if kind == "weight":
            parameter.data.copy_(value)
        else:
            state = _plain(optimizer).state[parameter]
            state.setdefault("step", torch.tensor(float(step)))
            state[kind] = value.to(parameter.device, parameter.dtype).clone()
        return
    value = value.to(parameter.device)
    if hasattr(parameter, "ds_id"):
        _write_partition(parameter, kind, value)
        return
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

    if kind == "weight":
        safe_set_full_fp32_param(parameter, value)
        parameter.data.copy_(value)
    else:
        safe_set_full_optimizer_state(parameter, value, kind)


def _write_partition(parameter: Any, kind: str, value: Tensor) -> None:
    """ZeRO-3 keeps equal, zero-padded slices; DeepSpeed's whole-tensor setter refuses lengths that do not divide evenly."""
    from deepspeed import zero
    from deepspeed.utils import safe_set_local_fp32_param, safe_set_local_optimizer_state

    rank, count = torch.distributed.get_rank(), torch.distributed.get_world_size()
    length = -(-value.numel() // count)
    padded = torch.nn.functional.pad(value.flatten(), (0, length * count - value.numel()))
    mine = padded[rank * length : (rank + 1) * length]
    if kind == "weight":
        safe_set_local_fp32_param(parameter, mine)
        with zero.GatheredParameters([parameter], modifier_rank=0):
            parameter.data.copy_(value)
    else:
        safe_set_local_optimizer_state(parameter, mine, kind)


def _plain(optimizer: Any) -> Any:
    """The torch optimizer inside accelerate's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)


def _create_moments(optimizer: Any, step: int) -> None:
    """Adam creates its moments in the first step; a restored run needs them before it."""
    inner = optimizer.optimizer
    flats = getattr(optimizer, "fp32_partitioned_groups_flat", None) or optimizer.single_partition_of_fp32_groups
    for flat in flats:
        state = {kind: torch.zeros_like(flat) for kind in MOMENTS}
        inner.state[flat] = {"step": torch.tensor(float(step)), **state}
    link = getattr(optimizer, "_lazy_init_hp_params_optimizer_state", None)
    if link is not None:
        link()
