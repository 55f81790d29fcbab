"""Training. Promises:

1. Every row trains exactly `epochs` times, no token more or less, whatever the number of rows and workers (I7, R2).
2. Rows that would be cut and spans that leave their row are refused by name, never dropped.
3. The adapter is the trained one: loss falls, base + adapter scores the rows better, its id is the hash of its weights.
4. ZeRO stages, numbers of workers, micro batches and packing give the same losses, step by step.
5. The same job again returns the stored adapter without work; another job under the prefix is refused (R7).
6. A killed worker is replaced and training goes on from its last checkpoint (R8, R12).
7. A killed driver's job goes on when run again, also with another number of workers and another ZeRO stage (R9, R12).
8. Fully tuned weights are a model folder like the base's, checked, described, and named by what is in them.
9. A tracker gets the run, or its absence is told before training.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

import psutil
import pytest
import torch

from cluster.adapters import fetch_folder, read_adapter, tensors_hash
from cluster.dense import check_dense, dense_hash, recast
from cluster.lora_targets import LORA_TARGETS, targets_for
from cluster.lora_worker import TRACKERS
from cluster.scoring import mean_nll, reference_logprobs
from cluster.session import SessionConfig, open_session
from cluster.tiny import make_tiny_model
from cluster.train_rows import NO_ROW, Collator, load_rows, training_order
from cluster.training import RayLoraTrainer, job_id
from coevo.config import TrainConfig
from coevo.dataset.export import IGNORED
from coevo.errors import ConfigError, ModelError, PrerequisiteError, StoreError
from coevo.ports import TrainingJob
from coevo.records import LossSpan, PromptOrigin, TrainingRow
from coevo.store.local import LocalSource
from coevo.store.tables import encode_records, table_of

ROWS = 21
CONFIG = TrainConfig(global_batch=4, epochs=2, save_steps=2, learning_rate=5e-3, max_length=128, workers=2, zero_stage=2)
SESSION = SessionConfig(log_to_driver=False)


def training_rows(count: int, *, length: int = 60) -> list[TrainingRow]:
    """The completion repeats the start of its prompt."""
    draw = random.Random(0)
    rows = []
    for number in range(count):
        prompt = tuple(draw.randrange(5, 260) for _ in range(draw.randrange(10, length)))
        completion = (*prompt[: draw.randrange(3, 9)], 2)
        rows.append(
            TrainingRow(
                arm="correction",
                prompt_token_ids=prompt,
                prompt_origin=PromptOrigin.SAMPLED,
                completion_token_ids=completion,
                loss_span=LossSpan(start=len(prompt), stop=len(prompt) + len(completion)),
                episode_id=f"{number:064x}",
                turn=0,
                task_key="k",
                source="rewritten_turn",
            )
        )
    return rows


def setting(folder: Path) -> tuple[LocalSource, TrainingJob]:
    """A store with rows, a base model, and a job over them."""
    base = make_tiny_model(folder / "base", max_len=256)
    source = LocalSource(str(folder / "store"))
    source.open().put_if_absent("rows.parquet", encode_records(training_rows(ROWS), table_of(TrainingRow)))
    return source, TrainingJob("base", base, "correction", "rows.parquet", "d", 0, "out/a", CONFIG.model_dump(mode="json"))


def curve(source: LocalSource, prefix: str) -> list[float]:
    """Loss of every optimizer step."""
    losses: list[float] = json.loads(source.open().get(f"{prefix}/curve.json"))
    return losses


def test_order_holds_every_row_epochs_times() -> None:
    """Promise 1; which rows a global batch holds depends on the seed alone, within it the short ones stand first."""
    lengths = [60 - number for number in range(21)]
    order = training_order(lengths, epochs=2, global_batch=4, seed=3)
    assert len(order) == 44
    assert sorted(number for number in order if number != NO_ROW) == sorted([*range(21)] * 2)
    assert order[-4:-2] == [NO_ROW, NO_ROW]
    batches = [order[first : first + 4] for first in range(0, 44, 4)]
    assert len({number for batch in batches[:5] for number in batch}) == 20
    assert all(batch == sorted(batch, reverse=True) for batch in batches[:-1])
    same = training_order([7] * 21, epochs=2, global_batch=4, seed=3)
    assert [set(batch) for batch in batches] == [set(same[first : first + 4]) for first in range(0, 44, 4)]
    assert order != training_order(lengths, epochs=2, global_batch=4, seed=4)


def test_packed_and_padded_batches_hold_the_same() -> None:
    """Promise 4: end to end or side by side, the same tokens at the same positions with the same labels."""
    rows = load_rows(encode_records(training_rows(5), table_of(TrainingRow)), max_length=128, where="here")
    items = [{"row": number} for number in (3, NO_ROW, 0, 4)]
    padded, packed = Collator(rows, 0)(items), Collator(rows, 0, packing=True)(items)
    wanted = [rows[number] for number in (3, 0, 4)]
    assert packed["input_ids"][0].tolist() == [token for row in wanted for token in row.input_ids]
    assert packed["labels"][0].tolist() == [label for row in wanted for label in row.labels]
    assert packed["position_ids"][0].tolist() == [place for row in wanted for place in range(len(row))]
    for place, row in zip((0, 2, 3), wanted, strict=True):
        length = len(row)
        assert padded["input_ids"][place, :length].tolist() == list(row.input_ids)
        assert padded["labels"][place, :length].tolist() == list(row.labels)
        assert padded["attention_mask"][place].tolist() == [1] * length + [0] * (padded["attention_mask"].shape[1] - length)
        assert set(padded["labels"][place, length:].tolist()) <= {IGNORED}
    empty = Collator(rows, 0, packing=True)([{"row": NO_ROW}])
    assert empty["input_ids"].shape == (1, 2)
    assert set(empty["labels"][0].tolist()) == {IGNORED}


def test_bad_rows_are_refused() -> None:
    """Promise 2."""
    rows = training_rows(4)
    table = table_of(TrainingRow)
    longest = max(len(row.prompt_token_ids) + len(row.completion_token_ids) for row in rows)
    loaded = load_rows(encode_records(rows, table), max_length=longest, where="here")
    for row, made in zip(rows, loaded, strict=True):
        assert tuple(token for token in made.labels if token != -100) == row.completion_token_ids
        assert made.labels[: len(row.prompt_token_ids)] == (-100,) * len(row.prompt_token_ids)
    with pytest.raises(ConfigError, match=f"max_length to {longest}"):
        load_rows(encode_records(rows, table), max_length=longest - 1, where="here")
    for span in (LossSpan(start=0, stop=3), LossSpan(start=5, stop=5), LossSpan(start=5, stop=500)):
        bad = [rows[0].model_copy(update={"loss_span": span})]
        with pytest.raises(StoreError, match="row 0"):
            load_rows(encode_records(bad, table), max_length=1000, where="here")
    with pytest.raises(StoreError, match="no rows"):
        load_rows(encode_records([], table), max_length=1000, where="here")


def test_targets_are_named_per_architecture() -> None:
    assert "gate_proj" in targets_for("llama").modules
    assert targets_for("qwen3_moe").parameters
    with pytest.raises(ConfigError, match="llama"):
        targets_for("lama")


@pytest.mark.parametrize("model_type", sorted(LORA_TARGETS))
def test_targets_are_layers_of_their_architecture(model_type: str) -> None:
    """Every suffix names linear layers, or fused weights, that transformers builds for the architecture; routers are not among them."""
    from transformers import AutoConfig, AutoModelForCausalLM

    experts = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64}
    config = AutoConfig.for_model(model_type, num_hidden_layers=2, **(experts if model_type == "gemma4_text" else {}))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    for suffix in targets_for(model_type).modules:
        found = [module for name, module in modules.items() if name.endswith(f".{suffix}")]
        assert found, suffix
        assert all(isinstance(module, torch.nn.Linear) for module in found), suffix
    for suffix in targets_for(model_type).parameters:
        found = [parameter for name, parameter in parameters.items() if name.endswith(f".{suffix}")]
        assert found, suffix
        assert all(parameter.ndim == 3 for parameter in found), suffix


def test_a_job_is_what_it_computes(tmp_path: Path) -> None:
    """Promise 7: how a job runs is not part of its identity; what it computes is."""
    job = TrainingJob("base", "somewhere", "correction", "rows", "d", 0, "out/a", CONFIG.model_dump(mode="json"))
    fewer = replace(job, base_path="elsewhere", settings=job.settings | {"workers": 1, "zero_stage": 3})
    assert job_id(job) == job_id(fewer)
    for other in (replace(job, seed=1), replace(job, data_hash="e"), replace(job, settings=job.settings | {"rank": 8})):
        assert job_id(job) != job_id(other)


def test_in_process_training(tmp_path: Path) -> None:
    """Promises 1, 3 and 5, in this process; the same job again gives the same weights to the bit."""
    source, job = setting(tmp_path)
    trainer = RayLoraTrainer(source, str(tmp_path / "scratch"), in_process=True)
    adapter = trainer.train(job)
    trained = 2 * sum(len(row.completion_token_ids) for row in training_rows(ROWS))
    assert (adapter.rows, adapter.trained_tokens, adapter.steps) == (ROWS, trained, 11)
    assert all(adapter.checks.values())
    folder = fetch_folder(source.open(), adapter.key, tmp_path / "adapter")
    tensors, config = read_adapter(folder)
    assert tensors_hash(tensors) == adapter.weights_hash
    assert adapter.model_id == f"base@{adapter.weights_hash[:16]}"
    assert str(tmp_path) not in str(config)
    pairs = [(row.prompt_token_ids, row.completion_token_ids) for row in training_rows(ROWS)]
    before, after = (reference_logprobs(job.base_path, pairs, adapter_path=path) for path in (None, str(folder)))
    assert sum(map(mean_nll, after)) < sum(map(mean_nll, before)) - ROWS * 0.2
    assert trainer.train(job) == adapter
    assert trainer.train(replace(job, settings=job.settings | {"workers": 1, "max_failures": 0})) == adapter
    card = source.open().get(f"{adapter.key}/README.md").decode()
    assert all(part in card for part in (adapter.model_id, adapter.weights_hash, f"| {trained} |", "library_name: peft"))
    assert str(tmp_path) not in card
    whole = curve(source, "out/a")
    for how in ({"micro_batch": 1}, {"packing": True}, {"packing": True, "micro_batch": 2}):
        prefix = "out/" + "-".join(how)
        other = trainer.train(replace(job, output_prefix=prefix, settings=job.settings | how))
        assert (other.trained_tokens, other.steps) == (trained, 11), how
        assert curve(source, prefix) == pytest.approx(whole, rel=1e-3), how
    with pytest.raises(ConfigError, match="seed"):
        trainer.train(replace(job, seed=9))
    repeated = trainer.train(replace(job, output_prefix="out/b"))
    assert repeated.weights_hash == adapter.weights_hash
    other = trainer.train(replace(job, output_prefix="out/c", seed=1))
    assert other.weights_hash != adapter.weights_hash


def test_impossible_jobs_start_nothing(tmp_path: Path) -> None:
    """Promise 2: refused before any worker."""
    source, job = setting(tmp_path)
    trainer = RayLoraTrainer(source, str(tmp_path / "scratch"), in_process=True)
    with pytest.raises(ConfigError, match="cut"):
        trainer.train(replace(job, settings=job.settings | {"max_length": 16}))
    with pytest.raises(ConfigError, match="divide"):
        trainer.train(replace(job, settings=job.settings | {"workers": 3}))
    with pytest.raises(ConfigError, match="no base model"):
        trainer.train(replace(job, base_path=str(tmp_path / "nothing")))
    short = make_tiny_model(tmp_path / "short", max_len=32)
    with pytest.raises(ConfigError, match="32 positions"):
        trainer.train(replace(job, base_path=short))
    with pytest.raises(PrerequisiteError, match="Ray"):
        replace(trainer, in_process=False).train(job)
    assert not (tmp_path / "scratch").exists()


def test_all_weights_can_be_trained(tmp_path: Path) -> None:
    """Promise 8: in a folder that loads as the base does, in the base's dtype, nearer to the rows than the base."""
    source, job = setting(tmp_path)
    settings = job.settings | {"method": "full", "learning_rate": 1e-3}
    trainer = RayLoraTrainer(source, str(tmp_path / "scratch"), in_process=True)
    trained = trainer.train(replace(job, settings=settings))
    assert trained.checks == {"has_weights": True, "shapes": True, "finite": True, "changed": True}
    assert trained.metrics["update_norm"] > 0
    folder = fetch_folder(source.open(), trained.key, tmp_path / "dense")
    assert trained.dense
    assert not (folder / "adapter_config.json").exists()
    assert dense_hash(folder) == trained.weights_hash
    assert "library_name: transformers" in (folder / "README.md").read_text()
    assert not any(str(tmp_path) in path.read_text() for path in folder.glob("*.json"))
    pairs = [(row.prompt_token_ids, row.completion_token_ids) for row in training_rows(ROWS)]
    before, after = (reference_logprobs(path, pairs) for path in (job.base_path, str(folder)))
    assert sum(map(mean_nll, after)) < sum(map(mean_nll, before)) - ROWS * 0.2
    half = recast(folder, tmp_path / "half", dtype="bfloat16")
    assert (half / "tokenizer.json").is_file()
    assert sum(map(mean_nll, reference_logprobs(str(half), pairs))) == pytest.approx(sum(map(mean_nll, after)), rel=0.05)
    same = check_dense(job.base_path, job.base_path)
    assert same.values == {"has_weights": True, "shapes": True, "finite": True, "changed": False}
    with pytest.raises(ModelError, match="the base's own"):
        same.require("here")


