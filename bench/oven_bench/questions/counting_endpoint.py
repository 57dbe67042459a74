"""The scripted models behind chat completions on loopback, which counts what it was asked and has answered."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self

from aiohttp import web

from oven_bench.questions.scripted_models import reply

FAULTS: Final = (429, 500, 529)
"""Statuses that a client is expected to ask again after."""


class CountingEndpoint:
    """In a thread with an event loop. `answered`: digest of a request's body → how often it was answered, as a provider
    bills it."""

    def __init__(
        self,
        *,
        delay_s: float = 0.0,
        faults: float = 0.0,
        seed: int = 0,
    ) -> None:
        """`delay_s`: of an answer. `faults`: share of requests that are refused at first."""
        self._delay_s, self._faults = delay_s, faults
        self._draw = random.Random(seed)
        self.answered: Counter[str] = Counter()
        self.refused = 0
        self.under_way = 0
        """Requests that are not answered yet; those of a client that is gone are among them."""
        self.keys: set[str] = set()
        """What came as a key."""
        self.url = ""
        self._ready = threading.Event()
        self._broken: Exception | None = None
        self._stop: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, daemon=True, name="endpoint")

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._broken is not None:
            raise self._broken
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            self._broken = error
        finally:
            self._ready.set()

    @property
    def total(self) -> int:
        return self.answered.total()

    async def _serve(self) -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/chat/completions", self._complete)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        async with AsyncExitStack() as exits:
            await runner.setup()
            exits.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            ended, loop = asyncio.Event(), asyncio.get_running_loop()
            self._stop = lambda: loop.call_soon_threadsafe(ended.set)
            self._ready.set()
            await ended.wait()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.under_way += 1
        try:
            return await self._answer(request)
        except ConnectionResetError:  # the client was killed while it sent its request
            return web.Response(status=400)
        finally:
            self.under_way -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.keys.add(request.headers.get("Authorization", ""))
        if self._draw.random() < self._faults:
            self.refused += 1
            return web.json_response(
                {"error": {"message": "no"}}, status=self._draw.choice(FAULTS), headers={"retry-after-ms": "5"}
            )
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        try:
            text = reply(body["model"], body["messages"])
        except LookupError as error:
            return web.json_response({"error": {"message": str(error)}}, status=404)
        self.answered[hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()] += 1
        said = sum(len(str(one["content"])) for one in body["messages"])
        return web.json_response(
            {
                "id": "scripted",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
                "usage": {
                    "prompt_tokens": said // 4 + 1,
                    "completion_tokens": len(text) // 4 + 1,
                    "total_tokens": said // 4 + len(text) // 4 + 2,
                },
            }
        )
