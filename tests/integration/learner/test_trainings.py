"""Two trainings of one script in one run, against a real server: what each takes over from the log."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tests.support.learner_side import RUN, Server, serving, until

from oven_core.protocol.messages import Decision, Observation, Receipt, RunStarted
from oven_core.protocol.names import Subjects
from oven_learner.actuators import Actuators
from oven_learner.client import run_start
from oven_learner.client.oven_client import OvenClient
from oven_learner.custom_loop import connect


async def train(server: Server, rate: list[float], named: str | None = None) -> OvenClient:
    knobs = Actuators()
    knobs.scalar("rate", lambda: rate[0], lambda value: rate.__setitem__(0, value), low=0.1, high=10)
    creds = server.creds("learner")
    return await asyncio.to_thread(lambda: connect(knobs, url=server.url, run=RUN, creds=creds, training=named))


async def turn(server: Server, client: OvenClient, number: int, value: float, rate: list[float]) -> None:
    """Three steps, and a decision in between."""
    for step in (1, 2):
        client.observe(step, {"loss": 1.0})
    made = Decision(
        id=f"{number:012d}-00", ballot="b", actuator="rate", verdict="adopted", value=value, reason="", tally=(),
        tick=client.tick, apply_at_tick=1, expires_at_tick=1000,
    )  # fmt: skip
    async with server.bus("mesh") as mesh:
        async for event in mesh.read(RUN, subjects=[Subjects(RUN).observation]):
            if isinstance(event.body, Observation) and event.body.tick == client.tick:
                break
        await mesh.append(Subjects(RUN).decision(made.id), made.wire(), once=True)

    def applied() -> bool:
        client.poll()
        return rate[0] == value

    await until(applied)
    client.observe(3, {"loss": 1.0})


async def test_a_second_training_has_its_own_values_and_a_restart_resumes_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        monkeypatch.setattr(run_start, "_training_count_by_run", Counter())
        sft, grpo = [1.0], [2.0]
        client = await train(server, sft)
        await turn(server, client, 1, 4.0, sft)
        assert await asyncio.to_thread(client.close, "completed")
        client = await train(server, grpo)
        assert grpo == [2.0], "what the first training had set is its own"
        await turn(server, client, 2, 5.0, grpo)
        assert await asyncio.to_thread(client.close, "failed")

        monkeypatch.setattr(run_start, "_training_count_by_run", Counter())  # the script is started again
        sft, grpo, other_rate = [1.0], [2.0], [3.0]
        for rate, named in ((sft, None), (grpo, None), (other_rate, "other")):
            client = await train(server, rate, named)
            assert await asyncio.to_thread(client.close, "completed")
        assert (sft, grpo, other_rate) == ([4.0], [5.0], [3.0])
        bodies = await server.bodies()
    started = [body for body in bodies if isinstance(body, RunStarted)]
    assert [body.training for body in started] == ["1", "2", "1", "2", "other"]
    assert [body.tick for body in started] == [0, 3, 6, 6, 6], "ticks go on"
    assert [body.status for body in bodies if isinstance(body, Receipt)] == ["applied", "applied"]
