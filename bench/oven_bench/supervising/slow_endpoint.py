"""An endpoint that takes its time, in its own process: `python -m oven_bench.supervising.slow_endpoint SECONDS SEED`.

It answers a prompt with what `reply` makes of it, so that an answer in a wrong place is seen. It prints its address,
and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from contextlib import AbstractContextManager
from typing import Any

from aiohttp import web

from oven_bench.endpoint_child import running_child_beside, told_to_end
from oven_bench.judging.judge_endpoint import Endpoint
from oven_bench.judging.scripted_conversation import Asked, Said


def reply(prompt: str) -> str:
    """The right answer."""
    return hashlib.sha256(prompt.encode()).hexdigest()


class SlowEndpoint(Endpoint):
    """Answers after `seconds`, and so do its faults."""

    def __init__(self, seconds: float, seed: int) -> None:
        super().__init__(seed)
        self._seconds = seconds
        self.script = self._say

    @staticmethod
    def _say(asked: Asked) -> Said:
        return Said("assistant", reply(asked.messages[-1].text))

    async def _faulty(self, request: web.Request, body: dict[str, Any], fault: str, wrap: Any) -> web.StreamResponse:
        await asyncio.sleep(self._seconds)
        return await super()._faulty(request, body, fault, wrap)


def running_slowly(seconds: float, seed: int) -> AbstractContextManager[str]:
    """The address of one, until the context ends. Raises ProcessError where it does not start."""
    return running_child_beside("oven_bench.supervising.slow_endpoint", str(seconds), str(seed))


async def _serve(seconds: float, seed: int) -> None:
    stop = told_to_end()
    async with SlowEndpoint(seconds, seed).running() as endpoint:
        print(endpoint.url, flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]), int(sys.argv[2])))
