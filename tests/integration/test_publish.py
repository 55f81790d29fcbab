"""Adapters: validity, merging, publishing. Promises:

1. Empty, non-finite and do-nothing adapters are refused by name (R12).
2. A merged folder gives the logits of base + adapter; its identity follows its content.
3. The canary passes the trained weights on every replica, and refuses base, a stale adapter and one wrong replica of several (R7, I6).
4. An id never changes its weights (R7); files that are not the manifest's are refused.
5. Publishing again proves again and changes nothing.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from cluster.adapters import check_adapter, merge_adapter, read_adapter, store_folder, tensors_hash
from cluster.canary import judge_canary, replica_scorers
from cluster.engine_model import EngineModel
from cluster.engines.family import EngineConfig, EngineKind
from cluster.publish import PoolPublisher
from cluster.scoring import mean_nll, reference_logprobs
from cluster.servers import ModelPool, PoolConfig
from cluster.session import SessionConfig, open_session
from cluster.tiny import make_tiny_adapter, make_tiny_model
from coevo.errors import ConfigError, ModelError, StoreError
from coevo.ports import Scorer
from coevo.records import Adapter
from coevo.store.local import LocalSource

torch.set_num_threads(1)
Row = tuple[tuple[int, ...], tuple[int, ...]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_tiny_model(tmp_path_factory.mktemp("base"), max_len=256)


@pytest.fixture(scope="module")
def adapters(base: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two different adapters, both strong enough to see."""
    return tuple(Path(make_tiny_adapter(base, tmp_path_factory.mktemp(f"adapter{seed}"), seed=seed)) for seed in (1, 2))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    draw = random.Random(0)
    return [(tuple(draw.randrange(5, 260) for _ in range(20)), tuple(draw.randrange(5, 260) for _ in range(6))) for _ in range(32)]


@dataclass
class InProcess:
    """A pool of engines of this process: the publisher reaches its replicas by `scorers`."""

    folders: tuple[str, ...]
    model_id: str

    def source(self, model_id: str = "") -> InProcess:
        assert model_id in ("", self.model_id)
        return self

    def open(self) -> EngineModel:
        return EngineModel(EngineConfig(self.folders[0], self.model_id, kind=EngineKind.TRANSFORMERS, dtype="bfloat16", max_model_len=256))


def scorers(pool: InProcess) -> Mapping[str, Scorer]:
    return {f"replica-{index}": InProcess((folder,), pool.model_id).open() for index, folder in enumerate(pool.folders)}


def stored(tmp_path: Path, folder: Path) -> tuple[LocalSource, Adapter]:
    source = LocalSource(str(tmp_path / "store"))
    tensors, _ = read_adapter(folder)
    digest = tensors_hash(tensors)
    store_folder(source.open(), folder, f"out/{digest[:16]}")
    adapter = Adapter(
        model_id=f"base@{digest[:16]}",
        base_model_id="base",
        arm="correction",
        seed=0,
        weights_hash=digest,
        data_hash="d",
        rows=32,
        trained_tokens=192,
        steps=1,
        config={},
        metrics={},
        checks={},
        key=f"out/{digest[:16]}",
    )
    return source, adapter


def publisher(source: LocalSource, base: str, tmp_path: Path, *served: str) -> PoolPublisher:
    """Serves `served` whatever was asked for; nothing given = the folder asked for, on two replicas."""
    return PoolPublisher(
        source, base, str(tmp_path / "scratch"), lambda folder, name: InProcess(served or (folder, folder), name), scorers=scorers
    )


def test_adapter_checks_name_what_is_wrong(adapters: tuple[Path, Path]) -> None:
    """R12."""
    tensors, _ = read_adapter(adapters[0])
    assert check_adapter(tensors).failures == ()
    first = next(name for name in tensors if "lora_B" in name)
    broken = {
        "empty": tensors | {first: torch.zeros(0)},
        "NaN": tensors | {first: torch.full_like(tensors[first], float("nan"))},
        "does nothing": {name: torch.zeros_like(t) if "lora_B" in name else t for name, t in tensors.items()},
        "without": {name: t for name, t in tensors.items() if name != first},
        "no tensors": {},
    }
    for word, candidate in broken.items():
        with pytest.raises(ModelError, match=word):
            check_adapter(candidate).require("here")


