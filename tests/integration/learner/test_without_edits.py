"""`run --auto-attach` and `report_to="oven"` on scripts without a line for the controller: a real server, no stack."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.support.learner_side import ROOT, Server, off_loop, serving
from tests.support.unedited_training import STEPS

from oven_core.protocol.messages import Observation, RunEnded, RunStarted

STARTUP = ROOT / "learner" / "oven_learner" / "startup"
SCRIPT = str(ROOT / "tests" / "support" / "unedited_training.py")
TORCHRUN = [
    *("-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"),
    *("--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"),
]
COMMAND_LINE = ["-m", "trl.cli.main"]
SFT = [
    *("--model_name_or_path", "{0}/model", "--dataset_name", "{0}/rows", "--output_dir", "{0}/out", "--use_cpu"),
    *("--learning_rate", "3e-3", "--max_steps", str(STEPS), "--per_device_train_batch_size", "4", "--bf16", "false"),
    *("--report_to", "none", "--gradient_checkpointing", "false", "--save_strategy", "no"),
]
CASES = {
    "trainer": ("Trainer", STEPS, "trainer"),
    "report_to": ("Trainer", STEPS, "report_to"),
    "sft": ("SFTTrainer", STEPS, "sft"),
    "dpo": ("DPOTrainer", STEPS, "dpo"),
    "grpo": ("GRPOTrainer", STEPS, "grpo"),
    "lightning": ("Sums under Lightning", 2 * STEPS, "lightning"),
    "accelerate": ("a loop under accelerate", STEPS, "accelerate"),
    "trl sft": ("SFTTrainer", STEPS, "prepare"),
    "trainer on 2 ranks": ("Trainer on 2 ranks", STEPS, "trainer"),
    "accelerate on 2 ranks": ("a loop under accelerate on 2 ranks", STEPS, "accelerate"),
}
"""Case → what the line says, the number of steps, and the script."""


def run_case(case: str, folder: Path, env: Mapping[str, str]) -> str:
    """Run a script, and return what it printed."""
    folder.mkdir()
    launcher = TORCHRUN if "ranks" in case else []
    commands = [[*launcher, SCRIPT, CASES[case][2], str(folder)]]
    if case == "trl sft":
        commands.append([*COMMAND_LINE, "sft", *(part.format(folder) for part in SFT)])
    output = ""
    for command in commands:
        result = subprocess.run(
            [sys.executable, *command], cwd=folder, env=dict(env), capture_output=True, text=True, timeout=300
        )
        output += result.stdout + result.stderr
        assert result.returncode == 0, output
    return output


def weights(folder: Path) -> dict[str, torch.Tensor]:
    file = folder / "weights.pt"
    loaded: dict[str, torch.Tensor] = (
        torch.load(file) if file.is_file() else load_file(folder / "out/model.safetensors")
    )
    return loaded


def environment(server: Server, case: str) -> dict[str, str]:
    env = server.env("learner")
    env |= {"PYTHONPATH": os.pathsep.join((str(STARTUP), env["PYTHONPATH"]))}
    return env if case == "report_to" else env | {"OVEN_AUTO_ATTACH": "1"}


@pytest.mark.parametrize(
    "case",
    [case if case == "accelerate" else pytest.param(case, marks=pytest.mark.slow) for case in CASES],
)
async def test_a_script_without_edits_is_attached_and_trains_the_same_bits(case: str, tmp_path: Path) -> None:
    name, steps, _ = CASES[case]
    async with serving(tmp_path) as server:
        env = environment(server, case)
        plain_env = {key: value for key, value in env.items() if not key.startswith("OVEN_")} | {
            "OVEN_MODE": "disabled"
        }
        await off_loop(run_case, case, tmp_path / "plain", plain_env)
        output = await off_loop(run_case, case, tmp_path / "attached", env)
        bodies = [event.body for event in await server.events()]
    lines = [line for line in output.splitlines() if line.startswith("oven: ")]
    assert lines == [f"oven: attached to {name}"], output
    before, after = weights(tmp_path / "plain"), weights(tmp_path / "attached")
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    [started] = [body for body in bodies if isinstance(body, RunStarted)]
    assert "optimizer.lr_scale" in {spec.name for spec in started.actuators}
    observed = [body for body in bodies if isinstance(body, Observation)]
    assert [body.step for body in observed] == list(range(1, steps + 1))
    assert all({"loss", "learning_rate", "grad_norm"} <= body.metrics.keys() for body in observed)
    [end] = [body for body in bodies if isinstance(body, RunEnded)]
    assert (end.reason, end.step) == ("completed", steps)
