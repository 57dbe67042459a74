"""Trainings that DeepSpeed's ZeRO shards on CPU: the gauges are those of the whole model, and the knobs work."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.learner_side import ROOT

from oven_bench.stacks.environments import Stack, open_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # the first run installs the environment

DEEPSPEED = Stack(
    "DeepSpeed 0.19",
    ("deepspeed==0.19.8", "transformers==5.23.0", "accelerate==1.15.0", "datasets", "pytest"),
    "transformers",
)
SCRIPT = "tests.support.zero_training"


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of an environment with DeepSpeed."""
    return open_environment(DEEPSPEED).python


def launched(python: Path, count: int, folder: Path, *options: str) -> list[dict[str, Any]]:
    """Run the script on this many ranks. Return the result of each rank."""
    path = os.pathsep.join(str(ROOT / part) for part in ("controller", "agents", "learner", "."))
    env = {key: value for key, value in os.environ.items() if not key.startswith("OVEN_")} | {
        "DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": path,
        "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    local = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    command = ["-m", "torch.distributed.run", "--nproc-per-node", str(count), *local, "-m", SCRIPT, *options]
    done = subprocess.run(
        [str(python), *command, str(folder)], env=env, cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_gauges_of_partitions_are_those_of_the_whole_model(python: Path, tmp_path: Path, count: int) -> None:
    """On three ranks, some partitions are only padding."""
    for errors_by_training in launched(python, count, tmp_path, "gauges", "--steps", "50"):
        for training, errors in errors_by_training.items():
            assert len(errors) == 3 and max(errors.values()) <= 1e-5, (training, errors)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_trainer_is_unchanged_and_its_knobs_reach_every_rank(python: Path, tmp_path: Path, stage: int) -> None:
    first, second = launched(python, 2, tmp_path, "trainer", "--stage", str(stage))
    assert first["same"] and second["same"], "observed, it trains as it does alone, bit for bit"
    assert first["settings"] == second["settings"]
    assert first["settings"][0] == [1, 0.01, 0.5, 0.1] and first["settings"][-1] == [8, 0.005, 0.25, 0.5]
    assert first["receipts"] == {
        "optimizer.lr_scale": "applied",
        "grad.clip": "applied",
        "optimizer.weight_decay": "applied",
    }
    assert "run.rollback" not in first["actuators"] and not first["unmeasured"]
    assert set(first["gauges"]) == {"optim/grad_momentum_cos", "optim/weight_norm", "optim/update_ratio"}