def test_hash_is_of_content(adapters: tuple[Path, Path]) -> None:
    tensors, _ = read_adapter(adapters[0])
    turned = dict(reversed(tensors.items()))
    assert tensors_hash(tensors) == tensors_hash(turned)
    name = next(iter(tensors))
    changed = tensors[name].clone()
    changed.view(-1)[0] += 1e-3
    assert tensors_hash(tensors | {name: changed}) != tensors_hash(tensors)
    assert tensors_hash({f"{name}x" if n == name else n: t for n, t in tensors.items()}) != tensors_hash(tensors)


def test_merge_gives_the_adapted_model(base: str, adapters: tuple[Path, Path], rows: list[Row], tmp_path: Path) -> None:
    """Promise 2, and the scorer's own correctness against a plain forward pass."""
    merged = merge_adapter(base, str(adapters[0]), tmp_path / "merged", dtype="float32")
    assert (merged / "tokenizer.json").exists()
    of_merged = reference_logprobs(str(merged), rows[:8])
    of_pair = reference_logprobs(base, rows[:8], adapter_path=str(adapters[0]))
    of_base = reference_logprobs(base, rows[:8])
    for a, b, c in zip(of_merged, of_pair, of_base, strict=True):
        assert a == pytest.approx(b, abs=2e-3)
        assert max(abs(x - y) for x, y in zip(a, c, strict=True)) > 0.05
    prompt, completion = rows[0]
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(base)(torch.tensor([[*prompt, *completion]])).logits[0].log_softmax(-1)
    plain = [float(logits[len(prompt) - 1 + place, token]) for place, token in enumerate(completion)]
    assert of_base[0] == pytest.approx(plain, abs=1e-3)
    assert mean_nll(plain) == pytest.approx(-sum(plain) / 6)
    with pytest.raises(ConfigError, match="row 0"):
        reference_logprobs(base, [((), (1,))])


def test_only_what_is_scored_gets_logits(base: str, adapters: tuple[Path, Path]) -> None:
    """A batch of unequal rows scores as each row alone with all its logits does, and the head computes the scored positions only."""
    draw = random.Random(5)
    lengths = [(40, 3), (44, 6), (41, 1), (47, 2)]
    rows = [tuple(tuple(draw.randrange(5, 200) for _ in range(length)) for length in pair) for pair in lengths]
    heads: list[int] = []

    def watch(module: torch.nn.Module, given: object, out: torch.Tensor) -> None:
        if isinstance(module, torch.nn.Linear) and module.out_features == out.shape[-1] == vocabulary:
            heads.append(out.shape[1])

    for path in (None, str(adapters[0])):
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        vocabulary = model.config.vocab_size
        model = model if path is None else PeftModel.from_pretrained(model, path)
        heads.clear()
        hook = torch.nn.modules.module.register_module_forward_hook(watch)
        try:
            scored = reference_logprobs(base, rows, adapter_path=path)
        finally:
            hook.remove()
        assert heads == [(44 + 6 - 1) - (40 - 1)], "one batch: from the end of the shortest prompt to the last token but one"
        for (prompt, completion), got in zip(rows, scored, strict=True):
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *completion]])).logits[0].log_softmax(-1)
            plain = [float(logits[len(prompt) - 1 + place, token]) for place, token in enumerate(completion)]
            assert got == pytest.approx(plain, abs=1e-4)


def test_the_trained_weights_pass(base: str, adapters: tuple[Path, Path], rows: list[Row], tmp_path: Path) -> None:
    """Promises 3 and 5."""
    source, adapter = stored(tmp_path, adapters[0])
    made = publisher(source, base, tmp_path)
    assert made.publish(adapter, canary_rows=rows).model_id == adapter.model_id
    facts = json.loads(source.open().get(f"{adapter.key}/publish.json"))
    assert set(facts["replicas"]) == {"replica-0", "replica-1"}
    for reading in facts["replicas"].values():
        assert reading["to_new"] < 0.5 * reading["to_base"]
        assert reading["nearer_rows"] > 25
    assert facts["weights_hash"] == adapter.weights_hash
    without_base = replace(made, base_path=str(tmp_path / "nothing"))
    without_base.publish(adapter, canary_rows=rows)
    assert json.loads(source.open().get(f"{adapter.key}/publish.json")) == facts


