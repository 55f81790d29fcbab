"""The README of trained weights: what they are, what they were trained on, what was checked, how to load them.

A function of facts that a repeated or resumed training gives again, so that storing the card twice is one write; times and machines are in
the manifest beside it and not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coevo.records import Adapter

__all__ = ["model_card"]

_LORA = """from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained("BASE")
model = PeftModel.from_pretrained(base, "THIS FOLDER")
dense = model.merge_and_unload()  # one model without the adapter's cost
"""
_FULL = """from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("THIS FOLDER")
"""


def model_card(adapter: Adapter) -> str:
    """Markdown with the front matter that model hubs read."""
    kind = "Fully fine-tuned weights" if adapter.dense else "A LoRA adapter"
    front = ["---", f"library_name: {'transformers' if adapter.dense else 'peft'}", "tags: [agent, tool-use, coevo]", "---"]
    body = [
        f"# {adapter.model_id}",
        f"{kind} of `{adapter.base_model_id}`, trained by coevo on the data arm `{adapter.arm}` (seed {adapter.seed}).",
        "It was trained for one harness and one chat format, those of the run that made it: under another harness measure it first.",
        "## Data and training",
        _table(
            {
                "rows (one row = one trained turn)": adapter.rows,
                "trained tokens": adapter.trained_tokens,
                "optimizer steps": adapter.steps,
                "rows' hash": adapter.data_hash,
                "weights' hash": adapter.weights_hash,
                "loss, first step": f"{adapter.metrics['loss_first']:.4f}",
                "loss, last step": f"{adapter.metrics['loss_last']:.4f}",
            }
        ),
        "Loss covers the trained turn and its end, nothing else.",
        "## Settings",
        _table({key: value for key, value in sorted(adapter.config.items()) if key not in ("seeds", "max_failures", "report_to")}),
        "## Checks before it was stored",
        _table({name: "passed" if passed else "FAILED" for name, passed in sorted(adapter.checks.items())}),
        "## Loading it",
        f"```python\n{_FULL if adapter.dense else _LORA}```",
    ]
    return "\n".join(front) + "\n\n" + "\n\n".join(body) + "\n"


def _table(rows: Mapping[str, Any]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])
