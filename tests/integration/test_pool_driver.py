"""A real pool at the policy's wheel: in a phase without engines its processes are gone and nothing is held; for the next phase it is back.

The same class decides here and in the simulator.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cluster.cost import HeldMeter, ProcessRate
from cluster.metrics import RunMetrics
from cluster.pool_driver import DrivenPool, PoolDriver, living
from cluster.servers import ModelPool, PoolConfig
from cluster.session import SessionConfig, open_session
from cluster.tiny import make_tiny_model
from coevo.config import parse_config
from jobs.phases import phase_policy, phases_of
from tests.contract.test_executors import wait_for
from tests.integration.test_pool import engine

pytestmark = pytest.mark.timeout(900)


def alive(pid: int | None) -> bool:
    return pid is not None and Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2:3]


def phase(name: str) -> int:
    return [one.name for one in phases_of(parse_config({"name": "x"}))].index(name)


def test_to_zero_and_back(tmp_path: Path) -> None:
    config = parse_config({"name": "x", "weak": {"replicas": 1}, "cluster": {"pools": {"weak": {"startup_s": 5}}}})
    folder = make_tiny_model(tmp_path / "model", seed=1)
    shown: list[str] = []
    with open_session(SessionConfig(num_cpus=4)), ModelPool(PoolConfig(engine=engine(folder), replicas=1, heartbeat_s=0.2)) as pool:
        meter = HeldMeter(ProcessRate(gpus=2.0, cpus=1.0, usd_per_hour=3.6), lambda: living(pool.stats()))
        metrics = RunMetrics("x")
        driver = PoolDriver(
            phase_policy(config),
            period_s=0.2,
            on_scale=lambda name, size: shown.append(f"{name} {size}"),
            on_look=metrics.pool,
        )
        driver.add("weak", DrivenPool(pool, 1, meter=meter))
        driver.enter(phase("rewrite"))
        pid = pool.stats().replicas[0].pid
        assert alive(pid)
        wait_for(lambda: meter.read().gpu_s > 0)
        driver.enter(phase("train"))
        wait_for(lambda: not alive(pid))
        held = meter.read()
        time.sleep(0.6)
        assert meter.read() == held, "nothing is held at zero"
        assert held.usd == pytest.approx(held.cpu_s * 0.001)
        driver.progress(9, 10)
        wait_for(lambda: living(pool.stats()) == 1, limit_s=240.0)
        driver.enter(phase("publish"))
        driver.require("weak")
        assert pool.stats().ready == 1
        assert pool.stats().replicas[0].pid != pid
        assert os.getpid() != pid
        driver.close()
    assert shown == ["weak 0", "weak 1"]