@pytest.mark.parametrize("case", ["base", "stale", "one of two"])
def test_wrong_weights_fail_at_the_canary(case: str, base: str, adapters: tuple[Path, Path], rows: list[Row], tmp_path: Path) -> None:
    """R7: a server that drops the adapter, keeps an old one, or does so on one replica only."""
    source, adapter = stored(tmp_path, adapters[0])
    right = str(merge_adapter(base, str(adapters[0]), tmp_path / "right"))
    stale = str(merge_adapter(base, str(adapters[1]), tmp_path / "stale"))
    served = {"base": (base, base), "stale": (stale, stale), "one of two": (right, base)}[case]
    with pytest.raises(ModelError, match="not proven"):
        publisher(source, base, tmp_path, *served).publish(adapter, canary_rows=rows)
    assert source.open().head(f"{adapter.key}/publish.json") is None


def test_an_indistinguishable_adapter_is_refused(base: str, adapters: tuple[Path, Path], rows: list[Row], tmp_path: Path) -> None:
    """Promise 3: an adapter weaker than the rounding of bf16 proves nothing."""
    tensors, config = read_adapter(adapters[0])
    weak = tmp_path / "weak"
    weak.mkdir()
    from safetensors.torch import save_file

    save_file({name: t * 1e-6 if "lora_B" in name else t for name, t in tensors.items()}, weak / "adapter_model.safetensors")
    (weak / "adapter_config.json").write_text(json.dumps(config))
    source, adapter = stored(tmp_path, weak)
    with pytest.raises(ModelError, match="not proven"):
        publisher(source, base, tmp_path).publish(adapter, canary_rows=rows)


def test_ids_are_immutable(base: str, adapters: tuple[Path, Path], rows: list[Row], tmp_path: Path) -> None:
    """Promise 4."""
    source, adapter = stored(tmp_path, adapters[0])
    _, other = stored(tmp_path, adapters[1])
    made = publisher(source, base, tmp_path)
    made.publish(adapter, canary_rows=rows)
    with pytest.raises(StoreError, match="never changes"):
        made.publish(other.model_copy(update={"model_id": adapter.model_id}), canary_rows=rows)
    with pytest.raises(StoreError, match="manifest names"):
        made.publish(other.model_copy(update={"key": adapter.key}), canary_rows=rows)
    with pytest.raises(ModelError, match="too few rows"):
        made.publish(adapter, canary_rows=rows[:31])


def test_canary_arithmetic() -> None:
    """Near on the whole is not enough: one row may carry the difference."""
    base = [(0.0,)] * 40
    new = [(1.0,)] * 40
    assert judge_canary(new, new, base).passed
    assert not judge_canary(base, new, base).passed
    assert not judge_canary([(0.6,)] * 40, new, base).passed
    assert not judge_canary([(float("nan"),)] * 40, new, base).passed
    few = [(1.0,)] * 12 + [(0.4,)] * 28
    assert not judge_canary(few, new, base).passed


@pytest.mark.timeout(600)
def test_a_real_pool_is_proven(base: str, adapters: tuple[Path, Path], rows: list[Row], tmp_path: Path) -> None:
    """Promise 3 over Ray: both replicas are asked, the right folder passes and base under the new id does not."""
    source, adapter = stored(tmp_path, adapters[0])
    engine = EngineConfig(base, "base", kind=EngineKind.TRANSFORMERS, dtype="bfloat16", max_model_len=256)
    with open_session(SessionConfig(log_to_driver=False)), ModelPool(PoolConfig(engine, replicas=2)) as pool:

        @dataclass
        class Swapped:
            folder: str

            def __call__(self, folder: str, model_id: str) -> ModelPool:
                pool.load_weights(self.folder or folder, model_id=model_id)
                return pool

        made = PoolPublisher(source, base, str(tmp_path / "scratch"), Swapped(""))
        published = made.publish(adapter, canary_rows=rows)
        assert len(replica_scorers(published)) == 2
        renamed = adapter.model_copy(update={"model_id": f"again@{adapter.weights_hash[:16]}"})
        with pytest.raises(ModelError, match="not proven"):
            replace(made, serve=Swapped(base)).publish(renamed, canary_rows=rows)


def test_the_control_process_needs_no_torch() -> None:
    """R15: importing the trainer and the publisher pulls in none of the heavy modules."""
    heavy = ("torch", "transformers", "trl", "peft", "deepspeed", "vllm", "datasets")
    found = f"' '.join(m for m in {heavy} if m in sys.modules)"
    code = f"import sys, cluster.training, cluster.publish, cluster.scoring; sys.exit({found} or None)"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
