"""LoRA training. Promises:

1. Every row trains exactly `epochs` times, no token more or less, whatever the number of rows and workers (I7, R2).
2. Rows that would be cut and spans that leave their row are refused by name, never dropped.
3. The adapter is the trained one: loss falls, base + adapter scores the rows better, its id is the hash of its weights.
4. ZeRO stages and numbers of workers give the same losses.
5. The same job again returns the stored adapter without work; another job under the prefix is refused (R7).
6. A killed worker is replaced and training goes on from its last checkpoint (R8, R12).
7. A killed driver's job goes on when run again, also with another number of workers and another ZeRO stage (R9, R12).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from cluster.adapters import fetch_folder, read_adapter, tensors_hash
from cluster.lora_targets import targets_for
from cluster.lora_worker import load_rows, training_order
from cluster.scoring import mean_nll, reference_logprobs
from cluster.session import SessionConfig, open_session
from cluster.tiny import make_tiny_model
from cluster.training import RayLoraTrainer, job_id
from coevo.config import TrainConfig
from coevo.errors import ConfigError, PrerequisiteError, StoreError
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


def test_order_holds_every_row_epochs_times() -> None:
    """Promise 1; the order depends on the seed alone."""
    order = training_order(21, epochs=2, global_batch=4, seed=3)
    assert len(order) == 44
    assert sorted(number for number in order if number is not None) == sorted([*range(21)] * 2)
    assert order[-2:] == [None, None]
    assert set(order[:21]) == set(range(21))
    assert order == training_order(21, epochs=2, global_batch=4, seed=3)
    assert order != training_order(21, epochs=2, global_batch=4, seed=4)


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
    with pytest.raises(PrerequisiteError, match="Ray"):
        replace(trainer, in_process=False).train(job)
    assert not (tmp_path / "scratch").exists()


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
    for name in ("loss_first", "loss_last", "lora_b_norm"):
        assert adapter.metrics[name] == pytest.approx(alone.metrics[name], rel=1e-3), name
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
    for name in ("loss_last", "lora_b_norm"):
        assert adapter.metrics[name] == pytest.approx(alone.metrics[name], rel=1e-3), name


torch.set_num_threads(1)
