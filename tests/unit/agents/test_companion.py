"""What runs beside an agent: it is begun once, and one that raises takes no vote with it, and tells no text."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from oven_agents import Agent, Window
from oven_agents.runtime.companion import Companions, RunContext
from oven_agents.sdk.agent_session import Session
from oven_core.errors import BusError


class Away:
    """A bus on which no one answers."""

    def __init__(self) -> None:
        self.requests = 0

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        self.requests += 1
        raise BusError("no responders")


class Beside(Agent):
    def __init__(self) -> None:
        self.around: RunContext | None = None
        self.done = asyncio.Event()

    def begin(self, around: RunContext) -> Coroutine[Any, Any, None]:
        self.around = around
        return self._beside(around)

    async def _beside(self, around: RunContext) -> None:
        try:
            assert await around.ask_graph("info", b"{}") is None
            assert await around.ask_graph("info", b"{}") is None
            raise ValueError("a secret prompt")
        finally:
            self.done.set()

    def vote(self, window: Window) -> None:
        return None


@pytest.mark.parametrize("config", [json.dumps({"committee": {"providers": "/p.yaml"}}), "{", "[]"])
async def test_a_companion_that_raises_is_reported_by_its_error_type(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.json").write_text(config)
    monkeypatch.setenv("OVEN_RUN_DIR", str(tmp_path))
    agent, bus = Beside(), Away()
    with caplog.at_level(logging.ERROR):
        companions = Companions([Session(agent, "me"), Session(Agent(), "plain")], bus)  # type: ignore[arg-type]
        await agent.done.wait()
        await companions.end()
    assert agent.around is not None and agent.around.providers_file == ("/p.yaml" if "providers" in config else "")
    assert bus.requests == 1, "a service that did not answer is left alone for a while"
    assert "raised ValueError" in caplog.text and "secret" not in caplog.text
