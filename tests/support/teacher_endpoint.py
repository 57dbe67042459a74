"""The endpoint of the scripted teachers in its own process: `python -m tests.support.teacher_endpoint SEED`.

It prints its address, and serves until its standard input ends. At /billed it says what it would bill, by model, and
how many whole answers it has given about each state.
"""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from tests.support import scripted_conversation
from tests.support.judge_endpoint import Endpoint
from tests.support.made_traces import state_name
from tests.support.scripted_teachers import script

from oven_core.cancellation import call_at_end
from oven_runs.process.child import end_with_input

ROOT: Final = Path(__file__).resolve().parents[2]
SPOILT: Final = frozenset(("429", "500", "529", "reset", "hang", "cutbody", "html"))
"""Faults after which there is no whole answer to keep."""


@dataclass(frozen=True)
class Bill:
    """What the endpoint says."""

    tokens: dict[str, dict[str, int]]
    """Model → `input`, `cached`, `written`, `output`."""
    whole: dict[str, dict[str, int]]
    """Model → state → requests that got a whole answer."""
    served: Counter[str]
    """Requests by their fault; "ok" for those without."""


class TeacherEndpoint(Endpoint):
    """The judges' endpoint with the teachers' script, and a count of whole answers by state."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.script = script
        self._whole: dict[str, Counter[str]] = {}

    async def _faulty(
        self, request: web.Request, body: dict[str, Any], fault: str, answer: Callable[[str], dict[str, Any]]
    ) -> web.StreamResponse:
        if fault not in SPOILT:
            read = (
                scripted_conversation.anthropic_messages
                if request.path.endswith("/v1/messages")
                else scripted_conversation.openai_messages
            )
            state = state_name(one.text for one in read(body))
            self._whole.setdefault(body["model"], Counter())[state] += 1
        return await super()._faulty(request, body, fault, answer)

    async def _billed(self, _: web.Request) -> web.Response:
        return web.json_response({"tokens": self.bills.tokens, "whole": self._whole, "served": self.served})


@asynccontextmanager
async def running_teachers(seed: int) -> AsyncIterator[str]:
    """The address of an endpoint in a process of its own, until the context ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.teacher_endpoint", str(seed),
        cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip()
        assert url, f"the endpoint did not start; it ended with {await process.wait()}"
        yield url
    finally:
        process.stdin.close()
        await process.wait()


async def billed(url: str) -> Bill:
    """What the endpoint at this address says now."""

    def read() -> Bill:
        with urllib.request.urlopen(f"{url}/billed", timeout=30) as answer:
            said = json.load(answer)
        return Bill(said["tokens"], said["whole"], Counter(said["served"]))

    return await asyncio.to_thread(read)


async def _serve(seed: int) -> None:
    stop = asyncio.Event()
    call_at_end(stop.set)
    end_with_input()
    async with TeacherEndpoint(seed).running() as endpoint:
        print(endpoint.url, flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
