"""The judges' endpoint in its own process: `python -m oven_bench.judging.endpoint_process SEED`.

It prints its address, and serves until its standard input ends."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from collections import Counter
from contextlib import AbstractAsyncContextManager

from oven_bench.endpoint_child import running_child, told_to_end
from oven_bench.judging.judge_endpoint import Endpoint


def running_endpoint(seed: int) -> AbstractAsyncContextManager[str]:
    """The address of one, until the context ends. Raises ProcessError where it does not start."""
    return running_child("oven_bench.judging.endpoint_process", str(seed))


async def served(url: str) -> Counter[str]:
    """Requests to the endpoint so far, by their outcome; "ok" for those that were answered."""

    def read() -> Counter[str]:
        with urllib.request.urlopen(f"{url}/served", timeout=30) as answer:
            return Counter(json.load(answer))

    return await asyncio.to_thread(read)


async def _serve(seed: int) -> None:
    stop = told_to_end()
    async with Endpoint(seed).running() as endpoint:
        print(endpoint.url, flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
