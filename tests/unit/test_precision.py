"""The arithmetic that an engine takes when nobody chose: what the processor multiplies, and never a name that no engine knows."""

from __future__ import annotations

import pytest

from cluster.engines.precision import DTYPES, check_dtype, cpu_dtype
from coevo.errors import ConfigError


@pytest.mark.parametrize(
    ("present", "dtype"),
    [
        ({"avx2": True, "avx512_bf16": False, "amx_bf16": False}, "float32"),
        ({"avx2": True, "avx512_f": True}, "float32"),
        ({"avx2": True, "avx512_bf16": True}, "bfloat16"),
        ({"amx_bf16": True}, "bfloat16"),
        ({"neon": True, "bf16": True}, "bfloat16"),
        ({}, "float32"),
    ],
)
def test_bfloat16_only_where_there_are_units_for_it(present: dict[str, bool], dtype: str) -> None:
    assert cpu_dtype(present) == dtype


def test_an_unknown_dtype_is_refused_with_the_known_ones() -> None:
    for known in DTYPES:
        check_dtype(known)
    with pytest.raises(ConfigError, match="bf16") as caught:
        check_dtype("bf16")
    assert "bfloat16" in str(caught.value)
