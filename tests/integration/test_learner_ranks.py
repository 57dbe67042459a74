"""Two ranks on gloo: rank 0 speaks to the bus, both do the same at the same step, and none hangs without it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.learner_side import ROOT, RUN, Process, Server, serving, until

from oven_controller.messages import Decision, Observation, OperatorCommand, Receipt, RunEnded, RunStarted
from oven_controller.names import Subjects

ON = Subjects(RUN)
LIMIT_S = 180


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path) as server:
        yield server


@pytest.fixture
async def started(nats: Server, tmp_path: Path) -> AsyncIterator[Any]:
    processes: list[Process] = []

    def start(kind: str, steps: int, seconds: float | None = None) -> Process:
        launch = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
        job = [str(ROOT / "tests" / "integration" / "ranks_job.py"), kind, str(tmp_path), str(steps)]
        processes.append(
            Process(
                launch + job + ([str(seconds)] if seconds else []),
                nats.env("learner") | {"GLOO_SOCKET_IFNAME": "lo"},
                tmp_path / "ranks.log",
            )
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()


def steps(folder: Path, rank: int) -> list[tuple[int, float]]:
    path = folder / f"steps-{rank}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(step, rate) for step, rate in map(json.loads, (line for line in lines if line.endswith("]")))]


def weights(folder: Path) -> set[str]:
    return {json.loads((folder / f"end-{rank}.json").read_text())["weights"] for rank in (0, 1)}


async def reached(folder: Path, step: int, process: Process) -> None:
    await until(lambda: len(steps(folder, 0)) >= step or process.popen.poll() is not None, LIMIT_S)
    assert process.popen.poll() is None, process.said()


def scale(number: int, value: float) -> Decision:
    return Decision(
        id=f"{number:012d}-00", ballot="b", actuator="optimizer.lr_scale", verdict="adopted", value=value, reason="",
        tally=(), tick=0, apply_at_tick=1, expires_at_tick=100_000,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["attach", "loop"])
async def test_a_decision_is_applied_on_both_ranks_at_the_same_step(
    nats: Server, started: Any, tmp_path: Path, kind: str
) -> None:
    process = started(kind, 100_000)
    await reached(tmp_path, 20, process)
    async with nats.bus("mesh") as mesh, nats.bus() as operator:
        await mesh.append(ON.decision(scale(1, 0.5).id), scale(1, 0.5).wire(), once=True)
        await until(lambda: steps(tmp_path, 0)[-1][1] == 0.005, LIMIT_S)
        await operator.append(ON.operator("ann"), OperatorCommand(id="1", action="stop").wire())
    assert await process.ended(LIMIT_S) == 0, process.said()
    assert steps(tmp_path, 0) == steps(tmp_path, 1)
    assert len(weights(tmp_path)) == 1
    said = await nats.bodies()
    assert sum(isinstance(body, RunStarted) for body in said) == 1, "one learner, not one a rank"
    receipts = [(body.decision_id, body.command, body.status) for body in said if isinstance(body, Receipt)]
    assert receipts == [(scale(1, 0.5).id, "", "applied"), ("", "1", "applied")], "one receipt each, not one a rank"
    assert [body.step for body in said if isinstance(body, Observation)] == [n for n, _ in steps(tmp_path, 0)]
    end = said[-1]
    assert isinstance(end, RunEnded) and end.reason == "stopped"


async def test_a_killed_server_leaves_both_ranks_training_to_the_end(
    nats: Server, started: Any, tmp_path: Path
) -> None:
    process = started("attach", 400)
    await reached(tmp_path, 20, process)
    await nats.kill()
    assert await process.ended(LIMIT_S) == 0, process.said()
    assert steps(tmp_path, 0) == steps(tmp_path, 1)
    assert [step for step, _ in steps(tmp_path, 0)] == list(range(1, 401))
    assert len(weights(tmp_path)) == 1
    await nats.start()
    seen = [body.step for body in await nats.bodies() if isinstance(body, Observation)]
    assert seen == list(range(1, len(seen) + 1))


async def test_a_time_budget_ends_both_ranks_at_the_same_step(started: Any, tmp_path: Path) -> None:
    """Each has a clock of its own; rank 0's is the one that counts."""
    process = started("attach", 100_000, 1.0)
    assert await process.ended(LIMIT_S) == 0, process.said()
    assert steps(tmp_path, 0) == steps(tmp_path, 1)


async def test_credentials_that_are_refused_end_both_ranks(nats: Server, started: Any, tmp_path: Path) -> None:
    nats.creds("learner").write_bytes(_stranger())
    process = started("attach", 50)
    assert await process.ended(LIMIT_S) != 0
    assert "refused the credentials" in process.said()


def _stranger() -> bytes:
    from oven_controller.credentials import Credentials

    return Credentials.new("learner").seed
