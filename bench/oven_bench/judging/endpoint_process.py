"""The judges' endpoint in its own process: `python -m oven_bench.judging.endpoint_process SEED`.

It prints its address, and serves until its standard input ends."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from oven_bench.judging.judge_endpoint import Endpoint
from oven_controller.cancellation import call_at_end
from oven_controller.errors import ProcessError
from oven_controller.process.child import end_with_input


@asynccontextmanager
async def running_endpoint(seed: int) -> AsyncIterator[str]:
    """The address of one, until the context ends. Raises ProcessError where it does not start."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "oven_bench.judging.endpoint_process", str(seed)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip()
        if not url:
            raise ProcessError(f"the endpoint did not start; it ended with {await process.wait()}")
        yield url
    finally:
        process.stdin.close()
        await process.wait()


async def served(url: str) -> Counter[str]:
    """Requests to the endpoint so far, by their outcome; "ok" for those that were answered."""

    def read() -> Counter[str]:
        with urllib.request.urlopen(f"{url}/served", timeout=30) as answer:
            return Counter(json.load(answer))

    return await asyncio.to_thread(read)


async def _serve(seed: int) -> None:
    stop = asyncio.Event()
    call_at_end(stop.set)
    end_with_input()
    async with Endpoint(seed).running() as endpoint:
        print(endpoint.url, flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