def test_trackers_get_the_run_or_are_missed_before_it(tmp_path: Path) -> None:
    """Promise 9: the events carry no host in their name; a missing package is named with the command that installs it."""
    source, job = setting(tmp_path)
    trainer = RayLoraTrainer(source, str(tmp_path / "scratch"), in_process=True)
    tracked = replace(job, settings=job.settings | {"report_to": ["tensorboard"], "epochs": 1})
    trainer.train(tracked)
    events = [info.key for info in source.open().list("out/a/tensorboard/")]
    assert events == ["out/a/tensorboard/events.out.tfevents.000000.0"]
    assert b"train/loss" in source.open().get(events[0])
    missing = next((name for name, packages in TRACKERS.items() if not any(map(find_spec, packages))), None)
    if missing is None:
        pytest.skip("every tracker is installed here")
    lost = replace(job, output_prefix="out/lost", settings=job.settings | {"report_to": [missing], "max_failures": 0})
    with pytest.raises(PrerequisiteError, match=f"pip install {TRACKERS[missing][0]}"):
        trainer.train(lost)
    assert not list(source.open().list("out/lost/"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_sharding_changes_no_loss(tmp_path: Path) -> None:
    """Promise 4: one and two workers, ZeRO-2 and ZeRO-3, adapter and all weights: the curve of one process, step by step.

    Relative tolerance 1e-3: sums of floats in another order; the losses themselves fall by far more.
    """
    source, job = setting(tmp_path)
    ways = {"one": (1, 2), "two": (2, 2), "three": (2, 3)}
    for method, rate in (("lora", 5e-3), ("full", 1e-3)):
        base = replace(job, settings=job.settings | {"method": method, "learning_rate": rate, "epochs": 2})
        alone = RayLoraTrainer(source, str(tmp_path / "alone"), in_process=True).train(replace(base, output_prefix=f"out/{method}"))
        reference = curve(source, f"out/{method}")
        half = len(reference) // 2
        assert fmean(reference[half:]) < fmean(reference[:half]), "the second pass over the same rows"
        with open_session(SESSION):
            for name, (workers, stage) in ways.items():
                prefix = f"out/{method}-{name}"
                how = base.settings | {"workers": workers, "zero_stage": stage}
                adapter = RayLoraTrainer(source, str(tmp_path / "scratch")).train(replace(base, output_prefix=prefix, settings=how))
                assert curve(source, prefix) == pytest.approx(reference, rel=1e-3), prefix
                assert (adapter.trained_tokens, adapter.steps) == (alone.trained_tokens, alone.steps)
                assert all(adapter.checks.values())


def wait_for_checkpoint(scratch: Path, *, timeout_s: float) -> None:
    """Until a second checkpoint begins: then the first is registered."""
    deadline = time.monotonic() + timeout_s
    while len(list(scratch.glob("train-*/step_*"))) < 2:
        assert time.monotonic() < deadline, "no checkpoint in time"
        time.sleep(0.2)


def training_workers(root: psutil.Process) -> list[psutil.Process]:
    """Worker processes below `root` that run the training loop."""
    found = []
    for process in root.children(recursive=True):
        try:
            if any("RayTrainWorker" in part for part in process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.timeout(1200)
def test_a_killed_worker_is_survived(tmp_path: Path) -> None:
    """R8, R12, and promise 4: two ZeRO-2 workers, one of them killed, end where one process ends."""
    import threading

    source, job = setting(tmp_path)
    alone = RayLoraTrainer(source, str(tmp_path / "alone"), in_process=True).train(replace(job, output_prefix="out/alone"))
    killed: list[int] = []

    def kill() -> None:
        wait_for_checkpoint(tmp_path / "scratch", timeout_s=600)
        victim = training_workers(psutil.Process())[-1]
        os.kill(victim.pid, signal.SIGKILL)
        killed.append(victim.pid)

    with open_session(SESSION):
        assassin = threading.Thread(target=kill)
        assassin.start()
        adapter = RayLoraTrainer(source, str(tmp_path / "scratch"), step_delay_s=1.0).train(job)
        assassin.join()
    assert killed
    assert adapter.metrics["resumed_at_step"] >= 2
    assert adapter.steps == alone.steps
    assert adapter.trained_tokens == alone.trained_tokens
    assert adapter.metrics["lora_b_norm"] == pytest.approx(alone.metrics["lora_b_norm"], rel=1e-3)
    assert curve(source, "out/a") == pytest.approx(curve(source, "out/alone"), rel=1e-3)
    assert not list((tmp_path / "scratch").glob("train-*")), "scratch is removed after the commit"


DRIVER = """
import sys
from pathlib import Path
from cluster.session import SessionConfig, open_session
from cluster.training import RayLoraTrainer
sys.path.insert(0, {here!r})
from test_training import setting
source, job = setting(Path({folder!r}))
with open_session(SessionConfig(log_to_driver=False)):
    RayLoraTrainer(source, {scratch!r}, step_delay_s=2.0).train(job)
"""


@pytest.mark.timeout(1200)
def test_a_killed_driver_is_taken_up_again(tmp_path: Path) -> None:
    """R9, R12: two ZeRO-2 workers write the checkpoint, one ZeRO-3 worker goes on from it."""
    scratch = tmp_path / "scratch"
    code = DRIVER.format(here=str(Path(__file__).parent), folder=str(tmp_path), scratch=str(scratch))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=log, stderr=log)
        try:
            wait_for_checkpoint(scratch, timeout_s=600)
        finally:
            tree = psutil.Process(driver.pid).children(recursive=True)
            driver.kill()
            driver.wait()
            for process in tree:
                if process.is_running():
                    process.kill()
            psutil.wait_procs(tree, timeout=30)
    source, job = setting(tmp_path)
    assert source.open().head("out/a/manifest.json") is None
    other = replace(job, settings=job.settings | {"workers": 1, "zero_stage": 3})
    with open_session(SESSION):
        adapter = RayLoraTrainer(source, str(scratch)).train(other)
    alone = RayLoraTrainer(source, str(tmp_path / "alone"), in_process=True).train(replace(job, output_prefix="out/alone"))
    assert adapter.metrics["resumed_at_step"] >= 2
    assert (adapter.rows, adapter.trained_tokens, adapter.steps) == (alone.rows, alone.trained_tokens, alone.steps)
    assert adapter.metrics["lora_b_norm"] == pytest.approx(alone.metrics["lora_b_norm"], rel=1e-3)
    assert curve(source, "out/a") == pytest.approx(curve(source, "out/alone"), rel=1e-3)


torch.set_num_threads(1)
