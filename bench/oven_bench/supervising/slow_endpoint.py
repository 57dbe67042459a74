"""An endpoint that takes its time, in its own process: `python -m oven_bench.supervising.slow_endpoint SECONDS SEED`.

It answers a prompt with what `reply` makes of it, so that an answer in a wrong place is seen. It prints its address,
and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from oven_bench.judging.judge_endpoint import Endpoint
from oven_bench.judging.scripted_conversation import Asked, Said
from oven_controller.cancellation import call_at_end
from oven_controller.errors import ProcessError
from oven_controller.process.child import end_with_input


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


@contextmanager
def running_slowly(seconds: float, seed: int) -> Iterator[str]:
    """The address of one, until the context ends. Raises ProcessError where it does not start."""
    command = (sys.executable, "-P", "-m", "oven_bench.supervising.slow_endpoint", str(seconds), str(seed))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            if not url:
                raise ProcessError(f"the endpoint did not start; it ended with {process.wait()}")
            yield url
        finally:
            process.stdin.close()


async def _serve(seconds: float, seed: int) -> None:
    stop = asyncio.Event()
    call_at_end(stop.set)
    end_with_input()
    async with SlowEndpoint(seconds, seed).running() as endpoint:
        print(endpoint.url, flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]), int(sys.argv[2])))
