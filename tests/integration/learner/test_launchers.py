"""Trainings that torchrun and `accelerate launch` start on CPU, with a real server: sharded by FSDP2, or under DDP."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.forked import COLD
from tests.support.learner_side import RUN, Process, Server, serving, until

from oven_core.protocol.messages import Decision, Observation, Receipt, RunEnded, RunStarted
from oven_core.protocol.names import Subjects
from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner.optim.optimizer_gauges import ALL_GAUGES

pytestmark = pytest.mark.slow

ON = Subjects(RUN)
LIMIT_S = 300
SCRIPT = "tests.support.launched_training"
OBSERVED_STEPS = 4
BETAS = {"dpo": "dpo.beta", "grpo": "grpo.beta"}


def torchrun(count: int, *options: str) -> list[str]:
    local = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    return ["-m", "torch.distributed.run", "--nproc-per-node", str(count), *local, *options, "-m"]


def accelerate(count: int, *options: str) -> list[str]:
    """With `--cpu`, accelerate starts a single process, whatever `--num_processes` says. So the script asks for it."""
    local = ["--num_processes", str(count), "--num_machines", "1", "--main_process_port", "0"]
    defaults = ["--mixed_precision", "no", "--dynamo_backend", "no"]
    return ["-m", "accelerate.commands.launch", *local, *defaults, *options, "--module"]


FSDP = ("--use_fsdp", "--fsdp_version", "2")
CASES = {
    "a Trainer with FSDP2 on 2 ranks": (torchrun(2), ["trainer"]),
    "a Trainer with FSDP2 on 4 ranks": (torchrun(4), ["trainer"]),
    "a Trainer with FSDP2, by accelerate": (accelerate(2, *FSDP), ["trainer"]),
    "SFT with FSDP2": (torchrun(2), ["sft"]),
    "DPO with FSDP2": (torchrun(2), ["dpo"]),
    "GRPO with FSDP2": (torchrun(2), ["grpo"]),
    "GRPO with DDP, by accelerate": (accelerate(2, "--multi_gpu"), ["grpo", "--whole"]),
    "a loop with FSDP2 on 2 ranks": (torchrun(2), ["loop"]),
    "a loop with FSDP2 on 4 ranks": (torchrun(4), ["loop"]),
}


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path) as server:
        yield server


def launch(nats: Server, launcher: list[str], *script: str) -> Process:
    env = nats.env("learner") | {"GLOO_SOCKET_IFNAME": "lo", COLD: "1"}
    return Process([*launcher, *script], env, nats.log.parent / "training.log")


def notes(folder: Path, rank: int) -> list[list[float]]:
    """Return [step, rate, this rank's loss, clip, β if there is one] for each step."""
    path = folder / f"steps-{rank}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("]")]


def settings(folder: Path, rank: int) -> list[list[float]]:
    """Return the notes without the loss, which is each rank's own."""
    return [[step, rate, *rest] for step, rate, _, *rest in notes(folder, rank)]


def decision(number: int, actuator: str, value: float) -> Decision:
    tick = OBSERVED_STEPS + 1  # the observed training used the earlier ones
    return Decision(
        id=f"{number:012d}-00", ballot="b", actuator=actuator, verdict="adopted", value=value, reason="", tally=(),
        tick=tick, apply_at_tick=1, expires_at_tick=100_000,
    )  # fmt: skip


async def decide(nats: Server, *decisions: Decision) -> None:
    async with nats.bus("mesh") as mesh:
        for made in decisions:
            await mesh.append(ON.decision(made.id), made.wire(), once=True)


@pytest.mark.parametrize("case", CASES)
async def test_a_launched_training_is_unchanged_and_follows_decisions(nats: Server, tmp_path: Path, case: str) -> None:
    launcher, (kind, *options) = CASES[case]
    count = int(
        launcher[launcher.index("--nproc-per-node" if "--nproc-per-node" in launcher else "--num_processes") + 1]
    )
    process = launch(nats, launcher, SCRIPT, kind, str(tmp_path), *options)
    try:
        await until(lambda: len(notes(tmp_path, 0)) >= 3 or process.popen.poll() is not None, LIMIT_S)
        assert process.popen.poll() is None, process.output()
        values = {"optimizer.lr_scale": 0.5, "grad.clip": 0.25} | ({BETAS[kind]: 0.05} if kind in BETAS else {})
        await decide(nats, *(decision(number, *pair) for number, pair in enumerate(values.items(), 1)))
        expected = [0.005, 0.25, *([0.05] if kind in BETAS else [])]
        await until(lambda: settings(tmp_path, 0)[-1][1:] == expected or process.popen.poll() is not None, LIMIT_S)
        await decide(nats, decision(9, "run.rollback", OBSERVED_STEPS + 2.0))
        await nats.logged(lambda event: isinstance(event.body, Receipt) and event.body.actuator == "run.rollback")
        async with nats.bus() as operator:
            await operator.append(ON.operator("ann"), OperatorCommand(id="1", action="stop").wire())
        assert await process.ended(LIMIT_S) == 0, process.output()
    finally:
        process.kill()

    endings = [json.loads((tmp_path / f"end-{rank}.json").read_text()) for rank in range(count)]
    assert all(ending["same"] for ending in endings), "observed, it trains as it does alone, bit for bit"
    assert len({ending["weights"] for ending in endings}) == 1
    assert all(settings(tmp_path, rank) == settings(tmp_path, 0) for rank in range(count))
    messages = await nats.bodies()
    started = [body for body in messages if isinstance(body, RunStarted)]
    assert len(started) == 2, "one learner, not one per rank"
    assert "run.rollback" in {spec.name for spec in started[-1].actuators}
    receipts = [body for body in messages if isinstance(body, Receipt) and body.decision_id]
    assert sorted((receipt.actuator, receipt.status) for receipt in receipts) == sorted(
        (name, "applied") for name in (*values, "run.rollback")
    ), "one receipt each, not one per rank"
    assert not started[-1].unmeasured
    farthest = max((body for body in messages if isinstance(body, Observation)), key=lambda body: body.step)
    assert all(math.isfinite(farthest.metrics[spec.name]) for spec in ALL_GAUGES), "the last one before the rollback"
    end = messages[-1]
    assert isinstance(end, RunEnded) and end.reason == "stopped"
